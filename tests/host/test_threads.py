"""Two Python threads call one cell, through the vendor's kernels."""

from __future__ import annotations

import pytest

_PROGRAM = """
import sys
from aclnn_adapter import extension
from tests import threads
if {small_graphs}:
    extension.refusal = lambda: "for this test"
sys.exit(threads.main({arguments}))
"""


@pytest.mark.parametrize(
    ("case", "small_graphs"),
    [
        (("--mode", "pynative"), False),
        (("--mode", "pynative"), True),
        (("--mode", "graph", "--gradients", "--locked"), False),
    ],
)
def test_each_thread_gets_its_own_answers(host, case, small_graphs):
    arguments = ["--device", "Ascend", "--backend", "aclnn", *case]
    done = host.run(_PROGRAM.format(arguments=arguments, small_graphs=small_graphs))
    assert done.calls("aclnnMhcPre")
