"""The frameworks that call CANN. The host CANN serves whatever of them is installed in this Python, all at once."""

from __future__ import annotations

from typing import List, Protocol, Set, Tuple

from .mindspore_needs import MindSpore
from .torch_needs import TorchNpu


class NoClientError(RuntimeError):
    """There is no framework that could call CANN."""


class Client(Protocol):
    """What an installed framework wants from CANN, read off its files without importing it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def version(self) -> str:
        """Which one is installed."""

    @property
    def preloaded(self) -> Tuple[str, ...]:
        """The libraries of CANN that must be there before its own of the same name."""

    def linked_symbols(self) -> Set[str]:
        """The symbols without which its libraries cannot be loaded."""

    def looked_up_symbols(self) -> Set[str]:
        """The runtime functions that it looks up by name."""

    def collective_symbols(self) -> Set[str]:
        """The HCCL functions that it looks up by name."""


def installed() -> List[Client]:
    """The clients of this interpreter, in an order that does not change."""
    found: List[Client] = [client for client in (MindSpore.installed(), TorchNpu.installed()) if client is not None]
    if not found:
        raise NoClientError(
            "neither a MindSpore with the Ascend plugin nor torch_npu (with PyTorch) is installed in this Python; "
            "the host CANN serves these two"
        )
    return found
