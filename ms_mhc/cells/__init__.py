"""The operators as cells: parameters, initial values, configuration."""

from ms_mhc.cells.head import MhcHead
from ms_mhc.cells.hyper_connection import HyperConnection
from ms_mhc.cells.post import MhcPost
from ms_mhc.cells.pre import MhcPre
from ms_mhc.cells.sinkhorn import MhcSinkhorn

__all__ = ["HyperConnection", "MhcHead", "MhcPost", "MhcPre", "MhcSinkhorn"]
