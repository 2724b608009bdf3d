"""A network's mHC parameters from a checkpoint, and into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional, Sequence, Set, Tuple

from mindspore import Tensor, nn, ops

from ms_mhc import checks
from ms_mhc.interop import layouts, saving, settings
from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.checkpoint import Checkpoint
from ms_mhc.interop.files import PathLike
from ms_mhc.interop.layouts import HF, Library, mindformers
from ms_mhc.interop.names import Mapper, Names, Spelling, kind_of, respelled, spelling_of
from ms_mhc.interop.settings import Config, ConfigLike, Expected
from ms_mhc.interop.sites import Mapped, kind, not_float32, sites
from ms_mhc.interop.versions import MIXINGS, Shown, convention, shown

_SHOWN = 12  # lines of a message


def _load(
    library: Library,
    mapped: Mapped,
    checkpoint: Checkpoint,
    names: Mapper,
    allow_extra: bool,
    expected: Sequence[Expected],
) -> List[str]:
    available = set(checkpoint.names())
    spelling = _spelling(library, mapped, available) if library.spellings else None
    found_sites = sites(library, mapped, spelling)
    patterns = {site.name: site.template for site in found_sites}
    if not callable(names):
        patterns = {ours: respelled(theirs, spelling) for ours, theirs in Names(names).patterns()}
    lines = settings.problems(mapped.network, mapped.cells, expected)
    if lines:
        lines.append("check_settings=False loads the weights all the same")
    wanted: List[str] = []
    for site in found_sites:
        lines += [f"missing: {name} (for {site.name})" for name in site.required() if name not in available]
        wanted += [name for name in (*site.required(), *site.optional()) if name in available]
    if not allow_extra:
        lines += _extra(checkpoint.names(), set(wanted), Names(patterns), mapped.left)
    entries = checkpoint.entries(wanted)
    for site in found_sites:
        found = {
            site.part(name): entries[name].shape for name in (*site.required(), *site.optional()) if name in entries
        }
        wrong = layouts.problems(
            site.layout.shapes(site.n, site.d), site.layout.optional(site.n, site.d), found, site.template
        )
        lines += [f"{line} (for {site.name})" for line in wrong if not line.startswith("missing")]
        lines += not_float32(site)
    lines += [line for name, entry in entries.items() for line in [entry.problem(name)] if line]
    lines += checkpoint.twice(wanted)
    _refuse(checkpoint.path, lines)

    tensors = checkpoint.load(wanted)
    updates = [(site, *site.values(tensors)) for site in found_sites]
    _refuse(checkpoint.path, [*checkpoint.disagreements(tensors), *(line for _, _, line in updates if line)])
    for site, values, _ in updates:
        for name, value in values.items():
            # in place: a network that ms.jit has compiled does not see Parameter.set_data
            ops.assign(site.params[name], Tensor(value))
    return wanted


def _spelling(library: Library, mapped: Mapped, available: Set[str]) -> Optional[Spelling]:
    known = sites(library, mapped)

    def found(templates: List[str]) -> int:
        for site, template in zip(known, templates):
            site.template = template
        return sum(name in available for site in known for name in site.required())

    return spelling_of([site.template for site in known], found)


def _extra(available: Sequence[str], taken: Set[str], patterns: Names, left: Set[str]) -> List[str]:
    """Tensors that no cell takes though the names speak of them, or though they are a hyper-connection's or a head's.

    A layer too many, a part that is unknown, connections that the network does not have: without them the checkpoint's
    network computes something else.
    """
    lines = []
    every = set(available)
    for name in available:
        family = kind_of(name)
        first, _, rest = name.partition(".")
        state = first != "model" and rest in every  # an optimizer's, adam_m.NAME
        if name not in taken and not state and (patterns.ours(name) or (family and family not in left)):
            lines.append(f"unexpected: {name}, which no cell takes; allow_extra=True lets it pass")
    return lines


def _refuse(path: Any, lines: List[str]) -> None:
    if lines:
        more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise ValueError(
            f"interop: {path} does not fit the network, nothing was written:\n  " + "\n  ".join(lines[:_SHOWN] + more)
        )


def _save(
    library: Library,
    mapped: Mapped,
    path: PathLike,
    max_shard_bytes: Optional[int],
    expected: Sequence[Expected],
) -> List[str]:
    lines = settings.problems(mapped.network, mapped.cells, expected)
    if lines:
        raise ValueError(
            f"interop: {path} would mean another network, nothing was written:\n  "
            + "\n  ".join([*lines, "check_settings=False saves the weights all the same"])
        )
    tensors: Arrays = {}
    for site in sites(library, mapped):
        for part, array in layouts.write(library, site.params, f"{site.name}.{{p}}").items():
            name = site.full(part)
            if name in tensors:
                raise ValueError(f"interop: {site.name!r} and another cell are both mapped to {name!r}")
            tensors[name] = array
    saving.save(path, tensors, max_shard_bytes, library.metadata)
    return list(tensors)


def _config(folder: Path, given: ConfigLike, check_settings: bool) -> Optional[Config]:
    return settings.config(folder, given) if check_settings else None


def _mindformers(
    mapped: Mapped, title: str, version: Optional[str], mixing: Optional[str], seen: Shown, config: Optional[Config]
) -> Tuple[Library, List[Expected]]:
    """The library, and what its version and its configuration ask of the network."""
    if mapped.kinds == {"head"} and (version or mixing or seen.version) is None:
        mixing = MIXINGS[0]  # a head has no matrix, so no direction
    direction, known, rules = convention(title, version, mixing, seen)
    return mindformers(direction, known), settings.mindformers(config, known, rules)


def load_hf(
    network: nn.Cell,
    path: PathLike,
    names: Mapper,
    *,
    allow_extra: bool = False,
    config: ConfigLike = None,
    check_settings: bool = True,
) -> List[str]:
    """Write the hyper-connections and heads of a Hugging Face DeepSeek-V4 checkpoint into a network.

    Only the tensors of the network's ``MhcPre`` and ``MhcHead`` cells are read, and only the files that hold them need
    to be there. Everything is checked before anything is written: it is all or nothing. bfloat16 and float16 tensors
    are widened to float32, exactly. A gamma is set to ones. The other parameters stay as they are.

    The numbers that are no weights (:func:`from_hf` lists them) are compared with the ``config.json`` of the
    checkpoint; the recipe must be ``"deepseek_v4"``. The Sinkhorn of a ``MhcPre`` is the ``MhcSinkhorn`` in the same
    cell, as in a ``HyperConnection``; elsewhere it is not compared.

    Args:
        network: any cell. Its ``MhcPre`` and ``MhcHead`` parameters must be float32, as they are unless cast.
        path: a ``.safetensors`` file, an index, or a folder with either: Hugging Face's, that of
            ``mindspore.unified_safetensors``, or one iteration of MindSpore Transformers on many devices, whose slices
            are put together. A folder with a checkpoint in two forms is refused where they differ in what is read.
        names: cells to tensors as in :mod:`ms_mhc.interop`, or a function from a cell's name to its tensors' name with
            ``{p}``. Every such cell must be mapped; ``None`` leaves one alone. ``HF_NAMES``, ``TRANSFORMERS_NAMES`` and
            ``TRANSFORMERS_SAVED_NAMES`` are three spellings of one name: any of them finds the one that the file has.
        allow_extra: let the checkpoint hold tensors of hyper-connections, heads or these patterns that no cell takes,
            such as further layers. Next-token layers (``mtp.``) may always be left out.
        config: a configuration, as a mapping or a JSON or YAML file, in place of the one beside the checkpoint.
        check_settings: ``False`` reads no configuration and compares nothing but the weights.

    Returns:
        The names of the tensors that were read, as the checkpoint spells them.

    Raises:
        FileNotFoundError: no checkpoint there, or a file of it is missing.
        ValueError: missing or unexpected tensors, wrong shapes or dtypes, other settings, each named; a damaged file;
            one tensor in two files; names that leave a cell out or map two to the same tensors.
        TypeError: a network that is no cell, names of the wrong type.
    """
    checks.flag("interop", "allow_extra", allow_extra)
    checks.flag("interop", "check_settings", check_settings)
    mapped, checkpoint = Mapped(network, names), Checkpoint(path)
    expected = settings.hf(_config(checkpoint.folder, config, check_settings)) if check_settings else []
    return _load(HF, mapped, checkpoint, names, allow_extra, expected)


def save_hf(
    network: nn.Cell,
    path: PathLike,
    names: Mapper,
    *,
    max_shard_bytes: Optional[int] = None,
    config: ConfigLike = None,
    check_settings: bool = True,
) -> List[str]:
    """Save a network's hyper-connections and heads under Hugging Face's names, in float32.

    Args:
        network, names, config, check_settings: as for :func:`load_hf`; a ``config.json`` where the file goes is
            compared as one that lies beside a checkpoint.
        path: a ``.safetensors`` file; with ``max_shard_bytes`` a folder, for files of at most that many bytes of data
            (a larger tensor has a file of its own) and ``model.safetensors.index.json``.
        max_shard_bytes: see ``path``.

    Returns:
        The names of the tensors.

    Raises:
        ValueError: as :func:`load_hf` for names and settings; a gamma that is not all ones, which has no place there;
            a folder that holds a checkpoint in the other form.
    """
    checks.flag("interop", "check_settings", check_settings)
    mapped = Mapped(network, names)
    folder = Path(path).parent if max_shard_bytes is None else Path(path)
    expected = settings.hf(_config(folder, config, check_settings)) if check_settings else []
    return _save(HF, mapped, path, max_shard_bytes, expected)


def load_mindformers(
    network: nn.Cell,
    path: PathLike,
    names: Mapper,
    *,
    version: Optional[str] = None,
    mixing: Optional[str] = None,
    allow_extra: bool = False,
    config: ConfigLike = None,
    check_settings: bool = True,
) -> List[str]:
    """Write the weights of MindSpore Transformers' HyperConnectionModule and HyperConnectionHead into a network.

    As :func:`load_hf`, with ``version`` and ``mixing`` of :func:`from_mindformers`. Neither is needed where the
    checkpoint shows the version: by the ``mindformers_version`` of its configuration (``config.json`` or
    ``mindspore_model.yaml`` beside it, or a run's YAML given as ``config``), by a learned head, or because
    :func:`save_mindformers` wrote it. With a version the network's recipe, hc_eps and sinkhorn_eps are compared with
    the table there; with a configuration, the rest as well. An ``rms_weight`` goes to gamma; where the cell has none it
    must be all ones, as it is there.

    Raises:
        FileNotFoundError, TypeError: as :func:`load_hf`.
        ValueError: as :func:`load_hf`; nothing that tells the version, a version that is not known, or one that
            contradicts what the checkpoint shows.
    """
    checks.flag("interop", "allow_extra", allow_extra)
    checks.flag("interop", "check_settings", check_settings)
    mapped, checkpoint = Mapped(network, names), Checkpoint(path)
    found = _config(checkpoint.folder, config, check_settings)
    values, title = (found.values, found.title) if found else (None, "")
    seen = shown(checkpoint.names(), values, title, checkpoint.metadata())
    library, expected = _mindformers(mapped, str(path), version, mixing, seen, found)
    return _load(library, mapped, checkpoint, names, allow_extra, expected if check_settings else [])


def save_mindformers(
    network: nn.Cell,
    path: PathLike,
    names: Mapper,
    *,
    version: Optional[str] = None,
    mixing: Optional[str] = None,
    max_shard_bytes: Optional[int] = None,
    config: ConfigLike = None,
    check_settings: bool = True,
) -> List[str]:
    """Save a network's hyper-connections and heads under MindSpore Transformers' names.

    As :func:`save_hf`, with ``version`` and ``mixing`` of :func:`load_mindformers`: who will use the weights. The
    metadata of the files says which it was, so that :func:`load_mindformers` needs neither to read them.
    """
    checks.flag("interop", "check_settings", check_settings)
    mapped = Mapped(network, names)
    folder = Path(path).parent if max_shard_bytes is None else Path(path)
    found = _config(folder, config, check_settings)
    seen = shown([], found.values if found else None, found.title if found else "", {})
    heads = [name for name, cell in mapped.cells.items() if kind(cell) == "head"]
    if heads:
        seen = seen._replace(head=f"the MhcHead {heads[0]!r}")
    library, expected = _mindformers(mapped, str(path), version, mixing, seen, found)
    return _save(library, mapped, path, max_shard_bytes, expected if check_settings else [])
