"""Bad input is refused with a message that names operator, argument, what came and what is accepted."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Type

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.parallel.shard import Layout

from ms_mhc import (
    HyperConnection,
    MhcHead,
    MhcPost,
    MhcPre,
    MhcSinkhorn,
    checks,
    csrc,
    expand_streams,
    merge_streams,
    mhc_head,
    mhc_post,
    mhc_pre,
    mhc_pre_backward,
    mhc_pre_sinkhorn,
    mhc_sinkhorn,
)
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.operation import OPERATIONS
from tests.compare import in_turn

Way = Callable[[Any], Any]


def zeros(*shape: int, dtype: Any = ms.float32) -> Tensor:
    return Tensor(np.zeros(shape, np.float32)).astype(dtype)


def pre_arguments(n: int = 2, d: int = 3) -> Dict[str, Any]:
    f = n * n + 2 * n
    return {"x": zeros(5, n, d), "phi": zeros(f, n * d), "alpha": zeros(3), "bias": zeros(f)}


def backward_arguments(n: int = 2, d: int = 3) -> Dict[str, Any]:
    f = n * n + 2 * n
    return {
        "x": zeros(5, n, d),
        "phi": zeros(f, n * d),
        "alpha": zeros(3),
        "grad_h_in": zeros(5, d),
        "grad_h_post": zeros(5, n),
        "grad_h_res": zeros(5, n, n),
        "inv_rms": zeros(5),
        "h_mix": zeros(5, f),
        "h_pre": zeros(5, n),
        "h_post": zeros(5, n),
    }


def refused(operator: Callable[..., Any], given: Dict[str, Any], error: Type[Exception], *parts: str) -> None:
    with pytest.raises(error) as caught:
        operator(**given)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"x": zeros(2, 3)}, ValueError, ("x has rank 2", "[2, 3]", "[B, S, N, D]", "[T, N, D]")),
        ({"x": zeros(1, 1, 5, 2, 3)}, ValueError, ("x has rank 5",)),
        ({"x": zeros(0, 2, 3)}, ValueError, ("x is empty", "[0, 2, 3]")),
        ({"x": zeros(5, 2, 0)}, ValueError, ("x is empty",)),
        ({"x": zeros(5, 2, 3, dtype=ms.int32)}, TypeError, ("x has dtype int32", "bfloat16, float16, float32")),
        ({"x": zeros(5, 2, 3, dtype=ms.float64)}, TypeError, ("x has dtype float64",)),
        ({"x": np.zeros((5, 2, 3), np.float32)}, TypeError, ("x must be a mindspore Tensor", "ndarray")),
        ({"x": zeros(5, 3, 3)}, ValueError, ("phi has shape [8, 6]", "[15, 9]")),
        ({"x": zeros(5, 2, 4)}, ValueError, ("phi has shape [8, 6]", "[8, 8]", "[N*N+2N, N*D]")),
        ({"phi": zeros(4, 6)}, ValueError, ("phi has shape [4, 6]", "[8, 6]")),
        ({"phi": zeros(6, 8)}, ValueError, ("phi has shape [6, 8]",)),
        ({"phi": zeros(8, 6, dtype=ms.float16)}, TypeError, ("phi has dtype float16", "accepted: float32")),
        ({"alpha": zeros(2)}, ValueError, ("alpha has shape [2]", "[3]")),
        ({"alpha": zeros(3, 1)}, ValueError, ("alpha has shape [3, 1]",)),
        ({"alpha": 0.01}, TypeError, ("alpha must be a mindspore Tensor", "float")),
        ({"bias": zeros(6)}, ValueError, ("bias has shape [6]", "[8]")),
        ({"gamma": zeros(3, 2)}, ValueError, ("gamma has shape [3, 2]", "[2, 3]", "[N, D]")),
        ({"gamma": zeros(2, 3, dtype=ms.bfloat16)}, TypeError, ("gamma has dtype bfloat16",)),
        ({"norm_eps": -1e-6}, ValueError, ("norm_eps", "-1e-06", ">= 0")),
        ({"hc_eps": float("inf")}, ValueError, ("hc_eps", "inf")),
        ({"hc_eps": "1e-6"}, TypeError, ("hc_eps", "'1e-6'", "str")),
        ({"hc_eps": True}, TypeError, ("hc_eps", "bool")),
        ({"hc_eps": 1e39}, ValueError, ("hc_eps", "1e+39", "float32")),
        ({"norm_eps": 10**400}, ValueError, ("norm_eps", "an int of 1329 bits")),
        ({"x": Tensor(shape=(None, 2, 3), dtype=ms.float32)}, ValueError, ("x describes tensors", "[-1, 2, 3]")),
        ({"phi": Tensor(shape=(8, None), dtype=ms.float32)}, ValueError, ("phi describes tensors", "[8, -1]")),
        ({"backend": "cuda"}, ValueError, ("backend", "'cuda'", "auto, aclnn")),
        ({"backend": None}, TypeError, ("backend", "None")),
        ({"backend": "aclnn"}, RuntimeError, ("backend='aclnn' cannot be used", "the device target is CPU")),
    ],
)
def test_mhc_pre_refuses(change: Dict[str, Any], error: Type[Exception], parts: Any) -> None:
    refused(mhc_pre, {**pre_arguments(), **change}, error, "mhc_pre", *parts)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"grad_h_in": zeros(5, 2)}, ValueError, ("grad_h_in has shape [5, 2]", "[5, 3]")),
        ({"grad_h_in": zeros(5, 3, dtype=ms.float16)}, TypeError, ("grad_h_in has dtype float16", "float32")),
        ({"grad_h_post": zeros(4, 2)}, ValueError, ("grad_h_post has shape [4, 2]", "[5, 2]")),
        ({"grad_h_res": zeros(5, 4)}, ValueError, ("grad_h_res has shape [5, 4]", "[5, 2, 2]")),
        ({"inv_rms": zeros(5, 1)}, ValueError, ("inv_rms has shape [5, 1]", "[5]")),
        ({"h_mix": zeros(5, 4)}, ValueError, ("h_mix has shape [5, 4]", "[5, 8]")),
        ({"h_pre": zeros(5, 3)}, ValueError, ("h_pre",)),
        ({"h_post": zeros(5, 2, dtype=ms.float16)}, TypeError, ("h_post has dtype float16",)),
        ({"grad_x_post": zeros(5, 3, 2)}, ValueError, ("grad_x_post has shape [5, 3, 2]", "[5, 2, 3]")),
        ({"grad_x_post": zeros(5, 2, 3, dtype=ms.bfloat16)}, TypeError, ("grad_x_post has dtype bfloat16",)),
        ({"hc_eps": -1.0}, ValueError, ("hc_eps",)),
    ],
)
def test_mhc_pre_backward_refuses(change: Dict[str, Any], error: Type[Exception], parts: Any) -> None:
    refused(mhc_pre_backward, {**backward_arguments(), **change}, error, "mhc_pre_backward", *parts)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"h_res": zeros(5, 2, 3)}, ValueError, ("h_res has shape [5, 2, 3]", "square")),
        ({"h_res": zeros(2, 2)}, ValueError, ("h_res has shape [2, 2]",)),
        ({"h_res": zeros(0, 2, 2)}, ValueError, ("h_res is empty",)),
        ({"h_res": zeros(5, 2, 2, dtype=ms.bfloat16)}, TypeError, ("h_res has dtype bfloat16", "float32")),
        ({"num_iters": 0}, ValueError, ("num_iters", "0")),
        ({"num_iters": 2.0}, TypeError, ("num_iters", "2.0")),
        ({"num_iters": True}, TypeError, ("num_iters", "bool")),
        ({"num_iters": 1_000_001}, ValueError, ("num_iters", "at most 1000000", "1000001")),
        ({"num_iters": 10**5000}, ValueError, ("num_iters", "at most 1000000", "an int of 16610 bits")),
        ({"eps": -1.0}, ValueError, ("eps",)),
        ({"recipe": "sinkhorn"}, ValueError, ("recipe", "deepseek_v4, paper", "'sinkhorn'")),
    ],
)
def test_mhc_sinkhorn_refuses(change: Dict[str, Any], error: Type[Exception], parts: Any) -> None:
    refused(mhc_sinkhorn, {"h_res": zeros(5, 2, 2), **change}, error, "mhc_sinkhorn", *parts)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"h_res": zeros(5, 3, 3)}, ValueError, ("h_res has shape [5, 3, 3]", "[5, 2, 2]")),
        ({"h_out": zeros(5, 4)}, ValueError, ("h_out has shape [5, 4]", "[5, 3]")),
        ({"h_out": zeros(5, 3, dtype=ms.float16)}, TypeError, ("h_out has dtype float16", "float32")),
        ({"h_post": zeros(5, 3)}, ValueError, ("h_post has shape [5, 3]", "[5, 2]")),
        ({"x": zeros(5, 3)}, ValueError, ("x has rank 2",)),
    ],
)
def test_mhc_post_refuses(change: Dict[str, Any], error: Type[Exception], parts: Any) -> None:
    given = {"x": zeros(5, 2, 3), "h_res": zeros(5, 2, 2), "h_out": zeros(5, 3), "h_post": zeros(5, 2), **change}
    refused(mhc_post, given, error, "mhc_post", *parts)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"num_streams": 0}, ValueError, ("num_streams", "0")),
        ({"num_streams": "4"}, TypeError, ("num_streams", "'4'")),
        ({"hidden_size": 2.5}, TypeError, ("hidden_size", "2.5")),
        ({"hidden_size": -3}, ValueError, ("hidden_size", "-3")),
        ({"hidden_size": 10**12}, ValueError, ("num_streams=4", "hidden_size=1000000000000", "entries")),
        ({"num_streams": 2**62}, ValueError, ("num_streams=4611686018427387904", "entries")),
        ({"norm_eps": -1.0}, ValueError, ("norm_eps", "-1.0")),
        ({"hc_eps": float("nan")}, ValueError, ("hc_eps", "nan")),
        ({"use_gamma": 1}, TypeError, ("use_gamma", "1")),
        ({"return_residual": None}, TypeError, ("return_residual", "None")),
        ({"backend": "gpu"}, ValueError, ("backend", "'gpu'")),
        ({"backend": "aclnn"}, RuntimeError, ("the device target is CPU",)),
    ],
)
def test_cell_refuses_at_construction(change: Dict[str, Any], error: Type[Exception], parts: Any) -> None:
    refused(MhcPre, {"num_streams": 4, "hidden_size": 8, **change}, error, "MhcPre", *parts)


class Compiled(nn.Cell):
    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

    def construct(self, x: Tensor) -> Any:
        return self.cell(x)


@pytest.mark.parametrize(
    ("x", "error", "parts"),
    [
        (zeros(5, 4, 9), ValueError, ("4 streams of size 9", "num_streams=4", "hidden_size=8")),
        (zeros(2, 5, 3, 8), ValueError, ("x has shape [2, 5, 3, 8]", "3 streams")),
        (zeros(4, 8), ValueError, ("x has rank 2",)),
        (zeros(5, 4, 8, dtype=ms.int64), TypeError, ("x has dtype int64",)),
    ],
)
def test_cell_refuses_its_input_in_every_mode(way: Way, x: Tensor, error: Type[Exception], parts: Any) -> None:
    network = Compiled(MhcPre(4, 8))
    with pytest.raises(error) as caught:
        way(network)(x)
    for part in ("MhcPre", *parts):
        assert part in str(caught.value)


def test_other_cells_refuse_at_construction() -> None:
    with pytest.raises(ValueError, match=r"MhcSinkhorn: num_iters .* 0"):
        MhcSinkhorn(0)
    with pytest.raises(ValueError, match=r"MhcSinkhorn: recipe .*'v4'"):
        MhcSinkhorn(recipe="v4")
    with pytest.raises(ValueError, match=r"MhcPost: backend .*'x'"):
        MhcPost("x")
    with pytest.raises(TypeError, match=r"HyperConnection: branch must be a mindspore.nn.Cell, but got function"):
        HyperConnection(4, 8, lambda h: h)


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"num_streams": True}, TypeError, ("num_streams", "bool")),
        ({"hidden_size": 2**62}, ValueError, ("hidden_size=4611686018427387904", "entries")),
        ({"use_gamma": 1}, TypeError, ("use_gamma", "1")),
        ({"norm_eps": 1e39}, ValueError, ("norm_eps", "1e+39")),
        ({"hc_eps": None}, TypeError, ("hc_eps", "None")),
        ({"sinkhorn_eps": -1}, ValueError, ("sinkhorn_eps", "-1")),
        ({"num_iters": 0}, ValueError, ("num_iters", "0")),
        ({"recipe": "v3"}, ValueError, ("recipe", "'v3'")),
        ({"precision": "fp32"}, ValueError, ("precision", "'fp32'")),
        ({"layout": (1, 1)}, TypeError, ("layout", "tuple")),
    ],
)
def test_a_connection_names_itself_and_its_own_arguments(
    change: Dict[str, Any], error: Type[Exception], parts: Any
) -> None:
    given = {"num_streams": 4, "hidden_size": 8, "branch": nn.Identity(), **change}
    refused(HyperConnection, given, error, "HyperConnection: ", *parts)


class Returning(nn.Cell):
    """A branch that returns what none should."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def construct(self, h: Tensor) -> Any:
        if self.kind == "none":
            return None
        if self.kind == "float":
            return 1.0
        if self.kind == "list":
            return [h]
        if self.kind == "no output":
            return ()
        if self.kind == "narrow":
            return h[:, :, :4]
        if self.kind == "transposed":
            return h.swapaxes(0, 1)
        return ops.cast(h, ms.int32)


