"""mHC (Manifold-Constrained Hyper-Connections) for MindSpore, on Ascend with the aclnn kernels, elsewhere without."""

from ms_mhc import capture
from ms_mhc.hyper_connection import HyperConnection
from ms_mhc.operators.head import MhcHead, mhc_head
from ms_mhc.operators.post import MhcPost, mhc_post
from ms_mhc.operators.pre import MhcPre, mhc_pre, mhc_pre_backward
from ms_mhc.operators.pre_sinkhorn import mhc_pre_sinkhorn
from ms_mhc.operators.sinkhorn import MhcSinkhorn, mhc_sinkhorn
from ms_mhc.operators.streams import expand_streams, merge_streams
from ms_mhc.version import __version__

capture.leave_out()

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
    "mhc_pre_sinkhorn",
    "mhc_sinkhorn",
]
