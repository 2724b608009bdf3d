"""Collectives between processes: every operation against NumPy, and what happens when ranks disagree or end."""

from __future__ import annotations

from conftest import Host

_COMMON = """
import ctypes, sys, time
import ml_dtypes
import numpy as np
from hccl_ranks import *
"""


def test_reductions_in_every_dtype_equal_numpy(host: Host) -> None:
    """Also: every rank has the same bits, and the order is that of the ranks, whoever came first."""
    host.run(
        _COMMON
        + """
RANKS, SIZE = 3, 1000
names = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

def of(rank, dtype):
    rng = np.random.default_rng(rank)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    floating = kind.kind == "f" or dtype == "bfloat16"
    return rng.normal(size=SIZE).astype(kind) if floating else rng.integers(0, 120, SIZE).astype(kind)

def work(group):
    time.sleep(0.05 * (group.ranks - group.rank))  # the last rank comes first
    reduced = lambda dtype, op: group.all_reduce(of(group.rank, dtype), op, in_place=op == "max")
    return {(dtype, op): reduced(dtype, op) for dtype in DTYPES for op in names}

results = run(RANKS, work)
for (dtype, op), found in results[0].items():
    parts = [of(rank, dtype) for rank in range(RANKS)]
    if dtype in ("float16", "bfloat16"):
        parts = [part.astype(np.float32) for part in parts]
    expected = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            expected = names[op](expected, part)
    assert found.tobytes() == expected.astype(found.dtype).tobytes(), (dtype, op)
    assert all(found.tobytes() == other[dtype, op].tobytes() for other in results), (dtype, op)
"""
    )


def test_moving_collectives_put_everything_in_its_place(host: Host) -> None:
    host.run(
        _COMMON
        + """
RANKS = 4
own = lambda rank: np.arange(6, dtype=np.float32) + 100 * rank
FLOAT = DTYPES["float32"]
empty = lambda *shape: Memory(np.full(shape, -1, np.float32))
n = ctypes.c_uint64

def work(group):
    rank, results = group.rank, {}
    def keep(name, memory):
        results[name] = memory.numpy()
    mine, out = Memory(own(rank)), empty(RANKS * 6)
    group.call("HcclAllGather", mine, out, n(6), FLOAT)
    keep("gather", out)
    all_of_it, out = Memory(np.concatenate([own(rank) + 1000 * to for to in range(RANKS)])), empty(6)
    group.call("HcclReduceScatter", all_of_it, out, n(6), FLOAT, REDUCTIONS["sum"])
    keep("reduce_scatter", out)
    data = Memory(own(rank))
    group.call("HcclBroadcast", data, n(6), FLOAT, 2)
    keep("broadcast", data)
    out = empty(6)
    group.call("HcclReduce", mine, out, n(6), FLOAT, REDUCTIONS["max"], 1)
    keep("reduce", out)
    out = empty(6)
    group.call("HcclScatter", all_of_it, out, n(6), FLOAT, 3)
    keep("scatter", out)
    out = empty(RANKS * 6)
    group.call("HcclAlltoAll", all_of_it, n(6), FLOAT, out, n(6), FLOAT)
    keep("all_to_all", out)
    sent, got = [rank + 1] * RANKS, [peer + 1 for peer in range(RANKS)]
    starts = lambda sizes: counts(*np.cumsum([0, *sizes[:-1]]).tolist())
    out = empty(sum(got))
    arguments = (all_of_it, counts(*sent), starts(sent), FLOAT, out, counts(*got), starts(got), FLOAT)
    group.call("HcclAlltoAllV", *arguments)
    keep("all_to_all_v", out)
    out = empty(sum(got))
    matrix = counts(*[peer + 1 for peer in range(RANKS) for _ in range(RANKS)])
    group.call("HcclAlltoAllVC", all_of_it, matrix, FLOAT, out, FLOAT)
    keep("all_to_all_vc", out)
    out = empty(sum(got))
    group.call("HcclAllGatherV", mine, n(rank + 1), out, counts(*got), starts(got), FLOAT)
    keep("gather_v", out)
    out = empty(rank + 1)
    arguments = (all_of_it, counts(*got), starts(got), out, n(rank + 1), FLOAT, REDUCTIONS["min"])
    group.call("HcclReduceScatterV", *arguments)
    keep("reduce_scatter_v", out)
    group.call("HcclBarrier")
    return results

for rank, found in enumerate(run(RANKS, work)):
    everything = [np.concatenate([own(r) + 1000 * to for to in range(RANKS)]) for r in range(RANKS)]
    first = lambda peer, size: everything[peer][:size]
    expected = {
        "gather": np.concatenate([own(r) for r in range(RANKS)]),
        "reduce_scatter": sum(own(r) + 1000 * rank for r in range(RANKS)),
        "broadcast": own(2),
        "reduce": own(3) if rank == 1 else np.full(6, -1),
        "scatter": own(3) + 1000 * rank,
        "all_to_all": np.concatenate([own(r) + 1000 * rank for r in range(RANKS)]),
        "all_to_all_v": np.concatenate([everything[p][rank * (p + 1):(rank + 1) * (p + 1)] for p in range(RANKS)]),
        "gather_v": np.concatenate([own(p)[: p + 1] for p in range(RANKS)]),
        "reduce_scatter_v": everything[0][sum(range(rank + 1)) : sum(range(rank + 2))],
    }
    expected["all_to_all_vc"] = expected["all_to_all_v"]
    for name, values in expected.items():
        assert np.array_equal(found[name], values), (rank, name, found[name], values)
"""
    )


