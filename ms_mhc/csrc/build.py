# SPDX-License-Identifier: Apache-2.0
"""Compiles the C++ core into one shared library.

``python -m ms_mhc.csrc.build`` puts it beside the sources; ``build(Path("libms_mhc_cpu.so"))`` anywhere. That
needs a C++17 compiler (``$CXX``, else g++, c++ or clang++) and nothing else. The kernels are compiled once per
instruction set that the compiler knows and the library takes the best one at run time. It carries a digest of the
sources that it was compiled from, by which ``ms_mhc.csrc`` knows it again.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Sequence

SOURCES = pathlib.Path(__file__).resolve().parent

KERNELS = "kernels.cc"
ONCE = ("pre.cc", "post.cc", "sinkhorn.cc", "memory.cc", "cpu.cc", "about.cc", "mindspore_aot.cc")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-fvisibility-inlines-hidden", "-Wall", "-Wextra")

# Instruction sets beyond the baseline, by machine. cpu.cc knows the same names.
VARIANTS: Dict[str, Dict[str, Sequence[str]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": (
            *("-mavx2", "-mfma", "-mf16c"),
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"),
        ),
    },
}


class BuildError(RuntimeError):
    """There is no usable compiler, or it refused the sources; the message says which."""


def source_digest() -> str:
    """A digest of the C++ sources and of the flags they are compiled with.

    Raises :class:`BuildError` if the sources cannot be read.
    """
    digest = hashlib.sha256(repr((KERNELS, ONCE, FLAGS, VARIANTS)).encode())
    files = sorted([*SOURCES.glob("*.cc"), *SOURCES.glob("*.h")], key=lambda path: path.name)
    missing = sorted({KERNELS, *ONCE} - {path.name for path in files})
    if missing:
        raise BuildError(f"ms_mhc: the C++ sources are not in {SOURCES}: {', '.join(missing)} missing")
    try:
        for path in files:
            text = path.read_bytes()
            digest.update(f"\n{path.name} {len(text)}\n".encode() + text)
    except OSError as error:
        raise BuildError(f"ms_mhc: the C++ sources cannot be read: {error}") from error
    return digest.hexdigest()[:32]


def find_compiler() -> List[str]:
    """The command that compiles C++: ``$CXX``, else the first of g++, c++ and clang++ on the path."""
    wanted = os.environ.get("CXX", "").strip()
    if wanted:
        try:
            command = shlex.split(wanted)
        except ValueError:  # an open quotation mark
            command = [wanted]
        if shutil.which(command[0]) is None:
            raise BuildError(f"ms_mhc: CXX={wanted!r} is not a program; unset CXX or set it to a C++17 compiler")
        return command
    for name in ("g++", "c++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise BuildError("ms_mhc: no C++ compiler (g++, c++, clang++); install one, for example g++, or set CXX")


def _run(command: Sequence[str]) -> None:
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=SOURCES, check=False)
    except OSError as error:
        raise BuildError(f"ms_mhc: {command[0]} cannot be run: {error}") from error
    if result.returncode != 0:
        output = result.stdout.decode(errors="replace")
        raise BuildError(f"ms_mhc: this command failed:\n{shlex.join(command)}\n{output}")


def _accepts(compiler: Sequence[str], flags: Sequence[str], workspace: pathlib.Path) -> bool:
    probe = workspace / "probe.cc"
    probe.write_text("int main() { return 0; }\n", encoding="utf-8")
    try:
        _run([*compiler, *flags, str(probe), "-o", str(workspace / "probe")])
    except BuildError:
        return False
    return True


def build(destination: pathlib.Path, extra_flags: Sequence[str] = ()) -> pathlib.Path:
    """Compile the core to ``destination``, which is replaced only by a complete library, and return it.

    ``extra_flags`` come last, for example ``("-Werror",)`` or ``("-O1", "-g", "-fsanitize=address")``.
    Raises :class:`BuildError` if that cannot be done.
    """
    compiler = find_compiler()
    destination = pathlib.Path(destination).absolute()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ms_mhc_build_", dir=destination.parent) as folder:
            _compile(compiler, pathlib.Path(folder), extra_flags).replace(destination)
    except OSError as error:
        raise BuildError(f"ms_mhc: {destination} cannot be written: {error}") from error
    return destination


def _compile(compiler: Sequence[str], workspace: pathlib.Path, extra_flags: Sequence[str]) -> pathlib.Path:
    """The library, complete, in the workspace."""
    flags = [*FLAGS]
    flags += ["-fopenmp"] if _accepts(compiler, ["-fopenmp"], workspace) else ["-Wno-unknown-pragmas"]
    variants = {
        name: options
        for name, options in VARIANTS.get(platform.machine(), {}).items()
        if _accepts(compiler, options, workspace)
    }
    every = {"baseline": (), **variants}
    defines = [f"-DMHC_HAS_{name.upper()}" for name in variants]
    defines.append(f'-DMHC_SOURCE_DIGEST="{source_digest()}"')

    objects = [workspace / f"{name}.o" for name in (*every, *ONCE)]
    commands = [
        [*compiler, *flags, f"-DMHC_ISA={name}", *options, *extra_flags, "-c", KERNELS, "-o"]
        for name, options in every.items()
    ]
    commands += [[*compiler, *flags, *defines, *extra_flags, "-c", source, "-o"] for source in ONCE]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        list(pool.map(_run, [[*command, str(target)] for command, target in zip(commands, objects)]))

    library = workspace / "library.so"
    _run([*compiler, *flags, *extra_flags, "-shared", *map(str, objects), "-o", str(library)])
    return library


def is_current(library: pathlib.Path) -> bool:
    """Whether a library was compiled from these sources, by the digest in it."""
    try:
        return source_digest().encode() in library.read_bytes()
    except OSError:
        return False


def main(arguments: List[str]) -> str:
    """``[--if-changed] [DESTINATION [FLAG ...]]``; what to print."""
    only_if_changed = arguments[:1] == ["--if-changed"]
    destination, *flags = arguments[only_if_changed:] or [str(SOURCES / "libms_mhc_cpu.so")]
    target = pathlib.Path(destination)
    if only_if_changed and is_current(target):
        target.touch()
        return f"{target} is up to date"
    return str(build(target, flags))


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except BuildError as build_error:
        sys.exit(str(build_error))
