"""How fast and how large: every way to compute mHC here, measured in one run, see docs/benchmarks.md."""
