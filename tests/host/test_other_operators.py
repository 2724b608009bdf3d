"""The operators beside the mHC ones, called through MindSpore, against NumPy."""

from __future__ import annotations

import pytest
from conftest import Host

# what it is, MindSpore, NumPy; the inputs are those of the program below
CASES = [
    ("add", "mint.add(a, row)", "A + ROW"),
    ("add with alpha", "mint.add(a, b, alpha=3)", "A + 3 * B"),
    ("sub scalar", "a - 2.5", "A - np.float32(2.5)"),
    ("scalar div", "1.0 / (a * a + 1)", "1 / (A * A + 1)"),
    ("mul view", "a.swapaxes(0, 2) * b.swapaxes(0, 2)", "(A * B).swapaxes(0, 2)"),
    ("maximum", "mint.maximum(a, b)", "np.maximum(A, B)"),
    ("pow", "mint.pow(a, 2)", "A ** 2"),
    ("floor division", "mint.floor_divide(a, 0.3)", "np.floor(A / np.float32(0.3))"),
    ("greater", "(a > b).astype(ms.float32)", "A > B"),
    ("where", "mint.where(a > 0, a, b)", "np.where(A > 0, A, B)"),
    ("clamp", "mint.clamp(a, -0.5, 0.5)", "np.clip(A, -0.5, 0.5)"),
    ("masked fill", "a.masked_fill(a > 0, 7.0)", "np.where(A > 0, 7, A)"),
    ("exp", "mint.exp(a)", "np.exp(A)"),
    ("rsqrt", "mint.rsqrt(a * a + 1)", "1 / np.sqrt(A * A + 1)"),
    ("sigmoid", "mint.sigmoid(a)", "1 / (1 + np.exp(-A))"),
    ("silu", "mint.nn.functional.silu(a)", "A / (1 + np.exp(-A))"),
    ("tanh", "mint.tanh(a)", "np.tanh(A)"),
    ("abs neg", "-mint.abs(a)", "-np.abs(A)"),
    ("sum", "mint.sum(a, dim=(0, 2))", "A.sum((0, 2))"),
    ("sum of all", "mint.sum(a)", "A.sum()"),
    ("mean keepdim", "mint.mean(a, dim=1, keepdim=True)", "A.mean(1, keepdims=True)"),
    ("max", "mint.amax(a, dim=1)", "A.max(1)"),
    ("argmax", "mint.argmax(a, dim=2)", "A.argmax(2)"),
    ("norm", "mint.norm(a, dim=1)", "np.linalg.norm(A, axis=1)"),
    ("softmax", "mint.softmax(a, -1)", "softmax(A)"),
    ("log softmax", "mint.nn.functional.log_softmax(a, -1)", "np.log(softmax(A))"),
    ("matmul", "mint.matmul(a, m)", "A @ M"),
    ("batched matmul", "mint.matmul(a, b.swapaxes(1, 2))", "A @ B.swapaxes(1, 2)"),
    ("vector matmul", "mint.matmul(row, m)", "ROW @ M"),
    (
        "long matmul",
        "mint.matmul(mint.tile(a.reshape(1, 60) ** 2, (1, 2000)), mint.ones((120000, 1)))",
        "[[2000 * (A.astype(np.float64) ** 2).sum()]]",
    ),
    ("permute", "mint.permute(a, (2, 0, 1))", "A.transpose(2, 0, 1)"),
    ("cat", "mint.cat((a, b), dim=1)", "np.concatenate((A, B), 1)"),
    ("stack", "mint.stack((a, b), dim=-1)", "np.stack((A, B), -1)"),
    ("split", "mint.split(a, 2, dim=1)[1]", "A[:, 2:]"),
    ("slice", "a[:, 1:4:2, 2:]", "A[:, 1:4:2, 2:]"),
    ("expand", "mint.broadcast_to(row, (3, 4, 5)) + 0", "np.broadcast_to(ROW, (3, 4, 5))"),
    ("tile", "mint.tile(row, (2, 3))", "np.tile(ROW, (2, 3))"),
    ("flip", "mint.flip(a, (0, 2))", "A[::-1, :, ::-1]"),
    ("tril", "mint.tril(m)", "np.tril(M)"),
    ("triu", "mint.triu(m, 1)", "np.triu(M, 1)"),
    ("pad", 'mint.nn.functional.pad(m, (1, 2), "constant", 3.0)', "np.pad(M, ((0, 0), (1, 2)), constant_values=3)"),
    ("embedding", "mint.nn.functional.embedding(i, m)", "M[I]"),
    ("gather rows", "ops.gather(m, i, 0)", "M[I]"),
    ("gather columns", "ops.gather(m, i, 1)", "M[:, I]"),
    ("index select", "mint.index_select(m, 1, i[0])", "M[:, I[0]]"),
    ("one hot", "ops.one_hot(i, 3, Tensor(1.0), Tensor(0.0))", "np.eye(3)[I]"),
    ("addn", "ops.addn((a, b, a))", "A + B + A"),
    (
        "layer norm",
        "mint.nn.functional.layer_norm(a, (5,))",
        "(A - A.mean(-1, keepdims=True)) / np.sqrt(A.var(-1, keepdims=True) + 1e-5)",
    ),
    ("zeros and ones", "mint.zeros_like(a) + mint.ones_like(a)", "np.ones_like(A)"),
    ("eye", "mint.eye(3, 4)", "np.eye(3, 4)"),
    ("arange", "mint.arange(2, 11, 3)", "np.arange(2, 11, 3)"),
    (
        "half precision",
        "(a.astype(ms.float16) * b.astype(ms.float16)).astype(ms.float32)",
        "(A.astype(np.float16).astype(np.float32) * B.astype(np.float16).astype(np.float32)).astype(np.float16)",
    ),
    (
        "small half numbers",
        "(a * 1e-6).astype(ms.float16).astype(ms.float32)",
        "(A * np.float32(1e-6)).astype(np.float16)",
    ),
    ("integers", "(i * 3 - 1) // 2", "(I * 3 - 1) // 2"),
]

_HEAD = """
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, nn, ops
ms.set_context(device_target="Ascend", mode={mode}, jit_config={{"jit_level": "O0"}})
rng = np.random.default_rng(0)
A, B = rng.standard_normal((3, 4, 5)).astype(np.float32), rng.standard_normal((3, 4, 5)).astype(np.float32)
ROW, M = rng.standard_normal(5).astype(np.float32), rng.standard_normal((5, 6)).astype(np.float32)
I = np.array([[2, 0], [1, 2]], np.int32)

def softmax(t):
    exp = np.exp(t - t.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)

failures = []

def check(name, cell, want):
    try:
        got = cell(*(Tensor(t) for t in (A, B, ROW, M, I))).asnumpy()
        if got.shape != np.shape(want) or not np.allclose(got, want, rtol=2e-5, atol=1e-6):
            failures.append((name, got, want))
    except Exception as error:
        failures.append((name, str(error)[:600]))
"""

_CASE = """
class Cell{number}(nn.Cell):
    def construct(self, a, b, row, m, i):
        return {expression}

check({name!r}, Cell{number}(), {want})
"""


@pytest.mark.parametrize("mode", [0, 1])
def test_operators_equal_numpy(host: Host, mode: int) -> None:
    program = _HEAD.format(mode=mode)
    for number, (name, expression, want) in enumerate(CASES):
        program += _CASE.format(number=number, name=name, expression=expression, want=want)
    host.run(program + "\nassert not failures, failures\n", "--check-leaks")