@pytest.mark.parametrize(
    ("way", "kind", "error", "part"),
    in_turn(
        ("list", TypeError, "branch must return a mindspore Tensor .* but got a tuple, list or dict"),
        ("none", TypeError, "but got None"),
        ("no output", TypeError, "but got None"),
        ("float", TypeError, "but got <class 'float'>"),
        ("narrow", ValueError, r"branch has shape \[2, 3, 4\]; expected \[2, 3, 8\], which is that of h_in"),
        ("transposed", ValueError, r"branch has shape \[3, 2, 8\]; expected \[2, 3, 8\]"),
        ("int", TypeError, "branch has dtype int32; accepted: bfloat16, float16, float32"),
    ),
    indirect=["way"],
)
def test_what_a_branch_should_not_return_is_named(way: Way, kind: str, error: Type[Exception], part: str) -> None:
    with pytest.raises(error, match=f"HyperConnection: .*{part}"):
        way(HyperConnection(4, 8, Returning(kind)))(zeros(2, 3, 4, 8))


def test_sizes_may_be_numpys_integers() -> None:
    n, d = np.int64(4), np.int32(8)
    for cell in (HyperConnection(n, d, nn.Identity()), MhcPre(n, d), MhcHead(n, d)):
        out = cell(zeros(2, 4, 8))
        assert (out[0] if isinstance(out, tuple) else out).shape[0] == 2


