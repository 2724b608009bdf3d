"""A tiny DeepSeek-V4 of Hugging Face's Transformers: what it saves, what it computes, and what it reads.

Run as ``python transformers_program.py FOLDER``. FOLDER holds hyper-connections that this package saved, one
``NAMING.safetensors`` for each naming. Afterwards it holds ``model``, a checkpoint as ``save_pretrained`` writes it;
``computed.npz``, inputs and outputs of its layers; and for each naming ``NAMING.npz``, the hyper-connections of a model
that read them from such a file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

folder = Path(sys.argv[1])
config = DeepseekV4Config(
    vocab_size=16,
    hidden_size=6,
    moe_intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    head_dim=8,
    q_lora_rank=8,
    num_experts_per_tok=1,
    n_routed_experts=2,
    o_groups=1,
    o_lora_rank=4,
    index_n_heads=2,
    index_head_dim=8,
    index_topk=2,
    sliding_window=4,
    layer_types=["sliding_attention"] * 2,
    mlp_layer_types=["moe"] * 2,
    hc_mult=4,
    hc_sinkhorn_iters=5,
    hc_eps=1e-3,
    rms_norm_eps=1e-4,
    max_position_embeddings=64,
)
torch.manual_seed(0)
model = DeepseekV4ForCausalLM(config).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "_hc." in name or "hc_head" in name:
            parameter.normal_(std=0.3 if "fn" in name else 1.0)
    model.save_pretrained(folder / "model")
    hidden = torch.randn(2, 3, config.hc_mult, config.hidden_size)
    computed = {"hidden": hidden, "head": model.model.hc_head(hidden)}
    for i, layer in enumerate(model.model.layers):
        for part, connection in (("attn", layer.attn_hc), ("ffn", layer.ffn_hc)):
            post, comb, collapsed = connection(hidden)
            computed.update({f"{i}.{part}.post": post, f"{i}.{part}.comb": comb, f"{i}.{part}.collapsed": collapsed})
np.savez(folder / "computed.npz", **{name: value.numpy() for name, value in computed.items()})

others = {name: value for name, value in load_file(folder / "model/model.safetensors").items() if "hc" not in name}
for ours in sorted(folder.glob("*.safetensors")):
    read = folder / f"read_{ours.stem}"
    read.mkdir()
    shutil.copy(folder / "model/config.json", read)
    save_file({**others, **load_file(ours)}, read / "model.safetensors", metadata={"format": "pt"})
    again = DeepseekV4ForCausalLM.from_pretrained(read)
    parameters = {name: value for name, value in again.named_parameters() if "_hc." in name or "hc_head" in name}
    np.savez(ours.with_suffix(".npz"), **{name: value.detach().numpy() for name, value in parameters.items()})
