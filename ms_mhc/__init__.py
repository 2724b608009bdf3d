"""mHC (Manifold-Constrained Hyper-Connections) for MindSpore, on Ascend with the aclnn kernels and everywhere else without."""

from ms_mhc.cells import MhcPre
from ms_mhc.functional import mhc_pre, mhc_pre_backward

__all__ = ["MhcPre", "mhc_pre", "mhc_pre_backward"]
__version__ = "0.1.0"
