"""The contract, and what is derived from it."""

from __future__ import annotations

import dataclasses
from typing import Optional

import mindspore as ms
import pytest

from aclnn_adapter import custom
from aclnn_adapter.operators import (
    A2,
    A3,
    A5,
    MHC_POST,
    MHC_PRE,
    MHC_PRE_BACKWARD,
    MHC_PRE_BACKWARD_V2,
    MHC_PRE_SINKHORN,
    MHC_PRE_SINKHORN_BACKWARD,
    MHC_PRE_V2,
    MHC_SINKHORN,
    OPERATORS,
    Argument,
    Operator,
    resolve,
)


def names(operator_name: str) -> str:
    return " ".join(a.name for a in OPERATORS[operator_name].arguments)


def test_order_of_arguments_is_the_prototypes() -> None:
    assert names("aclnnMhcPre") == (
        "x phi alpha bias gammaOptional normEps hcEps hIn hPost hRes invRmsOptional hMixOptional hPreOptional"
    )
    assert names("aclnnMhcPreBackward") == (
        "x phi alpha gradHIn gradHPost gradHRes invRms hMix hPre hPost gammaOptional gradXPostOptional hcEps "
        "gradX gradPhi gradAlpha gradBias gradGamma"
    )
    assert names("aclnnMhcPost") == "x hRes hOut hPost out"
    assert names("aclnnMhcPostBackward") == "gradOutput x hRes hOut hPost gradX gradHRes gradHOut gradHPost"
    assert names("aclnnMhcSinkhorn") == "x eps numIters output normOut sumOut"
    assert names("aclnnMhcSinkhornBackward") == "gradOutput normOut sumOut out"


def test_eps_is_a_double_forward_and_a_float_backward() -> None:
    assert [a.c_type for a in MHC_PRE.attrs] == ["double", "double"]
    assert [a.c_type for a in MHC_PRE_BACKWARD.attrs] == ["float"]
    assert [a.c_type for a in MHC_SINKHORN.attrs] == ["float", "int64_t"]


def test_second_versions_have_op_impl_mode_behind_the_last_eps() -> None:
    assert names("aclnnMhcPreV2").split()[5:9] == ["normEps", "hcEps", "opImplMode", "hIn"]
    assert names("aclnnMhcPreBackwardV2").split()[12:15] == ["hcEps", "opImplMode", "gradX"]
    for operator in (MHC_PRE_V2, MHC_PRE_BACKWARD_V2):
        assert operator.attrs[-1].c_type == "int64_t"


def test_inputs_come_before_attributes_and_those_before_outputs() -> None:
    """MindSpore generates its call in this order."""
    for operator in OPERATORS.values():
        assert operator.arguments == operator.inputs + operator.attrs + operator.outputs


@pytest.mark.parametrize("tokens", [(2, 3), (6,), (-1, -1)])
def test_shapes_of_outputs_follow_from_shapes_of_inputs(tokens: tuple[int, ...]) -> None:
    sizes = MHC_PRE.bind([(*tokens, 4, 64), (24, 256), (3,), (24,), (4, 64)])
    shapes = [resolve(a.shape, sizes) for a in MHC_PRE.outputs]
    assert shapes == [(*tokens, 64), (*tokens, 4), (*tokens, 4, 4), tokens, (*tokens, 24), (*tokens, 4)]

    infer_shape, infer_dtype = custom.infer_functions(MHC_PRE_BACKWARD)
    inputs = [(*tokens, 4, 64), (24, 256), (3,), (*tokens, 64)]
    assert infer_shape(*inputs) == ([*tokens, 4, 64], [24, 256], [3], [24], [4, 64])
    dtypes = infer_dtype(ms.bfloat16, ms.float32)
    assert dtypes == (ms.bfloat16, ms.float32, ms.float32, ms.float32, ms.float32)


def test_saved_tensors_of_sinkhorn_have_the_agreed_length() -> None:
    sizes = MHC_SINKHORN.bind([(2, 3, 6, 6)], I=20)
    assert [resolve(a.shape, sizes) for a in MHC_SINKHORN.outputs] == [(2, 3, 6, 6), (2 * 20 * 6 * 6 * 8,), (1920,)]
    unknown = MHC_SINKHORN.bind([(-1, 3, 6, 6)], I=20)
    assert resolve(MHC_SINKHORN.outputs[1].shape, unknown) == (-1,)


@pytest.mark.parametrize(
    ("n", "d", "forward", "backward"),
    [
        (4, 64, None, None),
        (4, 80, None, "hidden_size 80 is not a multiple of 64"),
        (4, 24, "hidden_size 24 is not a multiple of 16", "hidden_size 24 is not a multiple of 64"),
        (5, 64, "num_streams 5 is not one of 4, 6, 8", "num_streams 5 is not one of 4, 6, 8"),
        (8, 16384, None, None),
        (8, 16448, "hidden_size 16448 is above 16384", "hidden_size 16448 is above 16384"),
    ],
)
def test_limits_of_ascend_950(n: int, d: int, forward: Optional[str], backward: Optional[str]) -> None:
    assert MHC_PRE.limits[A5].refusal(n, d) == forward
    assert MHC_PRE_BACKWARD.limits[A5].refusal(n, d) == backward


