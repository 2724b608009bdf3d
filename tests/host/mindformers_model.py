"""A whole DeepSeek-V4 of MindSpore Transformers 2.1.0, two layers with a mixture of experts, trained as they train.

Run on the host CANN: ``mindformers_model.py BACKEND...``. Losses of three steps and the gradients of the first, for
theirs in float32 and bfloat16 and for ours with each backend, go to ``model.npz`` in the current folder. Nothing of
theirs is replaced but what ``apply`` replaces; ``hyper_parallel`` is the stand-in of the tests.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict, List

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_mhc.integrations import mindformers as integration
from tests import hyper_parallel_double

SEQUENCE, VOCABULARY, BATCH, STEPS, RATE = 16, 128, 2, 3, 0.02
LEFT_AS_BUILT = ("tokens_per_expert", "rms_weight", "q_rms_gamma", "ape", "norm")


def config(classes: Any, dtype: str) -> Any:
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2,
        "num_nextn_predict_layers": 0, "num_attention_heads": 4, "head_dim": 32, "v_head_dim": 32, "q_lora_rank": 32,
        "qk_rope_head_dim": 16, "o_lora_rank": 16, "o_groups": 2, "index_n_heads": 4, "index_head_dim": 32,
        "index_topk": 8, "num_hash_layers": 0, "compress_ratios": [0, 0], "sliding_window": 8,
        "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "max_position_embeddings": 64, "seq_length": SEQUENCE, "original_max_position_embeddings": 64,
    }  # fmt: skip
    dtypes = {
        "compute_dtype": dtype, "params_dtype": dtype, "layernorm_compute_dtype": "float32",
        "rotary_dtype": "float32", "moe_router_dtype": "float32",
    }  # fmt: skip
    choices = {
        "moe_router_fusion": False, "moe_permute_fusion": False, "moe_grouped_gemm": True, "use_flash_attention": True,
        "position_embedding_type": "yarn", "rotary_scaling_factor": 16, "mscale": 1, "mscale_all_dim": 1,
        "apply_rope_fusion": False, "apply_dsa_kernel_fusion": False, "swiglu_limit": None,
        "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0, "moe_router_enable_expert_bias": False,
        "use_attn_mask_compression": False, "csa_dense_mode": False, "dsa_indexer_loss_coeff": 0.0,
        "dsa_indexer_use_sparse_loss": True,
    }  # fmt: skip
    return classes.DeepseekV4Config(**sizes, **dtypes, **choices)


def fill(model: nn.Cell) -> None:
    """Parameters as bfloat16 has them, so that both dtypes start from the same."""
    rng = np.random.default_rng(5)
    for _, cell in model.cells_and_names():
        if hasattr(cell, "reset_parameter"):
            cell.reset_parameter()
    for name, parameter in sorted(model.parameters_and_names()):
        drawn = Tensor(rng.normal(0, 0.1, parameter.shape).astype(np.float32)).astype(ms.bfloat16)
        if not any(part in name for part in LEFT_AS_BUILT):
            parameter.set_data(drawn.astype(parameter.dtype))


def build(dtype: str) -> nn.Cell:
    classes = importlib.import_module("mindformers.models.deepseek4")
    models = importlib.import_module("mindformers.models.deepseek4.modeling_deepseek_v4_pynative")
    model = models.PyNativeDeepseekV4ForCausalLM(config(classes, dtype))
    fill(model)
    return model.set_train(True)


def train(whose: str, model: nn.Cell, results: Dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(2)
    ids, labels = (Tensor(rng.integers(0, VOCABULARY, (BATCH, SEQUENCE)).astype(np.int32)) for _ in range(2))
    mask = Tensor(np.ones((BATCH, SEQUENCE), np.float32))
    parameters = model.trainable_params()
    for parameter in parameters:
        parameter.requires_grad = True
    losses: List[float] = []
    for step in range(STEPS):
        for parameter in parameters:
            parameter.grad = None
        out = model(input_ids=ids, labels=labels, loss_mask=mask)
        loss = (out[0] if isinstance(out, tuple) else out).sum()
        loss.backward()
        losses.append(float(loss.astype(ms.float32)))
        for parameter in parameters:
            gradient = parameter.grad.astype(ms.float32).asnumpy()
            if step == 0:
                results[f"{whose}/{parameter.name}"] = gradient
            parameter.set_data(Tensor(parameter.astype(ms.float32).asnumpy() - RATE * gradient).astype(parameter.dtype))
    results[f"{whose}/losses"] = np.array(losses)
    names = {type(cell).__name__ for _, cell in model.cells_and_names()}
    results[f"{whose}/classes"] = np.array(sorted(name for name in names if "HyperConnection" in name))


def main(backends: List[str]) -> None:
    hyper_parallel_double.install()
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend", pynative_synchronize=True)
    models = {"truth": build("float32"), "theirs": build("bfloat16")}
    for backend in backends:
        integration.apply(backend=backend)
        models[backend] = build("bfloat16")
        integration.undo()
    hyper_parallel_double.enable_backward()  # once parameters are filled: MindSpore then refuses to
    results: Dict[str, np.ndarray] = {}
    for whose, model in models.items():
        train(whose, model, results)
    np.savez("model.npz", **results)


if __name__ == "__main__":
    main(sys.argv[1:])
