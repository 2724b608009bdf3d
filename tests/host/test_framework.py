"""What the aclnn framework refuses: misuse is an error with words, never luck."""

from __future__ import annotations

from pathlib import Path

from conftest import Host

from aclnn_adapter.host import build

_COMMON = """
import ctypes
import numpy as np
from acl import *

def prepared(name="aclnnMhcPost", **changes):
    op, v = example(name)
    v.update(changes)
    call = Call(name, *v.values())
    assert call.first_phase() == 0, error()
    return call

def refused(status, *words):
    message = error()
    assert status != 0 and all(word in message for word in words), (status, message)
"""


def test_an_executor_serves_once_unless_it_is_repeatable(host: Host) -> None:
    host.run(
        _COMMON
        + """
once = prepared()
assert once.second_phase() == 0
refused(once.second_phase(), "aclnnMhcPost", "used once without being made repeatable")
again = prepared()
assert opapi.aclSetAclOpExecutorRepeatable(again.executor) == 0
assert again.second_phase() == 0 and again.second_phase() == 0
assert opapi.aclDestroyAclOpExecutor(again.executor) == 0
refused(again.second_phase(), "the executor is gone")
refused(opapi.aclDestroyAclOpExecutor(again.executor), "the executor is gone")
again.executor = ctypes.c_void_p(12345)
refused(again.second_phase(), "not an executor")
other = prepared()
other.launch = opapi.aclnnMhcPre
refused(other.second_phase(), "belongs to aclnnMhcPost")
"""
    )


def test_executor_reuse_off_refuses_to_be_repeatable(host: Host) -> None:
    host.run(
        _COMMON + "assert opapi.aclSetAclOpExecutorRepeatable(prepared().executor) != 0\n", "--executor-reuse", "off"
    )


def test_null_and_foreign_addresses_are_refused_at_launch(host: Host) -> None:
    host.run(
        _COMMON
        + """
x = np.ones((6, 4, 128), ml_dtypes.bfloat16)
refused(prepared(x=DeviceTensor(x, address=0)).second_phase(), "aclnnMhcPost: x has a null address")
refused(prepared(x=DeviceTensor(x, address=x.ctypes.data)).second_phase(), "x", "beyond mapped device memory")
small = DeviceTensor(x[:1].copy())
refused(prepared(x=DeviceTensor(x, address=small.memory.value + 512)).second_phase(), "beyond mapped device memory")
freed = prepared()
runtime.aclrtFree(freed.tensors[0].memory)
refused(freed.second_phase(), "x", "beyond mapped device memory")
"""
    )


def test_an_address_can_be_set_after_the_first_phase(host: Host) -> None:
    host.run(
        _COMMON
        + """
op, v = example("aclnnMhcPost")
want = Call("aclnnMhcPost", *v.values()).run()["out"]
late = prepared(x=DeviceTensor(v["x"], address=0))
data = DeviceTensor(v["x"])
def setter(index, tensor):
    handle = ctypes.c_void_p(tensor.handle)
    return opapi.aclSetTensorAddr(late.executor, ctypes.c_size_t(index), handle, data.memory)
refused(setter(1, late.tensors[0]), "is not the one whose address is set")
refused(setter(7, late.tensors[0]), "does not have")
assert setter(0, late.tensors[0]) == 0 and late.second_phase() == 0
assert np.array_equal(late.outputs()["out"], want)
"""
    )


def test_the_workspace_must_be_large_enough_and_is_scratch(host: Host) -> None:
    host.run(
        _COMMON
        + """
short = prepared("aclnnMhcPre")
assert short.workspace.value > 0
refused(short.second_phase(missing=1), "workspace")
absent = prepared("aclnnMhcPre")
refused(absent.launch(None, ctypes.c_uint64(absent.workspace.value), absent.executor, None), "the workspace is null")
"""
    )


def test_arguments_may_be_destroyed_after_the_first_phase(host: Host) -> None:
    host.run(
        _COMMON
        + """
call = prepared()
for tensor in call.tensors:
    assert opapi.aclDestroyTensor(ctypes.c_void_p(tensor.handle)) == 0
assert call.second_phase() == 0, error()
refused(opapi.aclDestroyTensor(ctypes.c_void_p(call.tensors[0].handle)), "destroyed twice")
refused(Call("aclnnMhcPost", *call.tensors).first_phase(), "not a living aclTensor*")
"""
    )


def test_what_is_left_at_exit_is_counted(host: Host) -> None:
    leak = _COMMON + "call = prepared()\n"
    result = host.run(leak, "--check-leaks", expect=86)
    assert "left alive: 5 tensors 1 executors" in result.errors
    tidy = "call.destroy(); opapi.aclDestroyAclOpExecutor(call.executor)\n"
    assert "nothing left" in host.run(leak + tidy, "--check-leaks").errors
    host.run(leak)  # only counted when asked for
    assert host.run(leak + "raise SystemExit(3)\n", "--check-leaks", expect=3).status == 3


def test_a_repeatable_executor_at_exit_is_a_cache_not_a_leak(host: Host) -> None:
    cached = _COMMON + "call = prepared()\nassert opapi.aclSetAclOpExecutorRepeatable(call.executor) == 0\n"
    errors = host.run(cached, "--check-leaks").errors
    assert "nothing left" in errors
    assert "repeatable executors in caches: aclnnMhcPost 1" in errors


def test_copies_beyond_device_memory_are_refused(host: Host) -> None:
    host.run(
        _COMMON
        + """
tensor = DeviceTensor(np.ones(1024, np.float32))
host = np.zeros(4096, np.float32)
def copy(to, source, size, kind, room=None):
    room, size = ctypes.c_size_t(room or size), ctypes.c_size_t(size)
    return runtime.aclrtMemcpy(ctypes.c_void_p(to), room, ctypes.c_void_p(source), size, kind)
device = tensor.memory.value
assert copy(host.ctypes.data, device, 4096, 2) == 0 and host[:1024].all() and not host[1024:].any()
refused(copy(host.ctypes.data, device, 16384, 2), "not mapped device memory")
refused(copy(device, host.ctypes.data, 16384, 1), "not mapped device memory")
refused(copy(device, host.ctypes.data, 4096, 1, room=100), "room for 100")
refused(copy(0, host.ctypes.data, 4096, 1), "null")
"""
    )


def test_a_failure_inside_a_parallel_loop_becomes_a_status(host: Host) -> None:
    """OpenMP ends the process when an exception leaves one of its regions."""
    result = host.run(
        """
import mindspore as ms, numpy as np
from mindspore import Tensor, mint
ms.set_context(device_target="Ascend", mode=ms.PYNATIVE_MODE)
for size in (3, 100000):  # alone, and on several threads
    a = Tensor(np.ones((size, 4)), ms.uint32)
    for name, call in (("add", lambda: mint.add(a, a)), ("sum", lambda: mint.sum(a, 1, dtype=ms.uint32))):
        try:
            call().asnumpy()
        except RuntimeError as error:
            print("REFUSED", name, "dtype uint32 is not served" in str(error))
a = Tensor(np.ones(5), ms.float32)
print((a + a).asnumpy())
"""
    )
    assert result.output.count("REFUSED add True") == 2
    assert result.output.count("REFUSED sum True") == 2
    assert "[2. 2. 2. 2. 2.]" in result.output


def test_parallel_regions_are_opened_in_one_place() -> None:
    sources = Path(build.__file__).parent / "src"
    assert [f.name for f in sorted(sources.rglob("*.*")) if "pragma omp" in f.read_text()] == ["parallel.h"]
