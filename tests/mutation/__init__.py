"""Breaking the code on purpose: every edit must make some test fail. See ``python -m tests.mutation --help``."""
