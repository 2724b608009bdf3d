"""Sources of the libraries that exist only so that the libraries of a framework can be loaded."""

from __future__ import annotations

from typing import Iterable, Set

from . import elf

# Libraries that are looked for by name and need no symbol of their own.
EMPTY_LIBRARIES = (
    "libacl_tdt_channel",
    "libascend_hal",
    "libc_sec",
    "libgraph",
    "liblcal_ms",
    "libmsprofiler",
    "libplatform",
    "libprofapi",
    "libruntime",
    "libshmem",
)


_EXPORTED = 'extern "C" __attribute__((visibility("default")))'


def c_stubs(names: Iterable[str]) -> str:
    """C functions that do nothing and return 0, success."""
    return "".join(f"{_EXPORTED} long {name}() {{ return 0; }}\n" for name in names)


def cxx_stubs(mangled: Set[str]) -> str:
    """C++ functions under their mangled names.

    A constructor clears a handle, which holds one shared_ptr. But registrars are empty classes, one byte each: clearing
    more would overwrite their neighbours. Everything else returns its first argument, so that chains of calls hold.
    """
    constructed = elf.constructors(mangled)
    lines = ["#include <cstring>"]
    for number, name in enumerate(sorted(mangled)):
        clears = name in constructed and "Register" not in constructed[name]
        body = "std::memset(self, 0, 16); return self;" if clears else "return self;"
        lines.append(f'{_EXPORTED} void *stub{number}(void *self) __asm__("{name}");')
        lines.append(f"void *stub{number}(void *self) {{ {body} }}")
    return "\n".join(lines) + "\n"
