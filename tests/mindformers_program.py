"""The hyper-connections of a real MindSpore Transformers on the CPU: a file that they save, and what they compute.

Run as ``python mindformers_program.py PACKAGE OUT ITERATIONS``. PACKAGE is a folder into which the package was
installed, without what it depends on. OUT afterwards holds ``model.safetensors``, as their trainer saves one (through
MindSpore), and ``computed.npz``, inputs and outputs.

Of the package, only the files of the classes and what they import are run, not the ``__init__`` of its folders, which
import everything else. ``hyper_parallel`` is on no package index; for one process only the name DTensor is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

STREAMS, HIDDEN, LAYERS = 4, 6, 2
FOLDERS = (
    "core",
    "models",
    "modules",
    "parallel_core",
    "parallel_core.utils",
    "pynative",
    "pynative.layers",
    "pynative.transformers",
    "tools",
    "tools.register",
    "utils",
)


def without_init(package: Path) -> None:
    for name in ("mindformers", *(f"mindformers.{folder}" for folder in FOLDERS)):
        module = types.ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")))]
        sys.modules[name] = module
    parallel: Any = types.ModuleType("hyper_parallel")
    parallel.DTensor = type("DTensor", (), {})
    sys.modules["hyper_parallel"] = parallel
    if importlib.util.find_spec("regex") is None:
        sys.modules["regex"] = re


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    """ops.rms_norm, which has no kernel on the CPU."""
    return (x * ops.rsqrt((x * x).mean(-1, True) + eps) * weight,)


def main(package: Path, out: Path, iterations: int) -> None:
    without_init(package)
    config_module = importlib.import_module("mindformers.parallel_core.transformer_config")
    classes = importlib.import_module("mindformers.pynative.transformers.hyper_connection")
    config = config_module.TransformerConfig(
        num_layers=LAYERS,
        num_attention_heads=2,
        hidden_size=HIDDEN,
        ffn_hidden_size=HIDDEN,
        params_dtype="fp32",
        compute_dtype="fp32",
        layernorm_compute_dtype="fp32",
        enable_hyper_connections=True,
        num_residual_streams=STREAMS,
        mhc_sinkhorn_iterations=iterations,
        mhc_layernorm_epsilon=1e-4,
    )

    class Layer(nn.Cell):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.attn_hc = classes.HyperConnectionModule(config=config, layer_number=number)
            self.ffn_hc = classes.HyperConnectionModule(config=config, layer_number=number)

    class Decoder(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([Layer(number) for number in range(LAYERS)])
            if hasattr(classes, "HyperConnectionHead"):
                self.hc_head = classes.HyperConnectionHead(config)

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder()

    model, rng = Model(), np.random.default_rng(0)
    for name, parameter in model.parameters_and_names():
        scale = 0.3 if name.endswith("weight") else 1.0
        value = np.ones(parameter.shape) if "rms_weight" in name else rng.normal(0, scale, parameter.shape)
        parameter.set_data(Tensor(value.astype(np.float32)))
    hidden = Tensor(rng.normal(size=(3, 2, STREAMS * HIDDEN)).astype(np.float32))
    branch = Tensor(rng.normal(size=(3, 2, HIDDEN)).astype(np.float32))
    computed = {"hidden": hidden, "branch": branch}
    for i, layer in enumerate(model.decoder.layers):
        for part, module in (("attn", layer.attn_hc), ("ffn", layer.ffn_hc)):
            module.rms_norm = rms_norm
            aggregated, h_res, h_post = module(hidden)
            computed[f"{i}.{part}.aggregated"] = aggregated
            computed[f"{i}.{part}.streams"] = module.output_cell(h_res, h_post, hidden, branch)
    if hasattr(model.decoder, "hc_head"):
        computed["head"] = model.decoder.hc_head(hidden)
    np.savez(out / "computed.npz", **{name: value.asnumpy() for name, value in computed.items()})
    ms.save_checkpoint(model, str(out / "model"), format="safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