class Wrapping(nn.Cell):
    """A tuple, list or dict around the first tensor, made where it may be a graph that is compiled."""

    def __init__(self, function: Any, given: Dict[str, Any], kind: str) -> None:
        super().__init__()
        self.function = function
        self.arguments = tuple(given.values())[1:]
        self.kind = kind

    def construct(self, first: Tensor) -> Any:
        if self.kind == "list":
            return self.function([first], *self.arguments)
        if self.kind == "dict":
            return self.function({"x": first}, *self.arguments)
        return self.function((first,), *self.arguments)


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_a_tuple_list_or_dict_in_place_of_a_tensor_is_named(way: Way, kind: str) -> None:
    for function, first in ((mhc_pre, "x"), (expand_streams, "h")):
        given = REQUIRED[function][0]
        with pytest.raises(TypeError, match=f"{function.__name__}: {first} must be .* but got a tuple, list or dict"):
            way(Wrapping(function, given, kind))(next(iter(given.values())))


def test_streams_helpers_refuse() -> None:
    with pytest.raises(ValueError, match=r"expand_streams: h has rank 8; accepted: \[..., D\] of rank 1 to 7"):
        expand_streams(zeros(*[1] * 8), 2)
    with pytest.raises(ValueError, match=r"expand_streams: num_streams must be a positive int, but got 0"):
        expand_streams(zeros(2, 3), 0)
    with pytest.raises(TypeError, match=r"expand_streams: h has dtype int32"):
        expand_streams(zeros(2, 3, dtype=ms.int32), 2)
    with pytest.raises(ValueError, match=r"merge_streams: x has shape \[3\]"):
        merge_streams(zeros(3))


