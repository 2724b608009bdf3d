"""HCCL through ctypes, in several processes. For programs that run on the host CANN."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, List, Optional

import numpy as np
from acl import LIBRARIES, error, runtime

hccl = ctypes.CDLL(str(LIBRARIES / "libhccl.so"))
hccl.HcclGetErrorString.restype = ctypes.c_char_p
DTYPES = {
    "int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5,
    "uint64": 6, "uint8": 7, "uint16": 8, "uint32": 9, "float64": 10, "bfloat16": 11,
}  # fmt: skip
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
WRONG_PARAMETER, NOT_SERVED, TIMEOUT, REMOTE_ENDED = 1, 5, 9, 21


class Memory:
    """Device memory with the elements of an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.dtype, self.shape, self.bytes = array.dtype, array.shape, max(array.nbytes, 1)
        self.address = ctypes.c_void_p()
        assert runtime.aclrtMalloc(ctypes.byref(self.address), ctypes.c_size_t(self.bytes), 0) == 0
        ctypes.memmove(self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def numpy(self) -> np.ndarray:
        result = np.empty(self.shape, self.dtype)
        ctypes.memmove(result.ctypes.data, self.address, result.nbytes)
        return result


class Failed(Exception):  # noqa: N818 - a result that is expected
    """A call's code and the text that CANN has for it."""


class Group:
    """One rank's communicator. Every method hands its arguments on as a C program would."""

    def __init__(self, root: Any, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.handle = rank, ranks, ctypes.c_void_p()
        check(hccl.HcclCommInitRootInfo(ranks, ctypes.byref(root), rank, ctypes.byref(self.handle)))

    def call(self, name: str, *arguments: Any) -> None:
        check(getattr(hccl, name)(*map(_c, arguments), self.handle, None))

    def all_reduce(self, array: np.ndarray, op: str = "sum", in_place: bool = False) -> np.ndarray:
        send = Memory(array)
        receive = send if in_place else Memory(np.zeros_like(array))
        kind = DTYPES[str(array.dtype)]
        self.call("HcclAllReduce", send, receive, _u64(array.size), kind, REDUCTIONS[op])
        return receive.numpy()


def _c(value: Any) -> Any:
    return value.address if isinstance(value, Memory) else value


def _u64(number: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(number)


def counts(*numbers: int) -> Any:
    """A list of numbers as the operations with different shares take it."""
    return (ctypes.c_uint64 * len(numbers))(*numbers)


def check(status: int) -> None:
    if status:
        raise Failed(status, error())


def new_root() -> Any:
    root = ctypes.create_string_buffer(4108)
    check(hccl.HcclGetRootInfo(ctypes.byref(root)))
    return root


def run(ranks: int, work: Callable[[Group], Any], *, limit: float = 60, root: Optional[Any] = None) -> List[Any]:
    """What ``work`` gives in every rank; for one that failed, the code and text, for one that was killed, ``None``."""
    context = multiprocessing.get_context("fork")
    root = new_root() if root is None else root
    processes = []
    for rank in range(ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_one, args=(theirs, root, rank, ranks, work))
        process.start()
        theirs.close()
        processes.append((process, ours))
    deadline = time.monotonic() + limit
    results = []
    for _, pipe in processes:
        arrived = pipe.poll(max(deadline - time.monotonic(), 0))
        try:
            results.append(pipe.recv() if arrived else "hangs")
        except EOFError:
            results.append(None)
    for process, _ in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
    return results


def _one(pipe: Any, root: Any, rank: int, ranks: int, work: Callable[[Group], Any]) -> None:
    try:
        pipe.send(work(Group(root, rank, ranks)))
    except Failed as failed:
        pipe.send(failed.args)


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def open_sockets(root: Any) -> List[str]:
    """The sockets of one communicator that any process on this machine has open."""
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if root.value.decode() in line]
