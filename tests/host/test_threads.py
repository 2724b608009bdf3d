"""Two Python threads call one cell, through the vendor's kernels."""

from __future__ import annotations

import pytest

_PROGRAM = """
import sys
from tests import threads
sys.exit(threads.main({arguments}))
"""


@pytest.mark.parametrize("case", [["--mode", "pynative"], ["--mode", "graph", "--gradients", "--locked"]], ids=" ".join)
def test_each_thread_gets_its_own_answers(host, case):
    done = host.run(_PROGRAM.format(arguments=["--device", "Ascend", "--backend", "aclnn", *case]))
    assert done.calls("aclnnMhcPre")
