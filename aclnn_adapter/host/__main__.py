"""``python -m aclnn_adapter.host [OPTIONS] PROGRAM [ARGS]``: run a program on the host CANN."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Dict, List, NoReturn, Optional, Sequence, Tuple

from . import clients, hccl
from .build import CACHE_VARIABLE, BuildError, Variant, installation

EXIT_CANNOT_BUILD = 69  # EX_UNAVAILABLE
SOCS = ("Ascend950PR_9579", "Ascend910B1", "Ascend910_9382")

_EPILOG = f"""
PROGRAM is a file, or -m MODULE, or -c CODE, as for python. It may use MindSpore 2.10, or torch_npu 2.13.0 with the CPU
build of torch 2.13.0, or both in one process: whatever is installed in this Python is served. (Newer torch comes as a
CUDA build by default, which aborts together with torch_npu.) The libraries are built once and kept in
$XDG_CACHE_HOME/aclnn-host-cann or ~/.cache/aclnn-host-cann; ${CACHE_VARIABLE} names another folder.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m aclnn_adapter.host",
        usage="%(prog)s [OPTIONS] PROGRAM [ARGS]",
        description=__doc__,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    result.add_argument("--soc", default=SOCS[0], help=f"what the device claims to be, such as {', '.join(SOCS)}")
    result.add_argument("--without", action="append", default=[], metavar="OPERATOR", help="hide an aclnn entry point")
    result.add_argument("--cann-header", choices=("new", "old"), default="new", help="old: without gradXPostOptional")
    result.add_argument("--executor-reuse", choices=("on", "off"), default="on", help="off: not repeatable")
    result.add_argument("--ranks", type=int, metavar="N", help="compile one rank of N and run nothing (simulation)")
    result.add_argument("--rank", type=int, metavar="R", help="which of them, from 0; 0 if not given")
    result.add_argument("--trace", metavar="FILE", help="write one line of JSON per aclnn call")
    result.add_argument("--check-leaks", action="store_true", help="exit status 86 when something is left at exit")
    result.add_argument("--where", action="store_true", help="build if needed and print the root of the installation")
    return result


def split(arguments: Sequence[str]) -> Tuple[List[str], List[str]]:
    """This program's own arguments and those of the program to run, which begin at the first that is not ours."""
    takes_value = {name: action.nargs != 0 for action in parser()._actions for name in action.option_strings}
    own = 0
    while own < len(arguments):
        name, equals, _ = arguments[own].partition("=")
        if name not in takes_value:
            break
        own += 2 if takes_value[name] and not equals else 1
    return list(arguments[:own]), list(arguments[own:])


def environment(options: argparse.Namespace) -> Dict[str, str]:
    """The environment in which a program finds the host CANN."""
    suffix = "GetWorkspaceSize"  # either of an operator's two entry points hides both
    hidden = {name[: -len(suffix)] if name.endswith(suffix) else name for name in options.without}
    root = installation(Variant(tuple(sorted(hidden)), options.cann_header == "old"))
    libraries = root / "lib64"
    env = dict(os.environ)
    env.update(
        ASCEND_HOME_PATH=str(root),
        ASCEND_OPP_PATH=str(root / "opp"),
        LD_LIBRARY_PATH=_before(str(libraries), env.get("LD_LIBRARY_PATH"), ":"),
        PYTHONPATH=_before(str(root / hccl.SITE_PACKAGES), env.get("PYTHONPATH"), ":"),
        CANN_HOST_SOC=options.soc,
        CANN_HOST_EXECUTOR_REUSE=options.executor_reuse,
        CANN_HOST_CHECK_LEAKS="1" if options.check_leaks else "0",
        CANN_HOST_TRACE=str(Path(options.trace).absolute()) if options.trace else "",
        CANN_HOST_PROCESS=str(os.getpid()),  # stays the same when this process turns into the program
    )
    for name in (name for client in clients.installed() for name in client.preloaded):
        env["LD_PRELOAD"] = _before(str(libraries / f"{name}.so"), env.get("LD_PRELOAD"), " ")
    if options.ranks is not None:
        env.update(hccl.simulation(options.ranks, options.rank or 0))
    return env


def _before(first: str, rest: Optional[str], separator: str) -> str:
    return f"{first}{separator}{rest}" if rest else first


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """Build if needed, then turn into the program."""
    own, program = split(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(own)
    problem = hccl.problem(options.ranks, options.rank)
    if problem:
        parser().error(problem)
    try:
        env = environment(options)
    except (BuildError, clients.NoClientError) as problem:
        sys.exit(_complain(str(problem)))
    if options.where:
        print(env["ASCEND_HOME_PATH"])
        sys.exit(0)
    if not program:
        parser().error("a program is needed")
    if options.trace:
        try:
            Path(options.trace).write_text("")  # one run's calls; the libraries append
        except OSError as problem:
            parser().error(f"--trace {options.trace}: cannot be written: {problem.strerror}")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *program], env)


def _complain(message: str) -> int:
    print(f"aclnn_adapter.host: {message}", file=sys.stderr)
    return EXIT_CANNOT_BUILD


if __name__ == "__main__":
    main()
