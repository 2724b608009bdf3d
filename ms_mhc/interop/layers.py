"""One layer's tensors as a dict: the parameters of a ``MhcPre`` or a ``MhcHead``."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.layouts import HF, mindformers_of, read, write


def from_hf(tensors: Mapping[str, Any]) -> Arrays:
    """Parameters of ``MhcPre`` or ``MhcHead`` from a hyper-connection or head of Hugging Face's DeepSeek-V4.

    ``fn`` becomes phi, ``scale`` becomes alpha (a head's: scale), ``base`` becomes bias; all keep their shape and
    order. DeepSeek's released checkpoints and Transformers' modules hold the same tensors under different prefixes. The
    residual matrix has the direction of :func:`ms_mhc.mhc_post`. The RMS norm has no weight: a gamma of ones.

    The same numbers need ``recipe="deepseek_v4"``, the config's ``rms_norm_eps`` as norm_eps, its ``hc_eps`` as hc_eps
    and as sinkhorn_eps, its ``hc_sinkhorn_iters`` as num_iters, and a branch that begins with its own norm.

    Args:
        tensors: NumPy arrays or Tensors, float32, float16 or bfloat16. A hyper-connection has ``fn`` [N*N+2N, N*D],
            ``base`` [N*N+2N] and ``scale`` [3], a head ``fn`` [N, N*D], ``base`` [N] and ``scale`` [1].

    Returns:
        ``phi``, ``alpha``, ``bias``, or of a head ``phi``, ``scale``, ``bias``: copies in float32. bfloat16 and float16
        are widened, which is exact.

    Raises:
        TypeError: a value that is no array.
        ValueError: a missing or unexpected key, a wrong shape or dtype.
    """
    return read(HF, tensors)


def to_hf(params: Mapping[str, Any]) -> Arrays:
    """The inverse of :func:`from_hf`.

    Args:
        params: those of a ``MhcPre`` or a ``MhcHead``, by their names without prefix. A gamma must be all ones, and is
            left out: there is no place for it.

    Returns:
        ``fn``, ``base`` and ``scale`` in float32.

    Raises:
        TypeError, ValueError: as :func:`from_hf`; a gamma that is not all ones.
    """
    return write(HF, params)


def from_mindformers(
    tensors: Mapping[str, Any], *, version: Optional[str] = None, mixing: Optional[str] = None
) -> Arrays:
    """Parameters of ``MhcPre`` or ``MhcHead`` from a hyper-connection or head of MindSpore Transformers.

    HyperConnectionModule: ``mapping_proj.weight`` becomes phi, ``alpha_pre``, ``alpha_post`` and ``alpha_res`` become
    alpha, ``bias`` stays, ``rms_weight`` (frozen at ones there) becomes gamma. HyperConnectionHead: ``hc_fn.weight``,
    ``hc_scale`` and ``hc_base`` become phi, scale and bias.

    **Versions.** The tensors are the same in all versions, what is computed from them is not:

    ==================================  ================  ==================  ==================
    MindSpore Transformers              2.0.0             2.0.0, fused        2.1.0
    ==================================  ================  ==================  ==================
    ``use_fused_mhc``                   no                yes                 yes or no
    residual streams                    ``h_res @ x``     ``h_res.T @ x``     ``h_res.T @ x``
    rows of the residual matrix here    (i, j) to (j, i)  as they are         as they are
    ``recipe``                          ``"paper"``       ``"deepseek_v4"``   ``"deepseek_v4"``
    ``hc_eps`` (added to h_pre)         0                 1e-6                1e-6
    ``sinkhorn_eps``                    1e-6              1e-6                1e-6
    ``num_iters``                       the config's ``mhc_sinkhorn_iterations``; 0 acts as 1
    ``norm_eps``                        the config's ``mhc_layernorm_epsilon`` (Hugging Face's ``hc_eps`` there)
    learned head                        none, the mean    none, the mean      yes, hc_eps 1e-6
    computes in                         the compute       the kernels         float32
                                        dtype
    weights of Hugging Face             not taken over    not taken over      taken over, the rows as they are
    ==================================  ================  ==================  ==================

    ``h_res.T @ x`` is the direction of :func:`ms_mhc.mhc_post`. With ``h_res @ x`` Sinkhorn here starts with what are
    columns there: equal once it has converged. The version is the one that the weights were last used with, not the
    one that a file was copied with. A module with ``enable_cmhc`` (N! permutations instead of Sinkhorn) has other
    shapes and is refused.

    Args:
        tensors: NumPy arrays or Tensors, float32, float16 or bfloat16: ``mapping_proj.weight`` [N*N+2N, N*D], the
            alphas [1] each, ``bias`` [N*N+2N], and optionally ``rms_weight`` [N*D]; a head's ``hc_fn.weight`` [N, N*D],
            ``hc_scale`` [1], ``hc_base`` [N].
        version: ``"2.0.0"`` (its module without ``use_fused_mhc``, unless ``mixing`` says otherwise) or ``"2.1.0"``.
        mixing: ``"h_res @ x"`` or ``"h_res.T @ x"``: how the library applied the matrix, in place of a version or to
            tell the two modules of 2.0.0 apart. A hyper-connection needs one of the two arguments, a head neither.

    Returns:
        ``phi``, ``alpha``, ``bias`` and, where there was an ``rms_weight``, ``gamma``; of a head ``phi``, ``scale``,
        ``bias``. Copies in float32, widened exactly.

    Raises:
        TypeError: a value that is no array.
        ValueError: a missing or unexpected key, a wrong shape or dtype, an unknown version or mixing, neither of them,
            or two that contradict each other.
    """
    head = "hc_fn.weight" in tensors
    return read(mindformers_of(tensors, head, version, mixing), tensors)


def to_mindformers(params: Mapping[str, Any], *, version: Optional[str] = None, mixing: Optional[str] = None) -> Arrays:
    """The inverse of :func:`from_mindformers`. ``rms_weight`` is written where there is a gamma.

    Args:
        params: those of a ``MhcPre`` or a ``MhcHead``, by their names without prefix.
        version, mixing: as for :func:`from_mindformers`: who will use the tensors.

    Returns:
        MindSpore Transformers' tensors, in float32.

    Raises:
        TypeError, ValueError: as :func:`from_mindformers`; a head for a version that has none.
    """
    head = "scale" in params
    return write(mindformers_of(["hc_fn.weight"] if head else [], head, version, mixing), params)
