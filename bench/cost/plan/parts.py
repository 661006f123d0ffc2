"""The checkpoints a study needs: where each is, how large, and what of it is still to fetch.

Sizes of what is on this disk are measured, the others estimated (`bench.cost.plan.checkpoints`).
Weights of the quality metrics are never fetched (`metrics.official`), so they are to be put there
by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cost.plan import checkpoints as known
from bench.report.table import Column, filled, terminal
from decoders.models.sizes import BYTES, FLAN_T5_XL, Shape

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

GB = 1e9


@dataclass(frozen=True)
class Part:
    """One checkpoint of a model. bytes: of its files (None: not known); missing: files that are not
    on this disk; loaded: bytes of it in memory while decoding."""

    role: str
    source: str
    params: int | None
    bytes: float | None
    estimated: bool
    missing: tuple[str, ...]
    download: float | None
    loaded: float
    dtype: str = ""
    by_hand: bool = False


def model_parts(
    config: StudyConfig,
    source: str,
    shape: Shape | None,
    usual: known.Model | None,
    embedded: bool,
) -> list[Part]:
    """Every checkpoint of the study's model; a tokenizer that is left open lies with the target
    (see `no_tokenizer`)."""
    if not source:
        return []
    size = BYTES[config.backend.dtype]
    loaded = (shape.loaded * size) if shape else 0.0
    parts = [_part("target", source, loaded, shape.stored if shape else None)]
    if embedded:
        return parts
    kwargs = config.model.kwargs
    tokenizer = str(kwargs.get("tokenizer") or "")
    if tokenizer:
        vq = usual.vq.params if usual else None
        parts.append(_part("tokenizer", tokenizer, 4.0 * (vq or 0), vq))
    text = str(kwargs.get("text") or (usual.text if usual else ""))
    if text and config.prompts.name != "features":
        parts.append(_part("text", text, FLAN_T5_XL.encoder * size, FLAN_T5_XL.stored))
    for drafter in _drafters(config, usual):
        count = shape.drafter if shape else None
        parts.append(_part("drafter", drafter, (count or 0) * size, count))
    return parts


def no_tokenizer(config: StudyConfig, source: str, usual: known.Model | None) -> list[str]:
    """A note where the study has no tokenizer: neither named, nor in or beside the target."""
    if usual is None or not usual.tokenizer or config.model.kwargs.get("tokenizer"):
        return []
    public = known.published(usual.tokenizer)
    place = Path(source).expanduser()
    folder = place if place.is_dir() else place.parent
    if public and place.exists() and any((folder / name).exists() for name in public.files):
        return []
    return [
        f"model.tokenizer is not set, so nothing makes pictures or finds neighbours; set "
        f"model.tokenizer={usual.tokenizer}"
    ]


def _drafters(config: StudyConfig, usual: known.Model | None) -> list[str]:
    """Sources of the drafters that the entries name, each once."""
    named: dict[str, Any] = config.model.kwargs.get("drafters") or {}
    found: dict[str, None] = {}
    for entry in config.decoders:
        if entry.spec.drafter is None:
            continue
        name = str(entry.spec.drafter.kwargs.get("checkpoint", ""))
        local = known.HUB_ID.fullmatch(name) or Path(name).exists()
        source = named.get(name) or (name if name and local else usual.drafter if usual else "")
        if source:
            found[str(source)] = None
    return list(found)


def _part(role: str, source: str, loaded: float, params: int | None) -> Part:
    """One checkpoint: measured where it is on this disk, else estimated."""
    here, missing = known.present(source)
    published = known.published(source)
    if published is not None:
        params = published.params
    there = float(sum(path.stat().st_size for path in here))
    if not missing:
        return Part(role, source, params, there, False, (), 0.0, loaded)
    if published is None:
        return Part(role, source, params, None, True, tuple(missing), None, loaded)
    share = len(missing) / (len(missing) + len(here))
    return Part(
        role, source, params, float(published.bytes), True, tuple(missing),
        published.bytes * share, loaded, published.dtype, published.by_hand,
    )  # fmt: skip


def _size(part: Part) -> str:
    if part.bytes is None:
        return "?"
    return f"~{part.bytes / GB:.2f} ({part.dtype})" if part.estimated else f"{part.bytes / GB:.2f}"


def _state(missing: Sequence[str]) -> str:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"missing {missing[0]}{more}" if missing else "on disk"


COLUMNS = (
    Column("role", "part"),
    Column("source", "source"),
    Column("params", "parameters", lambda n: "?" if n is None else f"{n / 1e6:.0f} M"),
    Column("", "GB", _size),
    Column("download", "to download, GB", lambda n: "?" if n is None else f"{n / GB:.2f}"),
    Column("missing", "files", _state),
)


def parts_table(parts: Sequence[Part]) -> str:
    return terminal(filled(COLUMNS, parts))


def metric_parts(config: StudyConfig) -> list[Part]:
    """Weight files of the metrics that `metric.metrics` lists, as `metrics.official` looks for
    them: named in metric.weights, else under metric.folder."""
    kwargs = config.metric.kwargs if config.metric else {}
    wanted = kwargs.get("metrics")
    if not isinstance(wanted, list) or not config.quality.images:
        return []
    from metrics.official.papers import METRICS

    keys = dict.fromkeys(METRICS[name].weights for name in wanted if name in METRICS)
    return weight_parts(keys, kwargs.get("weights") or {}, kwargs.get("folder"))


def weight_parts(
    keys: Iterable[str | None], given: Mapping[str, Any], folder: str | None
) -> list[Part]:
    """Weight files of these keys of `metrics.official.checkpoint`; others are no files."""
    from metrics.official.checkpoint import FILES, FOLDER

    place = Path(folder or FOLDER).expanduser()
    found = []
    for key in keys:
        if key is None or key not in FILES:
            continue
        file = FILES[key]
        names = [given[key]] if given.get(key) else [n for n in (file.path, file.other) if n]
        here = [path for path in (place / name for name in names) if path.is_file()]
        found.append(_metric_part(key, file.url, here[:1], str(place / names[0])))
    return found


def _metric_part(key: str, url: str, here: Sequence[Path], wanted: str) -> Part:
    published = known.METRIC_WEIGHTS.get(key)
    size = float(here[0].stat().st_size) if here else float(published.bytes if published else 0)
    return Part(
        role="metric",
        source=str(here[0]) if here else url,
        params=published.params if published else None,
        bytes=size or None,
        estimated=not here,
        missing=() if here else (wanted,),
        download=0.0 if here else (size or None),
        loaded=0.0,
        dtype=published.dtype if published else "",
        by_hand=not here,
    )
