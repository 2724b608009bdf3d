"""What torch_npu, PyTorch's Ascend backend, wants from CANN, read off the installed wheel."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Set

from . import elf

# torch_npu raises where one of these cannot be found by name. Each has an effect and no result, so that a function
# which does nothing and succeeds is right for it. It does without the other functions that it looks for.
_LOOKED_UP = (
    "aclSetCompileopt",
    "aclrtCtxSetSysParamOpt",
    "aclrtDestroyStreamForce",
    "aclrtGetLastError",
    "aclrtPeekAtLastError",
    "aclrtSetDeviceSatMode",
    "aclrtSetOpExecuteTimeOut",
    "aclrtSetOpWaitTimeout",
    "aclrtSetStreamFailureMode",
    "aclrtSetSysParamOpt",
    "aclrtSubscribeReport",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeDeviceWithTimeout",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtUnSubscribeReport",
)


@dataclass(frozen=True)
class TorchNpu:
    """An installed torch_npu, with the PyTorch beside it."""

    root: Path
    torch: Path
    version: str
    name = "torch_npu"
    preloaded = ()

    @staticmethod
    def installed() -> Optional[TorchNpu]:
        """The torch_npu of this interpreter, without importing it; ``None`` if there is none."""
        root, torch = _folder("torch_npu"), _folder("torch")
        if root is None or torch is None:
            return None
        version_file = root / "version.py"
        match = re.search(r"__version__ = ['\"]([^'\"]+)", version_file.read_text()) if version_file.is_file() else None
        return TorchNpu(root, torch, match.group(1) if match else "unknown")

    def libraries(self) -> List[Path]:
        """What ``import torch_npu`` loads of the wheel: its extension module and what that is linked against."""
        ours = {path.name: path for path in self.root.glob("lib/*.so")}
        loaded: List[Path] = []
        waiting = sorted(self.root.glob("_C.*.so"))
        while waiting:
            library = waiting.pop()
            loaded.append(library)
            needed = {ours[name] for name in elf.needed_libraries(library) if name in ours}
            waiting.extend(sorted(needed.difference(loaded, waiting)))
        return loaded

    def linked_symbols(self) -> Set[str]:
        """The symbols that these libraries leave open and neither PyTorch nor the system defines."""
        return elf.open_symbols(self.libraries(), self.torch.glob("lib/*.so"))

    def looked_up_symbols(self) -> Set[str]:
        """The runtime functions that torch_npu looks up by name and cannot do without."""
        return set(_LOOKED_UP)

    def collective_symbols(self) -> Set[str]:
        """The one HCCL function that every program asks for. A process group says that HCCL lacks the others."""
        return {"HcclSetConfig"}


def _folder(package: str) -> Optional[Path]:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
