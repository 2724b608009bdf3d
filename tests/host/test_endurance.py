"""A training that goes on for thousands of steps keeps neither memory nor files, through the vendor's kernels."""

from __future__ import annotations

import pytest

_PROGRAM = """
import sys
from tests import endurance
sys.exit(endurance.main({arguments}))
"""


def _train(host, *arguments):
    host.environment["OMP_NUM_THREADS"] = "1"
    program = _PROGRAM.format(arguments=["--device", "Ascend", "--backend", "aclnn", *arguments])
    return host.run(program, timeout=3600)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_a_long_training_keeps_nothing(host, mode):
    done = _train(host, "--mode", mode)
    assert "nothing grew" in done.output
    assert len(done.calls("aclnnMhcPostBackward")) == 2000
