"""Build the host CANN once and keep it in a cache folder.

A cache folder holds the objects that were compiled for the installed frameworks and one state of the sources, and
beside them one CANN installation per variant: which entry points are hidden, and which header is served.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List, Sequence, Set, Tuple

from .. import folders
from . import clients, elf, hccl, stubs, vendor

CACHE_VARIABLE = "CANN_HOST_CACHE"
COMPILER = "g++"

_HERE = Path(__file__).resolve().parent
_SOURCES = _HERE / "src"
_HEADERS = _HERE / "include"  # what the installation has of CANN's
_CSRC = _HERE.parents[1] / "ms_mhc/csrc"  # the mathematics: the host computes it where the vendor has kernels
_FLAGS = ["-std=c++17", "-march=native", "-fPIC", "-fopenmp", "-fvisibility=hidden"]
_FAST = ("mhc", "csrc")  # what computes much; the rest compiles in a third of the time at -O1
_VERSION = f'-DCANN_VERSION="{vendor.CANN_VERSION}"'
_INCLUDES = [f"-I{folder}" for folder in (_SOURCES, _HEADERS, _CSRC)]
_WARNINGS = ["-Wall", "-Wextra", "-Werror"]
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_UNUSABLE = re.compile(r"[\s:;]|opp")
_OLD_STRINGS = "-D_GLIBCXX_USE_CXX11_ABI=0"  # what MindSpore's Ascend libraries are compiled with


# Instances of the standard library's templates: the runtime is preloaded, and they would take the place of MindSpore's.
_PRIVATE = ("_ZNS*", "_ZNKS*", "_ZS*", "_ZGVZNS*", "_ZT?S*", "_ZT?NS*", "_ZN9__gnu_cxx*", "_ZNK9__gnu_cxx*")


class BuildError(RuntimeError):
    """The host CANN cannot be built here."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs between CANN installations built from the same objects."""

    hidden: Tuple[str, ...] = ()  # operators whose two entry points are not exported
    old_header: bool = False

    @property
    def folder(self) -> str:
        if self == Variant():
            return "plain"
        return "variant-" + _digest([repr(dataclasses.astuple(self)).encode()])


def compiler_problem() -> str:
    """Why the host CANN cannot be built here, or an empty string."""
    if shutil.which(COMPILER) is None:
        return f"the host CANN needs a C++ compiler: {COMPILER} was not found on PATH"
    return ""


def cache_root() -> Path:
    """Where built installations are kept."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]).absolute()
    try:
        return folders.caches() / "aclnn-host-cann"
    except RuntimeError as error:
        raise BuildError(
            f"no folder to keep the host CANN in: the user has no home; {CACHE_VARIABLE} names one"
        ) from error


def installation(variant: Variant) -> Path:
    """The root of a CANN installation, built if it is not there yet."""
    served = clients.installed()
    sources = _source_files()
    names = "-".join(f"{client.name}-{client.version}" for client in served)
    key = _digest([names.encode(), _machine(), *(s.read_bytes() for s in sources)])
    root = cache_root() / f"{names}-{key}"
    target = root / variant.folder / "cann"  # MindSpore looks for "cann" in the path of its libraries
    usable = _usable_path(target)
    if target.is_dir():
        return usable
    problem = compiler_problem()
    if problem:
        raise BuildError(problem)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"cannot write {root}: {error.strerror}; ${CACHE_VARIABLE} names another folder") from error
    with _lock(root / "lock"):
        if not (root / "objects").is_dir():
            with _appearing(root / "objects") as folder:
                _compile(folder, served)
        if not target.is_dir():
            with _appearing(target.parent) as folder:
                _link(folder / "cann", root / "objects", variant)
    return usable


def _usable_path(root: Path) -> Path:
    """A path to the installation that programs can use: its own, or that of a link in the temporary folder.

    The loader splits LD_LIBRARY_PATH at colons, and MindSpore the path of CANN's headers at blanks and at "opp".
    """
    if not _UNUSABLE.search(str(root)):
        return root
    folder = Path(tempfile.gettempdir(), f"aclnn-host-cann-{os.getuid()}")
    link = folder / _digest([bytes(root)]) / "cann"
    if _UNUSABLE.search(str(link)):
        why = f'neither {root} nor {folder} is without blanks, colons and "opp"'
        raise BuildError(f"{why}; ${CACHE_VARIABLE} names another folder")
    try:
        folders.private(folder)
    except FileExistsError as error:
        raise BuildError(str(error)) from error
    link.parent.mkdir(exist_ok=True)
    unfinished = link.with_name(str(os.getpid()))
    unfinished.symlink_to(root)
    unfinished.replace(link)
    return link


def _source_files() -> List[Path]:
    ours = [p for p in _HERE.rglob("*") if p.suffix in (".py", ".cc", ".h")]
    return sorted([*ours, *_CSRC.glob("*.cc"), *_CSRC.glob("*.h"), _HERE.parent / "operators.py"])


def _machine() -> bytes:
    """What -march=native depends on."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))})).encode()
    return platform.machine().encode()


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One builder at a time; the others wait and then find everything built."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder that appears complete or not at all."""
    folder = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(folder: Path, served: Sequence[clients.Client]) -> None:
    """Every object file, in one folder per library."""
    jobs = []
    from_contract = {"framework/contract_table": vendor.contract_table(), "mhc/entry_points": vendor.entry_points()}
    for name, text in from_contract.items():
        source = folder / f"{name}.cc"
        source.parent.mkdir()
        source.write_text(text)
        jobs.append((source, source.with_suffix(".o")))
    jobs += [(s, (folder / s.relative_to(_SOURCES)).with_suffix(".o")) for s in sorted(_SOURCES.rglob("*.cc"))]
    jobs += [(s, folder / "csrc" / (s.stem + ".o")) for s in sorted(_CSRC.glob("*.cc"))]
    _compile_all(jobs)

    # What a client wants and the sources do not define becomes a stub.
    defined: Set[str] = set()
    for _, built in jobs:
        defined |= elf.object_symbols(built).defined
    wanted = {name for client in served for name in client.linked_symbols() | client.looked_up_symbols()}
    collective = {name for client in served for name in client.collective_symbols()}
    mangled = {name for name in wanted if name.startswith("_Z")}
    generated = {
        "runtime/c_stubs.cc": stubs.c_stubs(sorted(wanted - mangled - defined)),
        "ge/cxx_stubs.cc": stubs.cxx_stubs(mangled - defined),
        "hccl/c_stubs.cc": stubs.c_stubs(sorted(collective - wanted - defined)),
        "empty/empty.cc": "",
    }
    for name, text in generated.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    _compile_all([(folder / name, (folder / name).with_suffix(".o")) for name in generated])


def _compile_all(jobs: Sequence[Tuple[Path, Path]]) -> None:
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda job: _compile_one(*job), jobs))


def _with_headers(source: Path) -> List[Path]:
    """A source file and the headers of ours that it includes, directly or not."""
    found = [source]
    for path in found:  # grows
        for name in _INCLUDE.findall(path.read_text()):
            places = (folder / name for folder in (path.parent, _SOURCES, _HEADERS, _CSRC))
            found.extend(p for p in itertools.islice(filter(Path.is_file, places), 1) if p not in found)
    return found


def _compile_one(source: Path, target: Path) -> None:
    """An object file, from the cache if neither the source nor its headers changed since it was compiled."""
    flags = [*_FLAGS, "-O3" if target.parent.name in _FAST else "-O1"]
    flags += [*_WARNINGS, _VERSION] if source.parent != _CSRC else []
    if target.parent.name == "ge":
        flags.append(_OLD_STRINGS)
    key = _digest([*(p.read_bytes() for p in _with_headers(source)), repr(flags).encode(), _machine()])
    known = cache_root() / "objects" / f"{key}.o"
    target.parent.mkdir(parents=True, exist_ok=True)
    if known.is_file():
        shutil.copyfile(known, target)
        return
    _run([COMPILER, *flags, *_INCLUDES, "-c", str(source), "-o", str(target)])
    known.parent.mkdir(parents=True, exist_ok=True)
    unfinished = known.with_name(f"{known.name}.{os.getpid()}")
    shutil.copyfile(target, unfinished)
    unfinished.replace(known)


def _link(root: Path, objects: Path, variant: Variant) -> None:
    """A CANN installation from compiled objects."""
    libraries = root / "lib64"
    libraries.mkdir(parents=True)

    def library(
        name: str, folders: Sequence[str], needed: Sequence[str], *options: str, hidden: Sequence[str] = ()
    ) -> None:
        script = libraries / f"{name}.map"
        script.write_text("{ local: " + "".join(f"{symbol}; " for symbol in (*_PRIVATE, *hidden)) + "};\n")
        built = sorted(str(o) for folder in folders for o in (objects / folder).rglob("*.o"))
        links = ["-Wl,--no-as-needed", f"-L{libraries}", *(f"-l{n}" for n in needed)]
        linker = [f"-Wl,-soname,{name}.so", "-Wl,-rpath,$ORIGIN", "-Xlinker", f"--version-script={script}", *options]
        output = str(libraries / f"{name}.so")
        _run([COMPILER, "-shared", "-fopenmp", "-o", output, *built, *links, *linker])
        script.unlink()

    library("libascendcl", ["runtime"], [])
    library("libge_runner", ["ge"], [])
    library("libnnopbase", ["framework"], ["ascendcl"], "-Wl,-z,defs")
    hidden = [symbol for name in variant.hidden for symbol in (name, f"{name}GetWorkspaceSize")]
    library("libopapi", ["operators", "mhc", "csrc"], ["nnopbase", "ascendcl"], "-Wl,-z,defs", hidden=hidden)
    library("libhccl", ["hccl"], ["nnopbase", "ascendcl", "ge_runner"])
    library("libacl_op_compiler", ["empty"], ["nnopbase", "opapi", "ascendcl", "ge_runner"])
    for name in stubs.EMPTY_LIBRARIES:
        library(name, ["empty"], ["ascendcl", "ge_runner"])
    unknown = [n for n in variant.hidden if n not in _operators(objects)]
    if unknown:
        raise BuildError(f"the host CANN has no operator {', '.join(unknown)} that could be hidden")
    vendor.write_vendor_files(root, variant.old_header)
    hccl.write_package(root, vendor.CANN_VERSION)


def _operators(objects: Path) -> Set[str]:
    """The names of the aclnn operators that the objects define."""
    names: Set[str] = set()
    for folder in ("operators", "mhc"):
        for path in (objects / folder).rglob("*.o"):
            names |= elf.object_symbols(path).defined
    return {name for name in names if name + "GetWorkspaceSize" in names}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": ""})
    if done.returncode:
        raise BuildError(f"the compiler failed:\n{' '.join(command)}\n{done.stderr}")
