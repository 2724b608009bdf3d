"""The three ways in which users run MindSpore, and nothing left behind by any of them."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import mindspore as ms
import pytest
from hypothesis import HealthCheck, settings

logging.getLogger("ms_mhc").setLevel(logging.DEBUG)

_EVERY = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, max_examples=5, database=None, **_EVERY)
settings.register_profile("long", max_examples=2000, print_blob=True, **_EVERY)
settings.load_profile("same")


# The files that take longest, the longest first: so that no process is left alone with one of them at the end. The
# first two wait for compilers, each for another one.
_LONG = (
    *("host/test_mhc.py", "test_core.py", "host/test_parallel_training.py", "test_example.py", "test_eager.py"),
    *("test_parallel.py", "test_mhc_pre.py", "test_composite_numerics.py", "test_bench.py", "test_mindformers.py"),
    *("test_mhc_pre_sinkhorn.py", "test_mhc_sinkhorn.py", "test_hyper_connection.py", "test_properties.py"),
    *("host/test_training.py", "host/test_ranks.py", "host/test_mindformers.py", "test_example_parallel.py"),
)
_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    places = {_TESTS / name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


_getblock = inspect.getblock


@functools.cache
def _block(lines: Tuple[str, ...]) -> List[str]:
    return _getblock(list(lines))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Compiling graphs takes a tenth less time.

    MindSpore collects garbage before it compiles a cell: what is there now stays and need not be looked at. And it asks
    for the source of every function that it meets, however often.
    """
    inspect.getblock = lambda lines: list(_block(tuple(lines)))
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _mode_of_the_start() -> Iterator[None]:
    """What runs programs in this process leaves their mode behind, and the next file in it expects the first one."""
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # MindSpore writes a report of every graph that fails to compile into the current folder
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture(params=["graph", "pynative", "jit"])
def way(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    """Graph mode, PyNative mode, ``ms.jit`` in PyNative mode: what to wrap around a function before the call."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE if request.param == "graph" else ms.PYNATIVE_MODE)
    yield ms.jit if request.param == "jit" else (lambda function: function)
    ms.set_context(mode=before)


def _backends() -> list[str]:
    """The backends that can run on this machine's default device; those of Ascend are tested on the host CANN."""
    from ms_mhc.backends import registry
    from ms_mhc.backends.registry import Job

    return [b.name for b in registry.backends() if b.refusal(Job("mhc_pre", 4, 64, ms.float32)) is None]


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