REQUIRED = {
    mhc_pre: (pre_arguments(), ("x", "phi", "alpha", "bias")),
    mhc_pre_backward: (backward_arguments(), tuple(backward_arguments())),
    mhc_sinkhorn: ({"h_res": zeros(5, 2, 2)}, ("h_res",)),
    mhc_post: (
        {"x": zeros(5, 2, 3), "h_res": zeros(5, 2, 2), "h_out": zeros(5, 3), "h_post": zeros(5, 2)},
        ("x", "h_out", "h_post"),
    ),
    mhc_pre_sinkhorn: (pre_arguments(), ("x", "phi", "alpha", "bias")),
    mhc_head: (
        {"x": zeros(5, 2, 3), "phi": zeros(2, 6), "scale": zeros(1), "bias": zeros(2)},
        ("x", "phi", "scale", "bias"),
    ),
    expand_streams: ({"h": zeros(5, 3), "num_streams": 2}, ("h",)),
    merge_streams: ({"x": zeros(5, 2, 3)}, ("x",)),
}


class Calling(nn.Cell):
    """A function with some of its tensors as constants."""

    def __init__(self, function: Any, given: Dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.arguments = tuple(given.values())

    def construct(self, unused: Tensor) -> Any:
        return self.function(*self.arguments)


@pytest.mark.parametrize(("function", "missing"), [(f, name) for f, (_, names) in REQUIRED.items() for name in names])
def test_required_tensor_that_is_none_is_named(way: Way, function: Any, missing: str) -> None:
    given = {**REQUIRED[function][0], missing: None}
    if function is mhc_pre_backward:
        given = {name: given[name] for name in backward_arguments()}
    with pytest.raises(TypeError, match=rf"{function.__name__}: {missing} must be a mindspore Tensor, but got None"):
        way(Calling(function, given))(zeros(1))


@pytest.fixture
def graph_mode() -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


CALLED_WITH_TENSORS = [mhc_pre, mhc_pre_backward, mhc_sinkhorn, mhc_post, mhc_pre_sinkhorn, mhc_head]


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("function", CALLED_WITH_TENSORS)
def test_a_function_called_in_graph_mode_takes_parameters(function: Any) -> None:
    rng = np.random.default_rng(0)
    given = {name: Tensor(rng.normal(size=t.shape).astype(np.float32)) for name, t in REQUIRED[function][0].items()}
    want, got = (function(**values) for values in (given, {name: Parameter(t, name=name) for name, t in given.items()}))
    pairs = zip(want, got) if isinstance(want, tuple) else [(want, got)]
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs if a is not None)


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("function", CALLED_WITH_TENSORS)
def test_a_tensor_without_values_is_named_in_graph_mode(function: Any) -> None:
    """MindSpore would compute with zeros."""
    given = dict(REQUIRED[function][0])
    name = next(iter(given))
    given[name] = initializer("ones", given[name].shape, ms.float32)
    with pytest.raises(ValueError, match=rf"{name} has no values yet; call its init_data\(\) first"):
        function(**given)


