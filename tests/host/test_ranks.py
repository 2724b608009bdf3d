"""One rank of several, compiled in simulation: which collectives a training step has, and what it computes on."""

from __future__ import annotations

import subprocess
import sys
from typing import List

import pytest
from conftest import ROOT, Host
from graphs import Graph, Shape

LAYOUTS = ROOT / "tests/parallel_program_layouts.py"
SCALE: Shape = (64,)  # in front of the connections
CONNECTION: List[Shape] = [(24, 256), (3,), (24,), (64,)]  # phi, alpha, bias, and the weight of the branch
PARAMETERS: List[Shape] = [SCALE, *CONNECTION * 2]


def compiled(host: Host, ranks: int, rank: int, *arguments: str) -> Graph:
    graphs = host.folder / "graphs"
    command = [sys.executable, "-m", "aclnn_adapter.host", "--ranks", str(ranks), "--rank", str(rank), str(LAYOUTS)]
    done = subprocess.run(
        [*command, *arguments, "--graphs", str(graphs)],
        cwd=host.folder,
        env=host.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return Graph(graphs)


def weights(shapes: List[Shape]) -> List[Shape]:
    """Without the scalars, which belong to the loss."""
    return sorted(shape for shape in shapes if shape)


def test_the_soc_is_known_in_simulation(host: Host) -> None:
    program = """
import mindspore as ms
from mindspore.communication import get_group_size, get_rank, init

from aclnn_adapter import platform

ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
init()
print("SOC", platform.soc_version(), get_rank(), get_group_size())
"""
    done = host.run(program, "--ranks", "4", "--rank", "3", "--soc", "Ascend910B1")
    assert "SOC ascend910b 3 4" in done.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rank", "1"], "--rank says which one of --ranks, which is missing"),
        (["--ranks", "0"], "--ranks 0: a whole number from 1 on is needed"),
        (["--ranks", "2", "--rank", "2"], "--rank 2 is not one of 0 to 1 (--ranks 2)"),
    ],
)
def test_ranks_that_do_not_exist_are_refused(arguments: List[str], complaint: str) -> None:
    command = [sys.executable, "-m", "aclnn_adapter.host", *arguments, "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("split", "tokens"),
    [(["--batch", "2"], (2, 8)), (["--batch", "2", "--sequence", "2"], (2, 4))],
    ids=["batch", "batch and sequence"],
)
def test_every_parameter_gets_one_all_reduce(host: Host, split: List[str], tokens: Shape) -> None:
    """And the kernels compute on the tokens of their rank: no rank gathers those of another one."""
    graph = compiled(host, 2 ** (len(split) // 2), 1, "--bfloat16", *split)
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == []
    h_in, h_res, x_next = (*tokens, 64), (*tokens, 4, 4), (*tokens, 4, 64)
    forward, backward = [h_in, h_res, x_next], [x_next, h_res, x_next]
    assert graph.outputs("Custom") == forward * 2 + backward * 2


def test_a_cell_with_its_own_bprop_gets_no_all_reduce(host: Host) -> None:
    """Why the operators are no such cells under semi_auto_parallel: only the scale before them gets its sum."""
    assert weights(compiled(host, 2, 0, "--cell", "--sequence", "2").outputs("AllReduce")) == [SCALE]


def test_recompute_repeats_the_branch_and_no_collective(host: Host) -> None:
    """MindSpore does not repeat what a Morph stands for: the kernels run once."""
    graph = compiled(host, 2, 0, "--bfloat16", "--sequence", "2", "--recompute")
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == []
    assert len(graph.outputs("Tanh")) == 2 * 2
    assert len(graph.outputs("Custom")) == 2 * (3 + 3)


def test_optimizer_sharding_scatters_the_gradients(host: Host) -> None:
    """Parameters whose first dimension the ranks do not divide stay whole: alpha."""
    graph = compiled(host, 2, 0, "--sequence", "2", "--shard-optimizer")
    whole, divided = [(3,)] * 2, [shape for shape in PARAMETERS if shape != (3,)]
    assert weights(graph.outputs("AllReduce")) == whole
    assert weights(graph.outputs("AllGather")) == sorted(divided)
    assert weights(graph.outputs("ReduceScatter")) == sorted((s[0] // 2, *s[1:]) for s in divided)


@pytest.mark.parametrize(("rank", "parameters"), [(0, [SCALE, *CONNECTION]), (3, CONNECTION)])
def test_pipeline_stages_hand_on_the_streams(host: Host, rank: int, parameters: List[Shape]) -> None:
    graph = compiled(host, 4, rank, "--sequence", "2", "--stages", "2")
    assert weights(graph.outputs("AllReduce")) == sorted(parameters)
    part_of_a_micro_batch = (2, 4, 4, 64)
    assert graph.outputs("Send") == graph.outputs("Receive") == [part_of_a_micro_batch] * 2


def test_auto_parallel_sums_the_gradients_too(host: Host) -> None:
    graph = compiled(host, 2, 0, "--sequence", "2", "--search")
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == []
