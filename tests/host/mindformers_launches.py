"""Launches of one hyper-connection and one training step, theirs and ours, counted in this process's trace.

Run on the host CANN with ``--trace trace.jsonl``, in the folder of the trace: ``mindformers_launches.py PACKAGE``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_mhc.integrations import mindformers as integration
from tests import hyper_parallel_double
from tests.mindformers_side_by_side import Alone, Bench, theirs_importable

H = 4096


def launched() -> List[str]:
    calls = (json.loads(line) for line in Path("trace.jsonl").read_text().splitlines())
    return [call["operator"] for call in calls if call["phase"] == 2]


def step(net: nn.Cell, x: Tensor, way: str) -> List[str]:
    """What the second step of training launches."""
    parameters = net.trainable_params()
    sens = ops.ones_like(x)
    if way == "graph":
        run = ms.jit(
            ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)(net, parameters), jit_level="O0"
        )
    else:
        hyper_parallel_double.enable_backward()
        x.requires_grad = True
        for parameter in parameters:
            parameter.requires_grad = True

        def run(x: Tensor, sens: Tensor) -> Any:
            for tensor in (x, *parameters):
                tensor.grad = None
            net(x).backward(sens)

    before = 0
    for _ in range(2):
        before = len(launched())
        run(x, sens)
        ms.runtime.synchronize()
    return launched()[before:]


def main(package: Path) -> None:
    theirs_importable(package)
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend", jit_config={"jit_level": "O0"})
    bench = Bench("Ascend")
    config = bench.config(hidden_size=H)
    found: Dict[str, List[str]] = {}
    # graphs first: once tensors have backward(), MindSpore differentiates what a graph returns a second time
    for way in ("graph", "eager"):
        for whose, precision in (("theirs", None), ("ours", "float32"), ("ours", "hf32")):
            if precision:
                integration.apply(precision=precision, head=False)
            net = Alone(bench.layer.HyperConnectionModule(config=config, layer_number=0))
            integration.undo()
            rng = np.random.default_rng(0)
            for name, parameter in net.parameters_and_names():
                value = np.ones(parameter.shape) if "rms_weight" in name else rng.normal(0, 0.02, parameter.shape)
                parameter.set_data(Tensor(value.astype(np.float32)))
            x = Tensor(rng.normal(size=(2, 1, 4 * H)).astype(np.float32)).astype(ms.bfloat16)
            found[" ".join(filter(None, (whose, precision, way)))] = step(net, x, way)
    Path("launches.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
