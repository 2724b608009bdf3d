"""Peak extra memory of one step.

``python -m ms_mhc.bench.memory OPERATOR PASSES DTYPE T,N,D CONTENDER [FILES OF CONTENDERS]`` prints bytes.

MindSpore keeps the memory that it once took, so only the first run in a fresh process shows what a step needs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

from ms_mhc.bench import environment
from ms_mhc.bench.task import Shape, Task, make_inputs


def missing() -> Optional[str]:
    """Why it cannot be measured here, or ``None``."""
    if not Path("/proc/self/clear_refs").exists():
        return "the kernel has no /proc/self/clear_refs"
    return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def _first_run(task: Task, name: str, against: Sequence[Path]) -> int:
    """How far resident memory rises above what it was when inputs and compiled code were there."""
    from ms_mhc.bench.contenders import contenders

    contender = next(c for c in contenders(against) if c.name == name)
    step = contender.make(task, make_inputs(task))
    if contender.warm:
        step.run()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5 resets VmHWM
    step.run()
    return max(0, _status("VmHWM") - before)


def peak_extra(task: Task, name: str, against: Sequence[Path] = ()) -> Tuple[Optional[int], str]:
    """Bytes, measured in a child process; where that fails, ``None`` and the last that it said."""
    words = [task.operator, task.passes, task.dtype, str(task.shape), name, *map(str, against)]
    command = [sys.executable, "-m", "ms_mhc.bench.memory", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return int(done.stdout.split()[-1]), ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return None, f"status {done.returncode}: {said[-1] if said else 'no message'}"[:200]


def main(words: Sequence[str]) -> int:
    """The child's program."""
    environment.use(int(os.environ.get("OMP_NUM_THREADS", "1")))
    operator, passes, dtype, shape, name, *against = words
    task = Task(operator, passes, dtype, Shape(*map(int, shape.split(","))))
    print(_first_run(task, name, [Path(file) for file in against]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
