"""What the versions of MindSpore Transformers compute from the same tensors, and which version a checkpoint shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ms_mhc import checks

MIXINGS = ("h_res @ x", "h_res.T @ x")

# Keys under which this package notes in a file's metadata what it was written for.
VERSION_KEY = "mindformers_version"
MIXING_KEY = "mixing"


@dataclass(frozen=True)
class Convention:
    """How one of their modules uses its tensors.

    Attributes:
        mixing: the direction in which it applies the residual matrix.
        recipe: of its Sinkhorn, as :func:`ms_mhc.mhc_sinkhorn` calls it.
        hc_eps: what it adds to h_pre.
        sinkhorn_eps: what its Sinkhorn adds to every sum.
    """

    mixing: str
    recipe: str
    hc_eps: float
    sinkhorn_eps: float


_PAPER = Convention(MIXINGS[0], "paper", 0.0, 1e-6)
_DEEPSEEK_V4 = Convention(MIXINGS[1], "deepseek_v4", 1e-6, 1e-6)


class Release(NamedTuple):
    """A version: its module, the one with ``use_fused_mhc``, and whether it has a learned head."""

    module: Convention
    fused: Convention
    head: bool


RELEASES: Dict[str, Release] = {
    "2.0.0": Release(_PAPER, _DEEPSEEK_V4, head=False),
    "2.1.0": Release(_DEEPSEEK_V4, _DEEPSEEK_V4, head=True),
}
_FIRST_WITH_HEAD = "2.1.0"


class Shown(NamedTuple):
    """What a checkpoint tells of the version it belongs to.

    Attributes:
        version: the version that wrote it, and ``version_from``, where that stands.
        mixing: the direction for which this package wrote it.
        fused: ``use_fused_mhc`` of its configuration.
        head: a tensor of a learned head, which only some versions have.
    """

    version: Optional[str] = None
    version_from: str = ""
    mixing: Optional[str] = None
    fused: Optional[bool] = None
    head: Optional[str] = None


def shown(
    names: Collection[str], config: Optional[Mapping[str, Any]], title: str, metadata: Mapping[str, str]
) -> Shown:
    """What tensors' names, a configuration (called ``title``) and a file's metadata tell."""
    version, source = metadata.get(VERSION_KEY), "the metadata of the checkpoint"
    if config and config.get(VERSION_KEY) is not None:
        version, source = str(config[VERSION_KEY]), title
    fused = config.get("use_fused_mhc") if config else None
    return Shown(
        version,
        source,
        metadata.get(MIXING_KEY),
        fused if isinstance(fused, bool) else None,
        next((name for name in names if name.endswith("hc_head.hc_fn.weight") or name == "hc_fn.weight"), None),
    )


def convention(
    title: str, version: Optional[str], mixing: Optional[str], seen: Shown
) -> Tuple[str, Optional[str], Optional[Convention]]:
    """The direction, and if it is known the version and all that it computes.

    What the caller says goes before what the checkpoint shows, unless the two contradict each other.

    Args:
        title: the checkpoint, for messages.
        version: a key of ``RELEASES``, or ``None``.
        mixing: one of ``MIXINGS``, or ``None``.
        seen: what the checkpoint shows.

    Raises:
        TypeError: no text.
        ValueError: an unknown version or mixing, two that contradict each other, or nothing that tells.
    """
    if version is not None:
        checks.one_of("interop", "version", version, tuple(RELEASES))
    if mixing is not None:
        checks.one_of("interop", "mixing", mixing, MIXINGS)
    _contradiction(title, version, mixing, seen)
    if version is None and seen.version in RELEASES:
        version = seen.version
    wanted = mixing or seen.mixing
    if version is None and wanted is None and seen.version is None and seen.head:
        version = _FIRST_WITH_HEAD
    if version is None:
        if wanted is None:
            raise ValueError(_undecided(title, seen))
        return wanted, None, None
    found = _of(version, wanted, seen.fused)
    if found is None:
        raise ValueError(
            f"interop: MindSpore Transformers {version} applies {_directions(version, seen.fused)}, but "
            f"{'mixing=' if mixing else 'the metadata of the checkpoint says '}{wanted!r}"
            f"{' was given' if mixing else ''}; leave one of version and mixing out ({title})"
        )
    return found.mixing, version, found


def _of(version: str, mixing: Optional[str], fused: Optional[bool]) -> Optional[Convention]:
    """The module of a version that applies the matrix in that direction."""
    return next((one for one in _modules(version, fused) if mixing in (None, one.mixing)), None)


def _modules(version: str, fused: Optional[bool]) -> List[Convention]:
    release = RELEASES[version]
    return [release.module, release.fused] if fused is None else [release.fused if fused else release.module]


def _directions(version: str, fused: Optional[bool]) -> str:
    return " or ".join(dict.fromkeys(one.mixing for one in _modules(version, fused)))


def _contradiction(title: str, version: Optional[str], mixing: Optional[str], seen: Shown) -> None:
    """Refuse what the caller says where the checkpoint shows the opposite."""
    if version is not None and seen.head and not RELEASES[version].head:
        raise ValueError(
            f"interop: version={version!r} was given, but {title} has {seen.head}, and MindSpore Transformers "
            f"{version} has no learned head; {_FIRST_WITH_HEAD} has one"
        )
    if seen.version not in RELEASES:
        return
    assert seen.version is not None
    if version is not None and RELEASES[version] != RELEASES[seen.version]:
        raise ValueError(
            f"interop: version={version!r} was given for {title}, but {seen.version_from} says {seen.version}"
        )
    if mixing is not None and _of(seen.version, mixing, seen.fused) is None:
        raise ValueError(
            f"interop: mixing={mixing!r} was given for {title}, but {seen.version_from} says {seen.version}, which "
            f"applies {_directions(seen.version, seen.fused)}"
        )


def _undecided(title: str, seen: Shown) -> str:
    known = " and ".join(RELEASES)
    give = "give " + " or ".join(f"version={version!r}" for version in RELEASES)
    way_out = f"{give}, or mixing={MIXINGS[0]!r} or {MIXINGS[1]!r}"
    if seen.version is not None:
        return (
            f"interop: {seen.version_from} says {seen.version}, and only MindSpore Transformers {known} are known; "
            f"{way_out} ({title})"
        )
    return (
        f"interop: MindSpore Transformers {known} apply the residual matrix in opposite directions, and nothing shows "
        f"to which one {title} belongs; {way_out}"
    )
