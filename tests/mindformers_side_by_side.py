"""MindSpore Transformers' hyper-connections and those that ``apply`` puts in their place, in one process.

Run as ``python mindformers_side_by_side.py PACKAGE OUT DEVICE``. PACKAGE is a folder into which one version was
installed. OUT gets, for every case, the loss and all gradients, by ``CASE/WHOSE/NAME``.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any, Callable, Dict

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_mhc.integrations import mindformers as integration
from tests import hyper_parallel_double
from tests.mindformers_program import without_init

N, S, B = 4, 6, 2
H = 128  # what the kernels take
PLACES = {
    "layer": "mindformers.pynative.transformers.transformer_layer",
    "classes": "mindformers.pynative.transformers.hyper_connection",
    "specs": "mindformers.pynative.base_models.gpt.gpt_layer_specs",
}


def theirs_importable(package: Path) -> str:
    """Their classes without what the rest of the package needs; returns the version."""
    without_init(package)
    del sys.modules["hyper_parallel"]
    hyper_parallel_double.install()
    text = (package / "mindformers/__init__.py").read_text()
    version = text.split('__version__ = "')[1].split('"')[0]
    sys.modules["mindformers"].__version__ = version  # type: ignore[attr-defined]
    if version == "2.1.0":  # all models' layers are specified there; what counts here is where the head is looked up
        specs: Any = types.ModuleType(PLACES["specs"])
        specs.HyperConnectionHead = importlib.import_module(PLACES["classes"]).HyperConnectionHead
        for name in ("mindformers.pynative.base_models", "mindformers.pynative.base_models.gpt"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules[PLACES["specs"]] = specs
    return version


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    """ops.rms_norm, which has no kernel on the CPU."""
    return (x * ops.rsqrt((x * x).mean(-1, True) + eps) * weight,)


class Sublayer(nn.Cell):
    """In the place of attention and of the feed-forward network."""

    def __init__(self, config: Any, layer_number: int = 1, **_: Any) -> None:
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(config.hidden_size, np.float32)), name="scale")

    def construct(self, x: Tensor, input_ids: Any = None, **_: Any) -> Tensor:
        return ops.cast(ops.tanh(ops.cast(x, ms.float32) * self.scale), x.dtype)


class Attention(Sublayer):
    def construct(
        self, x: Tensor, attention_mask: Any = None, rotary_pos_emb: Any = None, prefix_keys_values: Any = None,
        actual_seq_len: Any = None, mscale: float = 1.0, rotary_cos_sin: Any = None,
    ) -> Tensor:  # fmt: skip
        return ops.cast(ops.tanh(ops.cast(x, ms.float32) * self.scale), x.dtype)


class NoNorm(nn.Cell):
    def __init__(self, **_: Any) -> None:
        super().__init__()

    def construct(self, x: Tensor) -> Tensor:
        return x


class One(nn.Cell):
    """One connection around a sublayer."""

    def __init__(self, connection: nn.Cell, config: Any) -> None:
        super().__init__()
        self.hc = connection
        self.sublayer = Sublayer(config)

    def construct(self, x: Tensor) -> Tensor:
        aggregated, h_res, h_post = self.hc(x)
        return self.hc.output_cell(h_res, h_post, x, self.sublayer(aggregated))


class Alone(nn.Cell):
    """One connection around nothing, so that what is counted or measured is the connection's."""

    def __init__(self, connection: nn.Cell) -> None:
        super().__init__()
        self.hc = connection

    def construct(self, x: Tensor) -> Tensor:
        aggregated, h_res, h_post = self.hc(x)
        return self.hc.output_cell(h_res, h_post, x, aggregated)