@pytest.mark.parametrize(("function", "name"), [(expand_streams, "h"), (merge_streams, "x")])
def test_streams_helpers_refuse_empty_tensors_in_every_mode(way: Way, function: Any, name: str) -> None:
    arguments = {"h": zeros(0, 3), "num_streams": 2} if function is expand_streams else {"x": zeros(0, 2, 3)}
    with pytest.raises(ValueError, match=rf"{function.__name__}: {name} is empty"):
        way(Calling(function, arguments))(zeros(1))


@pytest.mark.parametrize(
    ("layout", "error", "part"),
    [
        ("dp", TypeError, "layout must be a mindspore.parallel Layout of x"),
        (Layout((2, 2), ("dp", "sp"))("dp", "sp"), ValueError, "layout has 2 dimensions"),
        (Layout((2, 2), ("dp", "mp"))("dp", "None", "None", "mp"), ValueError, "layout splits N or D of x"),
    ],
)
def test_layouts_are_checked_at_construction(layout: Any, error: Type[Exception], part: str) -> None:
    cells: Any = (
        lambda: HyperConnection(4, 8, nn.Dense(8, 8), layout=layout),
        lambda: MhcPre(4, 8, layout=layout),
        lambda: MhcSinkhorn(layout=layout),
        lambda: MhcPost(layout=layout),
        lambda: MhcHead(4, 8, layout=layout),
        lambda: expand_streams(zeros(1, 1, 8), 4, layout=layout),
        lambda: merge_streams(zeros(1, 1, 4, 8), layout=layout),
    )
    for make in cells:
        with pytest.raises(error, match=part):
            make()


