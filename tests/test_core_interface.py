"""The C functions that MindSpore calls: every set of optional tensors, and what they say of wrong ones."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import ml_dtypes
import numpy as np
import pytest

from ms_mhc import csrc, reference

pytestmark = pytest.mark.skipif(csrc.refusal() is not None, reason=f"the library cannot be used: {csrc.refusal()}")

DONE, WRONG_COUNT, WRONG_TYPE, WRONG_SHAPE, WRONG_SCALAR, FAILED, OTHER_VERSION = range(7)
T, N, D = 5, 3, 20
F = N * N + 2 * N
RECIPES = {"deepseek_v4": 0, "paper": 1}

REPOSITORY = Path(csrc.__file__).parents[2]

Arrays = List[np.ndarray]


def call(name: str, arrays: Sequence[np.ndarray], null: Optional[int] = None) -> int:
    """The status of a C function, called as MindSpore calls it."""
    count = len(arrays)
    shapes = [(ctypes.c_int64 * a.ndim)(*a.shape) for a in arrays]
    addresses = [None if i == null else a.ctypes.data for i, a in enumerate(arrays)]
    return int(
        getattr(ctypes.CDLL(str(csrc.LIBRARY)), name)(
            ctypes.c_int(count),
            (ctypes.c_void_p * count)(*addresses),
            (ctypes.c_int * count)(*(a.ndim for a in arrays)),
            (ctypes.POINTER(ctypes.c_int64) * count)(*(ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in shapes)),
            (ctypes.c_char_p * count)(*(a.dtype.name.encode() for a in arrays)),
            None,
            None,
        )
    )


def numbers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def scalars(mask: float, *values: float) -> np.ndarray:
    return np.array([mask, csrc.version(), *values], np.float32)


def room(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def pre(mask: int = 1, dtype: type = np.float32, eps: Tuple[float, float] = (1e-3, 1e-2)) -> Tuple[Arrays, Arrays]:
    given = [scalars(mask, *eps), numbers(T, N, D, dtype=dtype), numbers(F, N * D), numbers(3), numbers(F)]
    given += [numbers(N, D)] if mask & 1 else []
    return given, [room(T, D, dtype=dtype), room(T, N), room(T, N, N), room(T), room(T, F), room(T, N)]


def pre_backward(mask: int = 3, dtype: type = np.float32) -> Tuple[Arrays, Arrays]:
    forward, saved = pre(mask & 1, dtype)
    assert call("MhcPre", [*forward, *saved]) == DONE
    _, h_post, _, inv_rms, h_mix, h_pre = saved
    given = [scalars(mask, 1e-2), *forward[1:4], numbers(T, D, dtype=dtype), numbers(T, N), numbers(T, N, N)]
    given += [inv_rms, h_mix, h_pre, h_post]
    given += [numbers(N, D)] if mask & 1 else []
    given += [numbers(T, N, D, dtype=dtype)] if mask & 2 else []
    results = [room(T, N, D, dtype=dtype), room(F, N * D), room(3), room(F)]
    return given, [*results, *([room(N, D)] if mask & 1 else [])]


def post(mask: int = 1, dtype: type = np.float32) -> Tuple[Arrays, Arrays]:
    h_res = [numbers(T, N, N)] if mask & 1 else []
    given = [scalars(mask), numbers(T, N, D, dtype=dtype), *h_res, numbers(T, D, dtype=dtype), numbers(T, N)]
    return given, [room(T, N, D, dtype=dtype)]


def post_backward(mask: int = 1, dtype: type = np.float32) -> Tuple[Arrays, Arrays]:
    (_, *inputs), _ = post(mask, dtype)
    grad_h_res = [room(T, N, N)] if mask & 1 else []
    results = [room(T, N, D, dtype=dtype), *grad_h_res, room(T, D, dtype=dtype), room(T, N)]
    return [scalars(mask), numbers(T, N, D, dtype=dtype) + dtype(1), *inputs], results


def sinkhorn(num_iters: float = 3, recipe: float = 0, mask: int = 0) -> Tuple[Arrays, Arrays]:
    return [scalars(mask, 1e-2, num_iters, recipe), numbers(T, N, N)], [room(T, N, N)]


def sinkhorn_backward(num_iters: float = 3, recipe: float = 0) -> Tuple[Arrays, Arrays]:
    (head, h_res), results = sinkhorn(num_iters, recipe)
    return [head, numbers(T, N, N) + 1, h_res], results


def pre_sinkhorn(mask: int = 1, num_iters: float = 3, recipe: float = 0) -> Tuple[Arrays, Arrays]:
    (_, *given), results = pre(mask)
    return [scalars(mask, 1e-3, 1e-2, 1e-1, num_iters, recipe), *given], results


def pre_sinkhorn_backward(mask: int = 3, num_iters: float = 3, recipe: float = 0) -> Tuple[Arrays, Arrays]:
    (_, *given), results = pre_backward(mask)
    bias = pre()[0][4]
    return [scalars(mask, 1e-2, 1e-1, num_iters, recipe), *given[:3], bias, *given[3:]], results


OPERATORS: Dict[str, Callable[[], Tuple[Arrays, Arrays]]] = {
    "MhcPre": pre,
    "MhcPreBackward": pre_backward,
    "MhcPost": post,
    "MhcPostBackward": post_backward,
    "MhcSinkhorn": sinkhorn,
    "MhcSinkhornBackward": sinkhorn_backward,
    "MhcPreSinkhorn": pre_sinkhorn,
    "MhcPreSinkhornBackward": pre_sinkhorn_backward,
}


def assert_near(results: Arrays, expected: Sequence[Optional[np.ndarray]]) -> None:
    wanted = [value for value in expected if value is not None]
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted):
        np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("mask", range(2))
def test_mhc_pre(mask: int) -> None:
    given, results = pre(mask)
    assert call("MhcPre", [*given, *results]) == DONE
    assert_near(results, reference.mhc_pre(*given[1:], norm_eps=1e-3, hc_eps=1e-2))


@pytest.mark.parametrize("mask", range(4))
def test_mhc_pre_backward(mask: int) -> None:
    given, results = pre_backward(mask)
    assert call("MhcPreBackward", [*given, *results]) == DONE
    gamma = given[11] if mask & 1 else None
    grad_x_post = given[-1] if mask & 2 else None
    assert_near(results, reference.mhc_pre_backward(*given[1:11], gamma, grad_x_post, hc_eps=1e-2))


@pytest.mark.parametrize("mask", range(2))
def test_mhc_post(mask: int) -> None:
    given, results = post(mask)
    assert call("MhcPost", [*given, *results]) == DONE
    x, *h_res, h_out, h_post = given[1:]
    assert_near(results, [reference.mhc_post(x, h_res[0] if h_res else None, h_out, h_post)])


@pytest.mark.parametrize("mask", range(2))
def test_mhc_post_backward(mask: int) -> None:
    given, results = post_backward(mask)
    assert call("MhcPostBackward", [*given, *results]) == DONE
    grad, x, *h_res, h_out, h_post = given[1:]
    grads = reference.mhc_post_backward(grad, x, h_res[0] if h_res else None, h_out, h_post)
    expected = (grads.grad_x, grads.grad_h_res if mask else None, grads.grad_h_out, grads.grad_h_post)
    assert_near(results, expected)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_mhc_sinkhorn(recipe: str) -> None:
    options = {"num_iters": 3, "eps": 1e-2, "recipe": recipe}
    given, results = sinkhorn(recipe=RECIPES[recipe])
    assert call("MhcSinkhorn", [*given, *results]) == DONE
    assert_near(results, [reference.mhc_sinkhorn(given[1], **options)])
    given, results = sinkhorn_backward(recipe=RECIPES[recipe])
    assert call("MhcSinkhornBackward", [*given, *results]) == DONE
    assert_near(results, [reference.mhc_sinkhorn_backward(*given[1:], **options)])


@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("mask", range(4))
def test_mhc_pre_sinkhorn(mask: int, recipe: str) -> None:
    options = {"num_iters": 3, "eps": 1e-1, "recipe": recipe}
    given, results = pre_sinkhorn(mask & 1, recipe=RECIPES[recipe])
    assert call("MhcPreSinkhorn", [*given, *results]) == DONE
    expected = reference.mhc_pre(*given[1:], norm_eps=1e-3, hc_eps=1e-2)
    logits = expected.h_res
    assert_near(results, expected._replace(h_res=reference.mhc_sinkhorn(logits, **options)))

    given, results = pre_sinkhorn_backward(mask, recipe=RECIPES[recipe])
    assert call("MhcPreSinkhornBackward", [*given, *results]) == DONE
    x, phi, alpha, _, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post = given[1:12]
    grad_logits = reference.mhc_sinkhorn_backward(grad_h_res, logits, **options)
    gamma = given[12] if mask & 1 else None
    grad_x_post = given[-1] if mask & 2 else None
    saved = (inv_rms, h_mix, h_pre, h_post)
    pre_given = (x, phi, alpha, grad_h_in, grad_h_post, grad_logits, *saved, gamma, grad_x_post)
    assert_near(results, reference.mhc_pre_backward(*pre_given, hc_eps=1e-2))


def test_mhc_pre_sinkhorn_has_the_bits_of_its_two_parts() -> None:
    given, results = pre_sinkhorn()
    assert call("MhcPreSinkhorn", [*given, *results]) == DONE
    alone, parts = pre()
    assert call("MhcPre", [*alone, *parts]) == DONE
    mixed = room(T, N, N)
    assert call("MhcSinkhorn", [scalars(0, 1e-1, 3, 0), parts[2], mixed]) == DONE
    parts[2] = mixed
    for got, want in zip(results, parts):
        assert np.array_equal(got, want)


def test_token_dimensions_may_be_any_number() -> None:
    given, results = post()
    assert call("MhcPost", [*given, *results]) == DONE
    for leading in ((1, T), (T, 1), (1, 1, T)):
        shaped = [given[0], *(a.reshape(*leading, *a.shape[1:]) for a in given[1:])]
        again = np.full_like(results[0], np.nan).reshape(*leading, N, D)
        assert call("MhcPost", [*shaped, again]) == DONE
        assert np.array_equal(again.reshape(T, N, D), results[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_tensors_are_those_of_x(dtype: type) -> None:
    for name, make in (("MhcPre", pre), ("MhcPost", post), ("MhcPostBackward", post_backward)):
        given, results = make(1, dtype)
        assert call(name, [*given, *results]) == DONE
        assert all(np.isfinite(a.astype(np.float32)).all() for a in results)
    given, results = pre_backward(3, dtype)
    assert call("MhcPreBackward", [*given, *results]) == DONE


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_tensor_too_many_or_too_few(name: str) -> None:
    given, results = OPERATORS[name]()
    arrays = [*given, *results]
    assert call(name, [*arrays, numbers(1)]) == WRONG_COUNT
    for missing in range(1, len(arrays)):
        assert call(name, arrays[:missing] + arrays[missing + 1 :]) == WRONG_COUNT
    assert call(name, arrays[:1]) == WRONG_COUNT
    assert call(name, []) == WRONG_COUNT


@pytest.mark.parametrize("name", [name for name in OPERATORS if "Pre" in name or "Post" in name])
def test_the_number_of_tensors_does_not_tell_which_they_are(name: str) -> None:
    given, results = OPERATORS[name]()
    given[0][0] = 0
    assert call(name, [*given, *results]) == WRONG_COUNT


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_wrong_type(name: str) -> None:
    given, results = OPERATORS[name]()
    arrays = [*given, *results]
    for index in range(len(arrays)):
        for dtype in (np.float64, np.int32) if index == 1 else (np.float64, np.float16):
            wrong = [a.astype(dtype) if i == index else a for i, a in enumerate(arrays)]
            assert call(name, wrong) == WRONG_TYPE, index


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_wrong_shape(name: str) -> None:
    given, results = OPERATORS[name]()
    arrays = [*given, *results]
    for index, array in enumerate(arrays):
        longer = np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
        deeper = np.zeros((*array.shape, 2), array.dtype)
        for wrong in (longer, deeper, array.reshape(-1)[:1].reshape(())):
            assert call(name, [*arrays[:index], wrong, *arrays[index + 1 :]]) == WRONG_SHAPE, index


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_tensor_without_memory(name: str) -> None:
    given, results = OPERATORS[name]()
    for index in range(len(given) + len(results)):
        assert call(name, [*given, *results], null=index) == FAILED


@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("mask", [-1, 0.5, 4, 16, 1e9, np.nan, np.inf])
def test_a_mask_of_tensors_that_do_not_exist(name: str, mask: float) -> None:
    given, results = OPERATORS[name]()
    given[0][0] = mask
    assert call(name, [*given, *results]) == WRONG_SCALAR


@pytest.mark.parametrize(
    ("num_iters", "recipe"),
    [(0, 0), (-1, 0), (1.5, 0), (1e6 + 1, 0), (np.nan, 0), (np.inf, 0), (1, 2), (1, -1), (1, 0.5), (1, np.nan)],
)
def test_sinkhorn_scalars_that_mean_nothing(num_iters: float, recipe: float) -> None:
    for name in (name for name in OPERATORS if "Sinkhorn" in name):
        given, results = OPERATORS[name]()
        given[0][-2:] = num_iters, recipe
        assert call(name, [*given, *results]) == WRONG_SCALAR


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_call_that_was_written_for_other_sources(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    given, results = OPERATORS[name]()
    given[0][1] += 1
    assert call(name, [*given, *results]) == OTHER_VERSION
    assert "another version of ms_mhc" in capfd.readouterr().err


FORKED = """
import os, signal, sys, time
from tests.test_core_interface import DONE, call, numbers, room, scalars

given = [scalars(1), numbers(512, 4, 64), numbers(512, 4, 4), numbers(512, 64), numbers(512, 4)]
want, got = room(512, 4, 64), room(512, 4, 64)
assert call("MhcPost", [*given, want]) == DONE
child = os.fork()
if child == 0:
    os._exit(0 if call("MhcPost", [*given, got]) == DONE and (got == want).all() else 1)
for _ in range(500):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.02)
os.kill(child, signal.SIGKILL)
sys.exit("the forked process still waits")
"""


def test_a_forked_process_does_not_wait_for_threads_that_it_lost() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    program = (sys.executable, "-c", FORKED)
    done = subprocess.run(program, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr
