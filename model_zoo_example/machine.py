"""Device, mode, and this process's place among the others."""

from __future__ import annotations

import dataclasses
import os

import mindspore as ms

from model_zoo_example.settings import Settings, SettingsError


@dataclasses.dataclass(frozen=True)
class Place:
    """Which process this is. Number 0 writes and prints."""

    rank: int = 0
    processes: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0


def set_up(settings: Settings) -> Place:
    """Choose device and mode, and join the other processes where ``msrun`` started several.

    Raises:
        SettingsError: the device cannot be used here, or the batch cannot be shared out.
    """
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    try:
        ms.set_device(settings.device)
    except (RuntimeError, ValueError) as error:
        # a process that has computed already cannot choose again, and need not where the choice is the same
        if "has been initialized" not in str(error) or ms.get_context("device_target") != settings.device:
            reason = str(error).strip().splitlines()[0]
            raise SettingsError(f"device {settings.device}: MindSpore cannot use it here: {reason}") from error
    if settings.device == "Ascend":
        ms.set_context(jit_config={"jit_level": "O0"})
    processes = int(os.environ.get("MS_WORKER_NUM", "1"))
    if processes == 1:
        return Place()
    part = settings.batch_size // settings.accumulation
    if part % processes:
        raise SettingsError(f"batch_size / accumulation is {part}, which {processes} processes cannot share equally")
    from mindspore.communication import get_group_size, get_rank, init

    init("mccl" if settings.device == "CPU" else "hccl")
    rank, size = get_rank(), get_group_size()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=size)
    return Place(rank, size)
