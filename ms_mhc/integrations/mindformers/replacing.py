"""Where MindSpore Transformers looks up its hyper-connections, and putting other classes there."""

from __future__ import annotations

import importlib
from typing import Any, List, NamedTuple, Optional

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.integrations.mindformers import modules
from ms_mhc.interop.versions import RELEASES, Release

_CLASSES = "mindformers.pynative.transformers.hyper_connection"
_LAYER = "mindformers.pynative.transformers.transformer_layer"
_SPECS = "mindformers.pynative.base_models.gpt.gpt_layer_specs"


class _Replaced(NamedTuple):
    """A name of one of their modules, and what it meant before."""

    module: Any
    name: str
    before: type


_replaced: List[_Replaced] = []


def apply(
    backend: str = "auto", *, precision: Optional[str] = None, head: bool = True, share_residual: bool = True
) -> None:
    """Let the models that MindSpore Transformers builds from now on compute their hyper-connections here.

    Its classes are replaced by subclasses, in memory, at the three places where it looks them up. Parameters, their
    names, shapes and initial values, checkpoints and rules for distribution stay its own. Its modules may have been
    imported before or not. A second call replaces the first one. Models that were built before are left as they are.

    Args:
        backend: ``"auto"`` takes the vendor's kernels where the machine has them, eagerly as well as in graphs; or a
            backend by name.
        precision: of the product with mapping_proj, see :func:`ms_mhc.mhc_pre`. ``None`` is as theirs: ``"hf32"`` with
            their option use_fused_mhc, whose kernel rounds so, else ``"float32"``.
        head: replace HyperConnectionHead as well, where the version has one.
        share_residual: hand the streams on beside h_res, so that the kernel adds their two gradients.

    Raises:
        ImportError: MindSpore Transformers, or what it needs, is not installed.
        RuntimeError: a version of it that is not known here.
        TypeError, ValueError: an argument of the wrong type, an unknown backend or precision.
    """
    checks.one_of("mindformers.apply", "backend", backend, registry.names())
    if precision is not None:
        checks.one_of("mindformers.apply", "precision", precision, registry.PRECISIONS)
    checks.flag("mindformers.apply", "head", head)
    checks.flag("mindformers.apply", "share_residual", share_residual)
    release = _release()
    theirs, layer = _import(_CLASSES), _import(_LAYER)
    specs = _import(_SPECS) if head and release.head else None
    undo()
    for name, convention, as_theirs in (
        ("HyperConnectionModule", release.module, "float32"),
        ("FusedHyperConnectionModule", release.fused, "hf32"),
    ):
        settings = modules.Settings(
            convention, backend, precision or as_theirs, share_residual, fused=as_theirs == "hf32"
        )
        _replace(layer, name, modules.connection(getattr(theirs, name), settings))
    if specs is not None:
        _replace(specs, "HyperConnectionHead", modules.head(theirs.HyperConnectionHead))


def undo() -> None:
    """Put back what :func:`apply` replaced. Models that were built in between keep computing here."""
    while _replaced:
        module, name, before = _replaced.pop()
        setattr(module, name, before)


def _replace(module: Any, name: str, new: type) -> None:
    _replaced.append(_Replaced(module, name, getattr(module, name)))
    setattr(module, name, new)


def _release() -> Release:
    version = str(getattr(_import("mindformers"), "__version__", "without a version"))
    if version not in RELEASES:
        raise RuntimeError(
            f"mindformers.apply: MindSpore Transformers {version} is installed, and only {' and '.join(RELEASES)} are "
            "known; what another version computes from the same parameters may differ"
        )
    return RELEASES[version]


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"mindformers.apply: {name} cannot be imported ({error}); MindSpore Transformers {' or '.join(RELEASES)} "
            "and hyper_parallel must be installed"
        ) from error