def test_which_soc_has_which_operator() -> None:
    assert set(MHC_PRE.limits) == {A5}
    assert set(MHC_PRE_BACKWARD.limits) == {A5, A3, A2}
    assert MHC_PRE_BACKWARD.limits[A2].refusal(4, 64) == "hidden_size 64 is not a multiple of 128"
    assert MHC_POST.limits[A5].refusal(3, 7) is None
    assert MHC_SINKHORN.limits[A5].refusal(4, num_iters=101) == "num_iters 101 is not within 1 to 100"


def test_registration_carries_the_c_types() -> None:
    info = custom.registration(MHC_PRE)
    assert [(a["name"], a["type"]) for a in info["attr"]] == [("normEps", "double"), ("hcEps", "double")]
    assert [i["name"] for i in info["inputs"]] == names("aclnnMhcPre").split()[:5]
    assert len(info["outputs"]) == 6
    assert [row[0][0] for row in info["dtype_format"]] == ["bfloat16", "float16"]
    assert [(a["name"], a["type"]) for a in custom.registration(MHC_SINKHORN)["attr"]] == [
        ("eps", "float"),
        ("numIters", "int"),
    ]


def test_contract_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MHC_PRE.name = "other"  # type: ignore[misc]


def test_pre_sinkhorn_has_hc_eps_before_norm_eps_and_a_bool() -> None:
    assert names("aclnnMhcPreSinkhorn") == (
        "x phi alpha bias hcMult numIters hcEps normEps needBackward "
        "hin hPost hRes hPre hcBeforeNorm invRms sumOut normOut"
    )
    assert [a.c_type for a in MHC_PRE_SINKHORN.attrs] == ["int64_t", "int64_t", "double", "double", "bool"]
    assert names("aclnnMhcPreSinkhornBackward") == (
        "gradHin gradHPost gradHRes x phi alpha bias hPre hcBeforeNorm invRms sumOut normOut hcEps "
        "gradX gradPhi gradAlpha gradBias"
    )
    assert [a.c_type for a in MHC_PRE_SINKHORN_BACKWARD.attrs] == ["double"]


@pytest.mark.parametrize("tokens", [(2, 3), (6,), (-1, -1)])
def test_saved_tensors_of_pre_sinkhorn_have_the_natural_layout(tokens: tuple[int, ...]) -> None:
    sizes = MHC_PRE_SINKHORN.bind([(*tokens, 4, 128), (24, 512), (3,), (24,)], I=20)
    shapes = {a.name: resolve(a.shape, sizes) for a in MHC_PRE_SINKHORN.outputs}
    assert shapes == {
        "hin": (*tokens, 128),
        "hPost": (*tokens, 4),
        "hRes": (*tokens, 16),
        "hPre": (*tokens, 4),
        "hcBeforeNorm": (*tokens, 24),
        "invRms": (*tokens, 1),
        "sumOut": (40, *tokens, 4),
        "normOut": (40, *tokens, 4, 4),
    }


def test_token_dimensions_bind_wherever_they_stand() -> None:
    last = Operator("aclnnOther", (Argument("a", "input", shape=("2*I", "T", "N")),), {})
    assert last.bind([(40, 2, 3, 4)]) == {"T": (2, 3), "N": (4,), "F": (24,)}


def test_limits_of_pre_sinkhorn() -> None:
    forward, backward = MHC_PRE_SINKHORN.limits, MHC_PRE_SINKHORN_BACKWARD.limits
    assert set(forward) == set(backward) == {A5, A3, A2}
    assert forward[A5].refusal(4, 4096, 20, 2) is None
    assert forward[A5].refusal(4, 1280) == "hidden_size 1280 is not one of 4096, 7168"
    assert forward[A2].refusal(4, 1280) is None
    assert forward[A2].refusal(4, 1300) == "hidden_size 1300 is not a multiple of 128"
    assert forward[A3].refusal(6) == "num_streams 6 is not one of 4"
    assert forward[A3].refusal(4, num_iters=10) == "num_iters 10 is not 20"
    assert forward[A5].refusal(4, token_dims=1) == "x has 1 token dimensions, not 2"
    assert backward[A5].refusal(4, 4096, 20, 1) is None


def test_precision_of_the_product_with_phi() -> None:
    """ACLNN_SPEC.md sections 1, 2, 7 and 8."""
    modes = {(o.name, soc): limits.precisions for o in OPERATORS.values() for soc, limits in o.limits.items()}
    assert modes["aclnnMhcPre", A5] == modes["aclnnMhcPreBackward", A5] == ("float32",)
    assert modes["aclnnMhcPreV2", A5] == modes["aclnnMhcPreBackwardV2", A5] == ("float32", "hf32")
    assert {modes["aclnnMhcPreSinkhorn", soc] for soc in (A5, A3, A2)} == {("hf32",)}
    assert modes["aclnnMhcPreSinkhornBackward", A5] == ("float32",)
    assert modes["aclnnMhcPreSinkhornBackward", A2] == modes["aclnnMhcPreSinkhornBackward", A3] == ("hf32",)
    assert MHC_PRE_V2.impl_mode(A5, "hf32") == 1
    assert MHC_PRE.impl_mode(A5, "float32") == 0
    assert MHC_PRE.impl_mode(A5, "hf32") is None
    assert MHC_PRE_V2.impl_mode(A2, "float32") is None
