"""Does this machine compute what the float64 reference computes, with which kernels, and how fast?

Made for people who have the hardware that this project's own machines lack; it runs on any device. Numbers are judged
by :mod:`ms_mhc.accuracy`. A further operator is an entry of :data:`ms_mhc.selftest.programs.PROGRAMS`.
"""

from ms_mhc.selftest.machine import WAYS
from ms_mhc.selftest.run import main

__all__ = ["WAYS", "main"]
