"""The operators that MindSpore Transformers' models call beside the usual ones, through MindSpore, against NumPy."""

from __future__ import annotations

import pytest
from conftest import Host

_PROGRAM = """
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import GroupedMatmul
ms.set_context(device_target="Ascend", mode=1)
rng = np.random.default_rng(0)
A, M, W = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 5), (6, 4), (3, 4, 5)))
I = rng.permutation(12).astype(np.int64).reshape(3, 4)
a, m, w, i = (Tensor(t) for t in (A, M, W, I))
BIG = np.array([2**53 - 1, 2**53 - 3, 5], np.int64)

def check(name, got, want, **tolerance):
    got = got.asnumpy() if isinstance(got, Tensor) else got
    close = np.allclose(got, want, **{"rtol": 2e-5, "atol": 1e-6, **tolerance})
    assert got.shape == want.shape and close, (name, got, want)

values, places = mint.topk(a, 2, dim=1)
order = np.argsort(-A, axis=1, kind="stable")
check("topk", values, np.take_along_axis(A, order, 1)[:, :2])
check("topk indices", places, order[:, :2])
check("smallest", mint.topk(a, 3, dim=-1, largest=False)[0], np.sort(A, -1)[..., :3])
check("gradient of topk", ms.grad(lambda t: (mint.topk(t, 2, dim=1)[0] * 3).sum())(a),
      3.0 * (A >= np.sort(A, 1)[:, -2:-1]))
check("argsort", mint.argsort(i, dim=1), np.argsort(I, 1))
check("descending", mint.argsort(a, dim=0, descending=True), np.argsort(-A, axis=0, kind="stable"))
check("equal ones", mint.sort(Tensor(np.array([1, 0, 1, 0], np.int32)), stable=True)[1], np.array([1, 3, 0, 2]))
check("large integers", mint.sort(Tensor(BIG))[0], np.sort(BIG), rtol=0, atol=0)
check("not a number is largest", mint.argsort(Tensor(np.array([np.nan, 1, 3], np.float32))), np.array([1, 2, 0]))
check("cumsum", mint.cumsum(a, 1), A.cumsum(1))
check("cumsum of integers", mint.cumsum(i, 0), I.cumsum(0))
H = np.array([0, 0.5, 1, 2, 2.5, 4, 4.1, -1], np.float32)
check("histc", mint.histc(Tensor(H), bins=4, min=0, max=4), np.histogram(H, 4, (0, 4))[0])
check("histc of the data", mint.histc(Tensor(H), bins=3), np.histogram(H, 3)[0])
check("softplus", mint.nn.functional.softplus(a, 2, 1.5), np.where(2 * A > 1.5, A, np.log1p(np.exp(2 * A)) / 2))
check("gradient of softplus", ms.grad(lambda t: mint.nn.functional.softplus(t, 2, 1.5).sum())(a),
      np.where(2 * A > 1.5, 1, 1 / (1 + np.exp(-2 * A))))
INDEX = np.array([[0, 1, 1, 0], [2, 0, 2, 1]], np.int64)
FROM = rng.standard_normal((2, 4)).astype(np.float32)
want = M.copy()
np.put_along_axis(want, INDEX, FROM, 0)
check("scatter", mint.scatter(m, 0, Tensor(INDEX), Tensor(FROM)), want)
want = M.copy()
np.put_along_axis(want, INDEX, np.float32(7), 0)
check("scatter of a number", mint.scatter(m, 0, Tensor(INDEX), 7.0), want)
check("gradient of max", ms.grad(lambda t: (mint.max(t, dim=1)[0] * 2).sum())(a), 2.0 * (A == A.max(1, keepdims=True)))
want = M.copy()
np.add.at(want, np.array([1, 1, 5]), 0.5 * M[:3])
check("index add", mint.index_add(m, 0, Tensor(np.array([1, 1, 5], np.int32)), m[:3], alpha=0.5), want)
check("roll", mint.roll(a, (1, -2), (0, 2)), np.roll(A, (1, -2), (0, 2)))
check("roll of all", mint.roll(a, 7), np.roll(A, 7))
check("bitwise or", mint.bitwise_or(i, 5), I | 5)
check("bitwise and", mint.bitwise_and(i, i.swapaxes(0, 1).reshape(3, 4)), I & I.T.reshape(3, 4))
check("bitwise xor", mint.bitwise_xor(i, Tensor(I[0])), I ^ I[0])
check("bitwise not", mint.bitwise_not(i), ~I)
check("not true", mint.bitwise_not(a > 0), A <= 0)

ENDS = np.array([2, 2, 6], np.int64)  # the second expert has no rows
parts = np.split(M, ENDS[:-1])
grouped = GroupedMatmul(split_item=3, group_type=0)
check("grouped product", grouped([m], [w], None, None, None, None, None, Tensor(ENDS))[0],
      np.concatenate([p @ W[e] for e, p in enumerate(parts)]))
OUT = rng.standard_normal((6, 5)).astype(np.float32)
grads = ms.grad(lambda x, y: (grouped([x], [y], None, None, None, None, None, Tensor(ENDS))[0] * Tensor(OUT)).sum(),
                (0, 1))(m, w)
outs = np.split(OUT, ENDS[:-1])
check("gradient of x", grads[0], np.concatenate([o @ W[e].T for e, o in enumerate(outs)]))
check("gradient of the experts", grads[1], np.stack([p.T @ o for p, o in zip(parts, outs)]))

def drawn(seed):
    ms.manual_seed(seed)
    t = mint.empty((400, 100), dtype=ms.float32)
    return [t.normal_(mean=2.0, std=0.5).asnumpy().copy() for _ in range(2)]

first, second = drawn(1)
check("normal", np.array([first.mean(), first.std()]), np.array([2, 0.5]), atol=0.02)
check("a seed repeats", drawn(1)[0], first, rtol=0, atol=0)
assert not np.array_equal(first, second) and not np.array_equal(first, drawn(2)[0])
print("ALL EQUAL")
"""


def test_operators_equal_numpy(host: Host) -> None:
    assert "ALL EQUAL" in host.run(_PROGRAM, "--check-leaks").output


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("mint.topk(a, 9, dim=0)", "k"),
        ("mint.scatter(a, 0, Tensor(np.array([7], np.int64)), a[:1]).asnumpy()", "index 7 of 4"),
    ],
)
def test_bad_arguments_are_errors(host: Host, call: str, message: str) -> None:
    program = f"""
import mindspore as ms, numpy as np
from mindspore import Tensor, mint
ms.set_context(device_target="Ascend", mode=1, pynative_synchronize=True)
a = Tensor(np.arange(4, dtype=np.float32))
try:
    {call}
except Exception as error:
    print("REFUSED", str(error)[:2000])
"""
    done = host.run(program)
    assert "REFUSED" in done.output
    assert message in done.output + done.errors
