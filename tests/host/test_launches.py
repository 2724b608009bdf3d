"""How many kernels a training step of one connection launches."""

from __future__ import annotations

import os

import pytest

from benchmarks import launches

OLD_CANN = ("aclnnMhcPreBackward", "aclnnMhcPost", "aclnnMhcPostBackward")


# The program around the connection launches about ten of them.
@pytest.mark.parametrize(
    ("case", "mode", "most"),
    [
        (launches.Case("A2", launches.A2), launches.GRAPH, 180),
        (launches.Case("A2", launches.A2), launches.EAGER, 225),
        (launches.Case("A2 with an old CANN", launches.A2, without=OLD_CANN), launches.GRAPH, 228),
        (launches.Case("A2 with an old CANN", launches.A2, without=OLD_CANN), launches.EAGER, 225),
    ],
)
def test_a_step_on_a2_launches_few_kernels(host, monkeypatch, case, mode, most):
    for name in ("PYTHONPATH", "MS_COMPILER_CACHE_PATH", "GLOG_v"):
        monkeypatch.setitem(os.environ, name, host.environment[name])
    monkeypatch.chdir(host.folder)
    counted = launches.launches(case, mode)
    assert counted["aclnnBaddbmm"] >= 77, "the steps of Sinkhorn, forward and backward, are products with an addend"
    assert sum(counted.values()) <= most
