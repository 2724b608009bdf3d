"""What was found: said at once, and kept for a file that can be attached to an issue, without anything personal."""

from __future__ import annotations

import getpass
import math
import platform as python_platform
import re
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from aclnn_adapter import platform
from ms_mhc import strict_json

_LONGEST = 400  # characters of an error's text
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:;,'\"()<>]+[/\\])+")


def without_names(text: str) -> str:
    """A text without folders, user name and host name: of a path the last part is left."""
    text = _PATH.sub(".../", text)
    for name, word in ((_user(), "<user>"), (socket.gethostname(), "<host>"), (_home(), "<user>")):
        if name:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", word, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _home() -> str:
    try:
        return Path.home().name
    except RuntimeError:  # a container may run as a number that has no user
        return ""


def reason(error: BaseException) -> str:
    """An error in one line. MindSpore's texts have rules and titles between their lines."""
    lines = (line.strip("- ") for line in str(error).splitlines())
    said = " ".join(line for line in lines if line) or "no message"
    return without_names(f"{type(error).__name__}: {said}")[:_LONGEST]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def surroundings() -> Dict[str, Any]:
    """Versions and kinds of everything; no names and no paths."""
    target = platform.device_target()
    return {
        "versions": {name: _version(name) for name in ("ms-mhc", "mindspore", "numpy", "ml_dtypes")},
        "python": sys.version.split()[0],
        "system": f"{python_platform.system()} {python_platform.machine()}",
        "device": target,
        "soc": platform.soc_version() if target == "Ascend" else None,
        "cann": platform.cann_version(),
    }


class Report:
    """Says what was found as soon as it is, counts what failed, and keeps everything."""

    def __init__(self, say: Callable[[str], Any], options: Dict[str, Any], file: Optional[Path] = None) -> None:
        self.say = say
        self.file = file
        self.surroundings = surroundings()
        self.checks: List[Dict[str, Any]] = []
        self.measured: Dict[str, Any] = {}
        self.options = options
        self.complete = False
        self.start = time.monotonic()

    @property
    def failures(self) -> int:
        return sum(check["status"] != "ok" for check in self.checks)

    def check(self, name: str, case: Dict[str, Any], compare: Callable[[], Dict[str, float]]) -> None:
        """Run one check: fractions of what is allowed, by tensor. An error is a failure, and the tests go on."""
        start = time.monotonic()
        entry: Dict[str, Any] = {"name": name, "case": case}
        self._write(running=entry)
        text = " ".join([name, *(f"{key}={_text(value)}" for key, value in case.items())])
        try:
            ratios = compare()
        except Exception as error:
            entry.update(status="error", reason=reason(error))
            self.say(f"  ERROR {text}: {entry['reason']}")
        else:
            worst = max(ratios, key=lambda tensor: math.inf if math.isnan(ratios[tensor]) else ratios[tensor])
            good = ratios[worst] <= 1  # which NaN is not
            entry.update(status="ok" if good else "wrong", worst=worst, ratios=ratios)
            said = f"{ratios[worst]:.2f} of what is allowed, in {worst}"
            if not good:
                said += "; wrong: " + ", ".join(t for t in ratios if not ratios[t] <= 1)
            self.say(f"  {'ok   ' if good else 'WRONG'} {text}: {said}")
        entry["seconds"] = round(time.monotonic() - start, 3)
        self.checks.append(entry)
        self._write()

    def measure(self, name: str, measurement: Callable[[], Any]) -> Optional[Any]:
        """Something to know rather than to judge; where it fails, that is a failure all the same."""
        self._write(running={"name": name})
        try:
            self.measured[name] = measurement()
        except Exception as error:
            self.refuse(name, error)
            return None
        return self.measured[name]

    def refuse(self, name: str, error: BaseException) -> None:
        """An error that is no check's."""
        self.checks.append({"name": name, "case": {}, "status": "error", "reason": reason(error)})
        self.say(f"  ERROR {name}: {reason(error)}")
        self._write()

    def end(self) -> None:
        """Everything was done."""
        self.complete = True
        self._write()
        self.say("all checks passed" if not self.failures else f"{self.failures} checks FAILED")

    def _write(self, running: Optional[Dict[str, Any]] = None) -> None:
        """After each check and before the next: a kernel's fault may end the process."""
        if self.file is None:
            return
        content = {
            "format": 1,
            **self.surroundings,
            "options": self.options,
            "complete": self.complete,
            "running": running,
            "seconds": round(time.monotonic() - self.start, 1),
            "failures": self.failures,
            "checks": self.checks,
            **self.measured,
        }
        try:
            strict_json.write(content, self.file)
        except OSError as error:  # a disk that fills up is no reason to stop
            self.file = None
            self.refuse("report", error)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