def test_messages_between_two_ranks_keep_their_order_and_pass_collectives(host: Host) -> None:
    host.run(
        _COMMON
        + """
BIG = 1 << 20  # more than a socket takes in before the other side reads

class Item(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("buf", ctypes.c_void_p), ("count", ctypes.c_uint64),
                ("dtype", ctypes.c_int), ("remote", ctypes.c_uint32)]

def work(group):
    n, kind, other = ctypes.c_uint64, DTYPES["int32"], 1 - group.rank
    message = lambda k: Memory(np.full(BIG, 10 * group.rank + k, np.int32))
    for k in range(3):
        group.call("HcclSend", message(k), n(BIG), kind, other)  # both send before either receives
    total = group.all_reduce(np.ones(5, np.float32))
    came = []
    for _ in range(3):
        room = Memory(np.zeros(BIG, np.int32))
        group.call("HcclRecv", room, n(BIG), kind, other)
        came.append(set(room.numpy().tolist()))
    out, room = message(7), Memory(np.zeros(BIG, np.int32))
    items = (Item * 2)(Item(1, room.address, BIG, kind, other), Item(0, out.address, BIG, kind, other))
    group.call("HcclBatchSendRecv", items, 2)
    return came, room.numpy()[-1], total.tolist()

for rank, result in enumerate(run(2, work)):
    other = 10 * (1 - rank)
    assert result == ([{other}, {other + 1}, {other + 2}], other + 7, [2.0] * 5), result
"""
    )


