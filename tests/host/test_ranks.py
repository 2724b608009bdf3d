"""One rank of several, compiled in simulation: which collectives a training step has, and what it computes on."""

from __future__ import annotations

import subprocess
import sys
from typing import Dict, List

import pytest
from conftest import ROOT, Host, host_in
from graphs import Graph, Shape

LAYOUTS = ROOT / "tests/parallel_program_layouts.py"
SCALE: Shape = (64,)  # of the embedding
CONNECTION: List[Shape] = [(24, 256), (3,), (24,), (64,), (64,)]  # phi, alpha, bias; query and key of the branch
GAMMA: Shape = (4, 64)  # of the first connection
HEAD: List[Shape] = [(4, 256), (1,), (4,)]  # phi, scale, bias
FIRST, SECOND = [SCALE, *CONNECTION, GAMMA], [*CONNECTION, *HEAD]
PARAMETERS = FIRST + SECOND

# by number of ranks and rank: these are compiled by one process, one after the other
CASES = {
    (2, 0): {
        "cell": ["--cell", "--sequence", "2"],
        "recompute": ["--bfloat16", "--sequence", "2", "--recompute"],
        "optimizer sharding": ["--sequence", "2", "--shard-optimizer"],
        "search": ["--sequence", "2", "--search"],
        "flat": ["--bfloat16", "--batch", "2", "--flat"],
    },
    (4, 3): {
        "batch and sequence": ["--bfloat16", "--batch", "2", "--sequence", "2"],
        "last stage": ["--sequence", "2", "--stages", "2"],
    },
    (4, 0): {"first stage": ["--sequence", "2", "--stages", "2"]},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Graph]:
    """The graphs of all cases."""
    hosts = {place: host_in(tmp_path_factory.mktemp("compiled")) for place in CASES}
    started = {place: start(hosts[place], *place, cases) for place, cases in CASES.items()}
    found = {}
    for place, process in started.items():
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output[-4000:]
        found.update({name: Graph(hosts[place].folder / name) for name in CASES[place]})
    return found


def start(host: Host, ranks: int, rank: int, cases: Dict[str, List[str]]) -> subprocess.Popen[str]:
    """A process that compiles these cases for one rank."""
    command = [sys.executable, "-m", "aclnn_adapter.host", "--ranks", str(ranks), "--rank", str(rank), str(LAYOUTS)]
    arguments = [a for name, case in cases.items() for a in ("+", *case, "--graphs", str(host.folder / name))]
    return subprocess.Popen(
        [*command, *arguments[1:]],
        cwd=host.folder,
        env=host.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def weights(shapes: List[Shape]) -> List[Shape]:
    """Without the scalars, which belong to the loss."""
    return sorted(shape for shape in shapes if shape)


def keys(*local: int) -> List[Shape]:
    """What the two branches gather of other ranks: the keys of a sequence, D wide."""
    return [(*local, 64)] * 2


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
    ("case", "tokens", "last", "gathered"),
    [("flat", (2, 4), (8,), []), ("batch and sequence", (2, 2), (2, 2), keys(4, 2))],
)
def test_every_parameter_gets_one_all_reduce(
    compiled: Dict[str, Graph], case: str, tokens: Shape, last: Shape, gathered: List[Shape]
) -> None:
    """And the kernels compute on the tokens of their rank: no rank gathers the streams of another one."""
    graph = compiled[case]
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == gathered
    forward, backward = [], []
    for t in (tokens, last):
        h_in, h_res, x_next = (*t, 64), (*t, 4, 4), (*t, 4, 64)
        forward += [h_in, h_res, x_next]
        backward = [x_next, h_res, x_next] + backward
    assert graph.outputs("Custom") == forward + backward
    assert graph.outputs("Tile")[:2] == [(*tokens, 4, 64), (*last, 4, 64)]  # the beginnings of the streams


def test_a_cell_with_its_own_bprop_gets_no_all_reduce(compiled: Dict[str, Graph]) -> None:
    """Why the operators are no such cells under semi_auto_parallel: only the scale before them gets its sum."""
    assert weights(compiled["cell"].outputs("AllReduce")) == [SCALE]


def test_recompute_repeats_the_branch_and_what_reads_the_streams(compiled: Dict[str, Graph]) -> None:
    """MhcPre, so that h_in is not kept. The rest of the kernels runs once: to MindSpore their backwards are no such."""
    graph = compiled["recompute"]
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == keys(8, 2) * 2
    assert len(graph.outputs("Tanh")) == 2 * 2
    shapes = graph.outputs("Custom")
    assert len(shapes) == 2 * (3 + 1 + 3)
    assert shapes.count((4, 2, 64)) == 2 * 2  # h_in of two connections, twice


def test_optimizer_sharding_scatters_the_gradients(compiled: Dict[str, Graph]) -> None:
    """Parameters whose first dimension the ranks do not divide stay whole: alpha, and the scale of the head."""
    graph = compiled["optimizer sharding"]
    whole = sorted(s for s in PARAMETERS if s[0] % 2)
    divided = [s for s in PARAMETERS if s[0] % 2 == 0]
    assert weights(graph.outputs("AllReduce")) == whole == [(1,), (3,), (3,)]
    assert sorted(graph.outputs("AllGather")) == sorted(divided + keys(8, 2))
    assert sorted(graph.outputs("ReduceScatter")) == sorted([(s[0] // 2, *s[1:]) for s in divided] + keys(4, 2))


@pytest.mark.parametrize(("case", "parameters"), [("first stage", FIRST), ("last stage", SECOND)])
def test_pipeline_stages_hand_on_the_streams(compiled: Dict[str, Graph], case: str, parameters: List[Shape]) -> None:
    graph = compiled[case]
    assert weights(graph.outputs("AllReduce")) == sorted(parameters)
    part_of_a_micro_batch = (2, 2, 4, 64)
    assert graph.outputs("Send") == graph.outputs("Receive") == [part_of_a_micro_batch] * 2


def test_auto_parallel_sums_the_gradients_too(compiled: Dict[str, Graph]) -> None:
    graph = compiled["search"]
    assert weights(graph.outputs("AllReduce")) == sorted(PARAMETERS)
    assert graph.outputs("AllGather") == keys(8, 2)
