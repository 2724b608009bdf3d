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
_LOOKED_UP = """
aclSetCompileopt aclrtCtxSetSysParamOpt aclrtDestroyStreamForce aclrtGetLastError aclrtPeekAtLastError
aclrtSetDeviceSatMode aclrtSetOpExecuteTimeOut aclrtSetOpWaitTimeout aclrtSetStreamFailureMode aclrtSetSysParamOpt
aclrtSubscribeReport aclrtSynchronizeDevice aclrtSynchronizeDeviceWithTimeout aclrtSynchronizeStreamWithTimeout
aclrtUnSubscribeReport
""".split()


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
        found = [importlib.util.find_spec(name) for name in ("torch_npu", "torch")]
        roots = [Path(spec.origin).parent for spec in found if spec is not None and spec.origin is not None]
        if len(roots) < len(found):
            return None
        version_file = roots[0] / "version.py"
        match = re.search(r"__version__ = ['\"]([^'\"]+)", version_file.read_text()) if version_file.is_file() else None
        return TorchNpu(*roots, match.group(1) if match else "unknown")

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
