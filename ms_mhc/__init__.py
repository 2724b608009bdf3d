"""mHC (Manifold-Constrained Hyper-Connections) for MindSpore, on Ascend with the aclnn kernels, elsewhere without."""

from ms_mhc.cells import HyperConnection, MhcPost, MhcPre, MhcSinkhorn
from ms_mhc.functional import expand_streams, merge_streams, mhc_post, mhc_pre, mhc_pre_backward, mhc_sinkhorn

__all__ = [
    "HyperConnection",
    "MhcPost",
    "MhcPre",
    "MhcSinkhorn",
    "expand_streams",
    "merge_streams",
    "mhc_post",
    "mhc_pre",
    "mhc_pre_backward",
    "mhc_sinkhorn",
]
__version__ = "0.1.0"
