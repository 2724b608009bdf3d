"""The operators' mathematics in C++, and where their compiled library lies."""

from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "libms_mhc_cpu.so"
