"""Which captures of ``ms.jit`` are refused, without one: tests/test_eager.py makes them."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import SimpleNamespace

import pytest

from ms_mhc import capture

needs_capture = pytest.mark.skipif(capture.pijit_context is None, reason="this MindSpore has no such captures")


@needs_capture
def test_a_trace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    capture.refuse()
    monkeypatch.setattr(capture, "jit_context", object)
    with pytest.raises(RuntimeError, match=r"not right under ms.jit\(capture_mode='trace'\)"):
        capture.refuse()


@needs_capture
@pytest.mark.parametrize("captured", [True, False])
def test_bytecode_is_refused_where_mindspore_calls_the_captured_function(
    monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    monkeypatch.setattr(capture.pijit_context, "SKIP_RULES", {})  # as it is once something was captured
    place = capture.pijit_context.__file__ if captured else __file__
    names = {"refuse": capture.refuse}
    exec(compile("def _fn():\n    refuse()\n", place, "exec"), names)
    if not captured:
        names["_fn"]()
        return
    with pytest.raises(RuntimeError, match=r"not right under ms.jit\(capture_mode='bytecode'\)"):
        names["_fn"]()


@needs_capture
def test_our_packages_are_left_out_before_and_after_mindspore_reads_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    fake = SimpleNamespace(SKIP_RULES={"third_party": ("numpy",)}, pi_jit_set_context=lambda **o: told.append(o))
    monkeypatch.setattr(capture, "pijit_context", fake)
    capture.leave_out()
    assert fake.SKIP_RULES["third_party"] == ("numpy", "ms_mhc", "aclnn_adapter")
    assert not told
    fake.SKIP_RULES = {}
    capture.leave_out()
    ((folders,),) = (options.values() for options in told)
    assert capture.__file__.startswith(folders[0])
    assert folders[1].endswith("/aclnn_adapter/")


def test_where_mindspore_has_no_such_captures_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mindspore.graph._utils", None)
    spec = importlib.util.spec_from_file_location("another_capture", capture.__file__)
    assert spec is not None
    assert spec.loader is not None
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    with caplog.at_level(logging.DEBUG, "ms_mhc"):
        another.leave_out()
    another.refuse()
    assert "the captures of ms.jit are not known here" in caplog.text
