"""Parameters that are distributed tensors, as hyper-parallel makes them: replicated ones work, parts are refused.

hyper-parallel is on no package index. MindSpore 2.10 has what its ``DTensor`` is built on: subclasses of ``Tensor``
whose operators go to ``__fallback__``, and parameters of such a class.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore._c_expression import NoFallbackGuard, run_backward

from ms_mhc import HyperConnection, MhcPre

N, D = 4, 16


class Distributed(Tensor):
    """A tensor that is here in part. It has no layouts for any operator."""

    def __new__(cls, part: Tensor, shape: Optional[Tuple[int, ...]] = None) -> Distributed:
        if isinstance(part, Distributed):  # Parameter makes its own class of it
            part, shape = part.to_local(), part._whole
        made = Tensor._make_subclass(cls, part)
        made._part = part
        made._whole = shape
        return made

    def __init__(self, part: Tensor, shape: Optional[Tuple[int, ...]] = None) -> None:
        pass

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._whole or self._part.shape

    def to_local(self) -> Tensor:
        return self._part

    def __fallback__(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no layout inference for {func}")


def distribute(network: nn.Cell) -> nn.Cell:
    """Every parameter of a network becomes a replicated distributed one."""
    for cell in network.cells_and_names():
        for name, parameter in list(cell[1]._params.items()):
            if parameter is not None:
                delattr(cell[1], name)
                setattr(cell[1], name, Parameter(Distributed(Tensor(parameter.asnumpy())), name=parameter.name))
    return network


class Branch(nn.Cell):
    def construct(self, h: Tensor) -> Tensor:
        return ops.tanh(h)


@pytest.fixture
def networks() -> List[nn.Cell]:
    """The same network twice, the second with distributed parameters."""
    made = []
    for _ in range(2):
        network = HyperConnection(N, D, Branch(), use_gamma=True)
        rng = np.random.default_rng(1)
        for parameter in network.trainable_params():
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
        made.append(network)
    return [made[0], distribute(made[1])]


@pytest.fixture(autouse=True)
def _pynative() -> Any:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def x() -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=(6, N, D)).astype(np.float32))


def test_an_operator_without_a_layout_is_refused(networks: List[nn.Cell]) -> None:
    """The double does what the others rely on."""
    assert all(isinstance(p, Distributed) for p in networks[1].trainable_params())
    # MindSpore 2.9 keeps the reason to itself
    with pytest.raises(RuntimeError, match=r"no layout inference|Python fallback failed"):
        networks[1].pre.phi * 2


def test_replicated_parameters_get_the_gradients_of_plain_ones(networks: List[nn.Cell]) -> None:
    found = []
    for network in networks:
        of_all = ms.value_and_grad(lambda v, n=network: (n(v) ** 2).mean(), 0, network.trainable_params())
        value, (grad_x, grads) = of_all(x())
        found.append([value.asnumpy(), grad_x.asnumpy(), *(g.asnumpy() for g in grads)])
    assert len(found[0]) == 2 + 4
    for plain, distributed in zip(*found):
        assert np.array_equal(plain, distributed)
        assert np.any(plain != 0)


def test_backward_leaves_the_gradients_on_the_distributed_parameters(networks: List[nn.Cell]) -> None:
    from mindspore.graph.api import _pynative_executor

    found: List[Dict[str, np.ndarray]] = []
    _pynative_executor.set_grad_flag(True)
    try:
        for network in networks:
            parameters = network.trainable_params()
            for parameter in parameters:
                parameter._requires_grad = True
            loss = (network(x()) ** 2).mean()
            with NoFallbackGuard():
                run_backward(
                    (loss,), (ops.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
                )
            found.append({parameter.name: parameter._grad.asnumpy() for parameter in parameters})
    finally:
        _pynative_executor.set_grad_flag(False)
    assert len(found[0]) == 4
    for name, plain in found[0].items():
        assert np.array_equal(plain, found[1][name]), name
        assert np.any(plain != 0), name


def test_a_part_of_a_parameter_is_refused_by_name() -> None:
    cell = MhcPre(N, D)
    half = Tensor(cell.phi.asnumpy()[:, : N * D // 2])
    del cell.phi
    cell.phi = Parameter(Distributed(half, (N * N + 2 * N, N * D)), name="phi")
    with pytest.raises(ValueError, match=r"phi is a distributed tensor of shape \[24, 64\], of which only \[24, 32\]"):
        cell(x())