@pytest.fixture
def semi_auto_parallel() -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)  # MindSpore compiles no such graph on a CPU
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    yield
    ms.reset_auto_parallel_context()
    ms.set_context(mode=before)


@pytest.mark.usefixtures("semi_auto_parallel")
@pytest.mark.parametrize(
    "name", ["expand_streams", "merge_streams", "mhc_head", "MhcHead", "MhcPre", "HyperConnection"]
)
def test_a_missing_layout_is_refused_where_graphs_are_distributed(name: str) -> None:
    """Also where MindSpore would find strategies of its own: it would gather the streams."""
    x = zeros(1, 1, 4, 8)
    calls: Dict[str, Callable[[], Any]] = {
        "expand_streams": lambda: expand_streams(zeros(1, 1, 8), 4),
        "merge_streams": lambda: merge_streams(x),
        "mhc_head": lambda: mhc_head(x, zeros(4, 32), zeros(1), zeros(4)),
        "MhcHead": lambda: MhcHead(4, 8)(x),
        "MhcPre": lambda: MhcPre(4, 8)(x),
        "HyperConnection": lambda: HyperConnection(4, 8, nn.Identity())(x),
    }
    with pytest.raises(ValueError, match=f"{name}: parallel_mode is 'semi_auto_parallel', and how x is split was not"):
        calls[name]()


@pytest.mark.usefixtures("semi_auto_parallel")
def test_a_layout_of_another_rank_is_refused() -> None:
    layout = Layout((2,), ("dp",))("dp", "None", "None")
    calls: Any = {
        "expand_streams": lambda: expand_streams(zeros(1, 1, 8), 4, layout=layout),
        "merge_streams": lambda: merge_streams(zeros(1, 1, 4, 8), layout=layout),
        "MhcHead": lambda: MhcHead(4, 8, layout=layout)(zeros(1, 1, 4, 8)),
        "MhcPre": lambda: MhcPre(4, 8, layout=layout)(zeros(1, 1, 4, 8)),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"{name}: layout has 3 dimensions, .*, but x has 4"):
            call()


@pytest.mark.usefixtures("semi_auto_parallel")
def test_a_search_that_cannot_place_the_operators_is_refused() -> None:
    ms.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="dynamic_programming")
    layout = Layout((2,), ("dp",))("dp", "None", "None")
    with pytest.raises(ValueError, match="MhcHead: MindSpore's search_mode 'dynamic_programming' of auto_parallel"):
        MhcHead(4, 8, layout=layout)(zeros(1, 4, 8))