def test_ranks_that_disagree_are_told_what_each_called(host: Host) -> None:
    host.run(
        _COMMON
        + """
def disagree(first, second):
    return run(2, lambda group: (first, second)[group.rank](group))

def says(result, status, *words):
    assert result is not None and result[0] == status and all(word in result[1] for word in words), result

ones = lambda size, dtype=np.float32: np.ones(size, dtype)
gather = lambda group: group.call(
    "HcclAllGather", Memory(ones(4)), Memory(ones(8)), ctypes.c_uint64(4), DTYPES["float32"]
)
one, two = disagree(lambda g: g.all_reduce(ones(4)), lambda g: g.all_reduce(ones(5)))
says(one, WRONG_PARAMETER, "rank 0 called HcclAllReduce of 4 float32 (sum), rank 1 HcclAllReduce of 5 float32 (sum)")
one, two = disagree(lambda g: g.all_reduce(ones(4)), lambda g: g.all_reduce(ones(4, np.int32)))
says(two, WRONG_PARAMETER, "rank 1 called HcclAllReduce of 4 int32 (sum), rank 0 HcclAllReduce of 4 float32 (sum)")
one, two = disagree(lambda g: g.all_reduce(ones(4)), gather)
says(one, WRONG_PARAMETER, "HcclAllReduce of 4 float32 (sum), rank 1 HcclAllGather of 4 float32")
one, two = disagree(lambda g: g.all_reduce(ones(4), "max"), lambda g: g.all_reduce(ones(4), "min"))
says(one, WRONG_PARAMETER, "(max)", "(min)")

def misuse(group):
    messages = []
    outside = ctypes.c_void_p(np.ones(4, np.float32).ctypes.data)
    for arguments in [
        ("HcclBroadcast", outside, ctypes.c_uint64(4), DTYPES["float32"], 0),
        ("HcclBroadcast", Memory(ones(4)), ctypes.c_uint64(4), 77, 0),
        ("HcclBroadcast", Memory(ones(4)), ctypes.c_uint64(4), DTYPES["float32"], 9),
        ("HcclSend", Memory(ones(4)), ctypes.c_uint64(4), DTYPES["float32"], group.rank),
    ]:
        try:
            group.call(*arguments)
        except Failed as failed:
            messages.append(failed.args[1])
    return messages

for messages in run(2, misuse):
    words = "is not 16 bytes of device memory", "data type 77 is not served", "there are 2 ranks", "is not another one"
    assert len(messages) == 4 and all(word in m for word, m in zip(words, messages)), messages
"""
    )


def test_a_rank_that_ends_ends_the_others_waiting(host: Host) -> None:
    """At once, with words, and nothing of it is left on the machine."""
    host.environment["HCCL_EXEC_TIMEOUT"] = "3"
    host.run(
        _COMMON
        + """
def killed(group):
    group.all_reduce(np.ones(4, np.float32))
    if group.rank == 1:
        die()
    start = time.monotonic()
    try:
        group.all_reduce(np.ones(1 << 20, np.float32))
    except Failed as failed:
        return failed.args, time.monotonic() - start

first, second, third = run(3, killed)
assert second is None
for (status, words), seconds in (first, third):
    assert status == REMOTE_ENDED and "has ended; rank" in words and "HcclAllReduce of 1048576 float32" in words, words
    assert seconds < 2
assert "rank 1 has ended" in first[0][1]  # it asks rank 1 first; rank 2 may hear of rank 0's end before

def forgotten(group):
    if group.rank == 1:
        time.sleep(5)
        return None
    assert open_sockets(root) != []
    return group.all_reduce(np.ones(4, np.float32))

root = new_root()
status, words = run(2, forgotten, root=root)[0]
assert status == TIMEOUT and "has waited 3 seconds (HCCL_EXEC_TIMEOUT) for rank 1" in words, words
assert open_sockets(root) == []
"""
    )


def test_a_rank_that_never_comes_is_named(host: Host) -> None:
    host.environment["HCCL_CONNECT_TIMEOUT"] = "1"
    host.run(
        _COMMON
        + """
root = new_root()
def alone(rank, ranks):
    try:
        Group(root, rank, ranks)
    except Failed as failed:
        return failed.args

status, words = alone(1, 2)
assert status == TIMEOUT and "rank 1 of 2: rank 0 has not come after 1 seconds (HCCL_CONNECT_TIMEOUT)" in words, words
status, words = alone(0, 2)
assert status == TIMEOUT and "rank 0 of 2: 1 of the ranks above it have not come" in words, words
status, words = alone(2, 2)
assert status == WRONG_PARAMETER and "rank 2 of 2 ranks" in words, words
root = ctypes.create_string_buffer(4108)
status, words = alone(0, 2)
assert status == WRONG_PARAMETER and "not the root information of HcclGetRootInfo" in words, words
"""
    )
