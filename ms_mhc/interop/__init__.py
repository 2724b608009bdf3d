"""Weights of other libraries: one layer, whole models, and files.

Three kinds of functions, each for Hugging Face's DeepSeek-V4 (``hf``) and for MindSpore Transformers (``mindformers``):

- one cell's tensors as a dict: :func:`from_hf`, :func:`to_hf`, :func:`from_mindformers`, :func:`to_mindformers`;
- a whole model's as a dict: :func:`model_from_hf`, :func:`model_to_hf`, ...;
- a network and a safetensors checkpoint: :func:`load_hf`, :func:`save_hf`, ...

Whole models need to be told which name belongs to which::

    names = {
        "blocks.{i}.attn.pre": "layers.{i}.hc_attn_{p}",
        "blocks.{i}.ffn.pre": "layers.{i}.hc_ffn_{p}",
        "head": "hc_head_{p}",
    }
    interop.load_hf(network, "DeepSeek-V4", names)

On the left stands a ``MhcPre`` or ``MhcHead`` cell of the network, as ``cells_and_names()`` calls it. On the right
stand its tensors in the checkpoint, ``{p}`` being the last part of the name (``fn``, ``base``, ``scale``, or MindSpore
Transformers' ``mapping_proj.weight``, ...). Any other word in braces is a number, the same on both sides.
``HF_NAMES``, ``TRANSFORMERS_NAMES``, ``TRANSFORMERS_SAVED_NAMES`` and ``MINDFORMERS_NAMES`` hold the usual right-hand
sides; of the first three any will do to read.
"""

from ms_mhc.interop.layers import from_hf, from_mindformers, to_hf, to_mindformers
from ms_mhc.interop.models import model_from_hf, model_from_mindformers, model_to_hf, model_to_mindformers
from ms_mhc.interop.names import HF_NAMES, MINDFORMERS_NAMES, TRANSFORMERS_NAMES, TRANSFORMERS_SAVED_NAMES
from ms_mhc.interop.networks import load_hf, load_mindformers, save_hf, save_mindformers

__all__ = [
    "HF_NAMES",
    "MINDFORMERS_NAMES",
    "TRANSFORMERS_NAMES",
    "TRANSFORMERS_SAVED_NAMES",
    "from_hf",
    "from_mindformers",
    "load_hf",
    "load_mindformers",
    "model_from_hf",
    "model_from_mindformers",
    "model_to_hf",
    "model_to_mindformers",
    "save_hf",
    "save_mindformers",
    "to_hf",
    "to_mindformers",
]