def test_auto_takes_mindspore_ops_where_custom_libraries_are_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", str(tmp_path))
    assert mhc_pre(**pre_arguments())[0].shape == (5, 3)
    with pytest.raises(RuntimeError, match="MS_CUSTOM_AOT_WHITE_LIST allows MindSpore only libraries below"):
        mhc_pre(**pre_arguments(), backend="cpu")


def test_cells_of_past_options_are_not_kept_for_ever() -> None:
    from ms_mhc import dispatch

    for i in range(dispatch.CELLS_KEPT + 20):
        mhc_sinkhorn(zeros(1, 2, 2), eps=1e-6 + i * 1e-9)
    assert dispatch._made_joined.cache_info().currsize <= dispatch.CELLS_KEPT


@pytest.mark.parametrize(
    ("check", "shape", "part"),
    [
        (checks.streams, (2, None, 8), "x has shape [2, ?, 8]; the number of streams N and the hidden size D must be"),
        (checks.streams, (2, 4, None), "x has shape [2, 4, ?]; the number of streams N and the hidden size D must be"),
        (checks.matrices, (2, None, None), "x has shape [2, ?, ?]; N must be known when the graph is compiled"),
    ],
)
def test_only_tokens_may_be_unknown_when_a_graph_is_compiled(check: Any, shape: Any, part: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part)):
        check("MhcPre", "x", checks.Spec(shape, ms.float32))


def test_streams_helpers_need_sizes_that_are_known() -> None:
    with pytest.raises(ValueError, match="h has rank 0"):
        checks.expand_streams("expand_streams", checks.Spec((), ms.float32), 4)
    with pytest.raises(ValueError, match=r"x has shape \[2, \?, 8\]; N must be known"):
        checks.merge_streams("merge_streams", checks.Spec((2, None, 8), ms.float32))
    assert checks.merge_streams("merge_streams", checks.Spec((None, 4, 8), ms.float32)) == 4


def test_a_backend_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="MhcPre: backend must be one of auto, aclnn, cpu, composite, but got 'cuda'"):
        registry.choose("MhcPre", Job("mhc_pre", 4), "cuda")


def test_an_operator_without_a_kernel_of_the_vendor_is_refused_by_aclnn_and_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPERATIONS, "mhc_new", OPERATIONS["mhc_sinkhorn"])
    dataclasses.replace(OPERATIONS["mhc_sinkhorn"], name="mhc_new", kernels={"forward": (), "backward": ()})
    with pytest.raises(RuntimeError, match="cannot be used: CANN has no kernel for mhc_new"):
        registry.choose("MhcNew", Job("mhc_new", 4), "aclnn")
    assert registry.choose("MhcNew", Job("mhc_new", 4), "auto").name != "aclnn"


@pytest.mark.parametrize(
    ("missing", "job", "error", "reason"),
    [
        ("refusal", {}, RuntimeError, "libms_mhc_cpu.so was not compiled"),
        ("has", {}, RuntimeError, "the C++ library has no function MhcSinkhorn"),
        (None, {"tokens": (None,)}, ValueError, "cannot call a C function from a graph with dynamic shapes"),
    ],
)
def test_the_cpu_backend_says_why_it_cannot_and_auto_goes_on(
    monkeypatch: pytest.MonkeyPatch, missing: Any, job: Dict[str, Any], error: Type[Exception], reason: str
) -> None:
    monkeypatch.setattr(csrc, "refusal", lambda: reason if missing == "refusal" else None)
    monkeypatch.setattr(csrc, "has", lambda function: missing != "has")
    asked = Job("mhc_sinkhorn", 4, **job)
    with pytest.raises(error, match=re.escape(f"backend='cpu' cannot be used: {reason}" if missing else reason)):
        registry.choose("MhcSinkhorn", asked, "cpu")
    assert registry.choose("MhcSinkhorn", asked, "auto").name == "composite"
