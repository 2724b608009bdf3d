"""mHC (Manifold-Constrained Hyper-Connections) for MindSpore, on Ascend with the aclnn kernels, elsewhere without."""

from ms_mhc.cells import HyperConnection, MhcHead, MhcPost, MhcPre, MhcSinkhorn
from ms_mhc.functional import expand_streams, merge_streams, mhc_head, mhc_post, mhc_pre, mhc_pre_backward, mhc_sinkhorn
from ms_mhc.version import __version__

__all__ = [
    "HyperConnection",
    "MhcHead",
    "MhcPost",
    "MhcPre",
    "MhcSinkhorn",
    "__version__",
    "expand_streams",
    "merge_streams",
    "mhc_head",
    "mhc_post",
    "mhc_pre",
    "mhc_pre_backward",
    "mhc_sinkhorn",
]