class Layer(nn.Cell):
    """Their layer: two connections."""

    def __init__(self, layer: nn.Cell) -> None:
        super().__init__()
        self.layer = layer

    def construct(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Bench:
    """What all cases share."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.dtype = "fp32" if device == "CPU" else "bf16"
        self.layer, self.classes = (importlib.import_module(PLACES[key]) for key in ("layer", "classes"))
        self.config_class = importlib.import_module("mindformers.parallel_core.transformer_config").TransformerConfig
        self.specs = sys.modules.get(PLACES["specs"])
        self.results: Dict[str, np.ndarray] = {}

    def config(self, **changed: Any) -> Any:
        settings = {
            "num_layers": 1, "num_attention_heads": 2, "hidden_size": H, "ffn_hidden_size": H, "params_dtype": "fp32",
            "compute_dtype": self.dtype, "layernorm_compute_dtype": "fp32", "hidden_dropout": 0.0,
            "enable_hyper_connections": True, "num_residual_streams": N, **changed,
        }  # fmt: skip
        return self.config_class(**settings)

    def build(self, kind: str, config: Any, rms_weight: bool = False) -> nn.Cell:
        """A network with drawn parameters."""
        if kind == "layer":
            parts = self.layer.TransformerLayerSubmodules(
                input_layernorm=NoNorm, self_attention=Attention, pre_mlp_layernorm=NoNorm, mlp=Sublayer
            )
            network: nn.Cell = Layer(self.layer.HyperConnectionTransformerLayer(config, parts, layer_number=0))
        elif kind == "head":
            network = self.specs.HyperConnectionHead(config)
        else:
            name = "FusedHyperConnectionModule" if config.use_fused_mhc else "HyperConnectionModule"
            network = One(getattr(self.layer, name)(config=config, layer_number=0), config)
        rng = np.random.default_rng(7)
        for name, parameter in sorted(network.parameters_and_names()):
            drawn = rng.normal(0, 0.3, parameter.shape)
            if "rms_weight" in name:
                drawn = 1 + drawn if rms_weight else np.ones(parameter.shape)
            parameter.set_data(Tensor(drawn.astype(np.float32)))
        if self.device == "CPU":
            for _, cell in network.cells_and_names():
                if hasattr(cell, "rms_norm"):
                    cell.rms_norm = rms_norm
        return network

    def run(self, case: str, whose: str, network: nn.Cell, way: str) -> None:
        """Loss and gradients: a way is "pynative", "graph", "jit", or "backward" for loss.backward()."""
        rng = np.random.default_rng(1)
        x, w = (Tensor(rng.normal(size=(S, B, N * H)).astype(np.float32)) for _ in range(2))
        x, parameters = (
            x.astype(getattr(ms, {"fp32": "float32", "bf16": "bfloat16"}[self.dtype])),
            network.trainable_params(),
        )

        def loss_of(x: Tensor) -> Tensor:
            out = ops.cast(network(x), ms.float32)
            return (out * w[..., : out.shape[-1]]).sum()

        ms.set_context(mode=ms.GRAPH_MODE if way == "graph" else ms.PYNATIVE_MODE)
        try:
            if way == "backward":
                hyper_parallel_double.enable_backward()
                for parameter in parameters:
                    parameter.requires_grad, parameter.grad = True, None
                loss = loss_of(x)
                loss.backward()
                gradients = [parameter.grad for parameter in parameters]
            else:
                function = ms.value_and_grad(loss_of, 0, parameters)
                loss, (of_x, gradients) = (ms.jit(function) if way == "jit" else function)(x)
                self.results[f"{case}/{way}/{whose}/x"] = of_x.astype(ms.float32).asnumpy()
        except RuntimeError as error:
            self.results[f"{case}/{way}/{whose}/failed"] = np.array(str(error)[:500])
            return
        self.results[f"{case}/{way}/{whose}/loss"] = loss.asnumpy()
        for parameter, gradient in zip(parameters, gradients):
            self.results[f"{case}/{way}/{whose}/{parameter.name}"] = gradient.astype(ms.float32).asnumpy()


def module_dicts() -> Dict[str, Dict[str, Any]]:
    return {
        name: dict(vars(module))
        for name, module in sys.modules.items()
        if name.startswith("mindformers") and not name.startswith("ms_mhc")
    }


def same(before: Dict[str, Any], after: Dict[str, Any]) -> bool:
    return list(before) == list(after) and all(
        list(before[m]) == list(after[m]) and all(before[m][k] is after[m][k] for k in before[m]) for m in before
    )


def main(package: Path, out: Path, device: str) -> None:
    version = theirs_importable(package)
    ms.set_context(device_target=device, jit_config={"jit_level": "O0"})
    bench = Bench(device)
    before = module_dicts()
    integration.apply()
    first = {name: getattr(bench.layer, name) for name in ("HyperConnectionModule", "FusedHyperConnectionModule")}
    if bench.specs:
        first["HyperConnectionHead"] = bench.specs.HyperConnectionHead
    integration.apply()
    facts: Dict[str, Any] = {"version": version, "replaced": [c.__name__ for c in first.values()]}
    facts["subclasses"] = all(
        issubclass(c, getattr(bench.classes, name)) and c is not getattr(bench.classes, name)
        for name, c in first.items()
    )
    integration.undo()
    facts["undone"] = same(before, module_dicts())

    cases: Dict[str, Callable[[], nn.Cell]] = {
        "module": lambda: bench.build("module", bench.config()),
        "rms_weight": lambda: bench.build("module", bench.config(), rms_weight=True),
        "layer": lambda: bench.build("layer", bench.config()),
    }
    if version == "2.1.0":
        cases["no iterations"] = lambda: bench.build("module", bench.config(mhc_sinkhorn_iterations=0))
        cases["head"] = lambda: bench.build("head", bench.config())
    names: Dict[str, Any] = {}
    for whose in ("theirs", "ours", "ours apart"):
        if whose != "theirs":
            integration.apply(share_residual=whose == "ours")
        for case, build in cases.items():
            if whose == "ours apart" and case != "module":
                continue
            ways = ("pynative", "graph", "jit") if case in ("module", "layer") else ("pynative",)
            for way in ways:
                network = build()
                bench.run(case, whose, network, way)
                names.setdefault(whose, {})[case] = {p.name: list(p.shape) for p in network.get_parameters()}
        integration.undo()
    integration.apply()
    if version == "2.1.0":  # theirs needs the kernel
        bench.run("fused", "ours", bench.build("module", bench.config(use_fused_mhc=True)), "pynative")
    bench.run("layer", "ours", cases["layer"](), "backward")
    facts["names"] = names
    np.savez(out / "results.npz", **bench.results)
    (out / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
