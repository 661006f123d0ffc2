"""What a study needs on this disk: where it is looked for, how large it is, what is missing.

Sizes of what is on this disk are measured, the others estimated (`bench.predict.checkpoints`).
Weights of the quality metrics are never fetched (`metrics.official`), so they are to be put there
by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.predict import checkpoints as known
from bench.report.table import Column
from decoders.models.sizes import BYTES, FLAN_T5_XL, Shape, VQShape

GB = 1e9
TEXT = "google/flan-t5-xl"  # of models that read captions
SHOWN = 3  # names of studies in a cell
SETTINGS = {
    "target": "model.checkpoint", "tokenizer": "model.tokenizer", "text": "model.text",
    "drafter": "model.drafters.<name>",
}  # fmt: skip


@dataclass(frozen=True)
class Need:
    """One thing that a study needs on this disk: a checkpoint, a network of a metric, a file.

    source: a path, hub id or address; setting: what names another place. bytes: of its files (None:
    not known); missing: files that are not here; loaded: bytes of it in memory while decoding;
    studies: that need it.
    """

    role: str
    source: str
    setting: str
    missing: tuple[str, ...] = ()
    bytes: float | None = None
    estimated: bool = False
    download: float | None = None
    params: int | None = None
    loaded: float = 0.0
    dtype: str = ""
    by_hand: bool = False
    studies: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if not self.missing:
            return "found"
        more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
        first = Path(self.missing[0]).name if self.role == "metric" else self.missing[0]
        return f"missing {first}{more}"

    @property
    def where(self) -> str:
        """In which file or folder it is looked for; of a hub id with the variable that says so."""
        if not known.from_hub(self.source):
            place = self.missing[0] if self.role == "metric" and self.missing else self.source
            path = Path(place).expanduser().absolute()
            return str(path.parent if self.role == "metric" else path)
        from huggingface_hub.constants import HF_HUB_CACHE

        names = [name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)]
        return f"{HF_HUB_CACHE} ({names[0] if names else 'HF_HOME is not set'})"

    @property
    def revision(self) -> str:
        """Of a hub id: the branch, with the commit that is on this disk."""
        if not known.from_hub(self.source):
            return ""
        stored = known.main_of(self.source)
        return f"main = {stored.read_text().strip()[:12]}" if stored.is_file() else "main"


def model_parts(config: StudyConfig, shape: Shape | None, vq: VQShape | None) -> list[Need]:
    """Every checkpoint of the study's model; a tokenizer that is left open lies with the target
    (see `no_tokenizer`)."""
    source = known.source_of(config.model)
    if not source:
        return []
    size, kwargs = BYTES[config.backend.dtype], config.model.kwargs
    loaded = (shape.loaded * size) if shape else 0.0
    parts = [_part("target", source, loaded, shape.stored if shape else None)]
    if known.embedded(config.model):
        return parts
    tokenizer = str(kwargs.get("tokenizer") or "")
    if tokenizer:
        params = vq.params if vq else None
        parts.append(_part("tokenizer", tokenizer, 4.0 * (params or 0), params))
    text = str(kwargs.get("text") or (TEXT if shape and shape.text_width else ""))
    if text and config.prompts.name != "features":
        parts.append(_part("text", text, FLAN_T5_XL.encoder * size, FLAN_T5_XL.stored))
    for drafter in _drafters(config):
        count = shape.drafter if shape else None
        parts.append(_part("drafter", drafter, (count or 0) * size, count))
    return parts


def no_tokenizer(config: StudyConfig) -> list[Need]:
    """What is missing where the study has no tokenizer: neither named, nor in or beside the
    target."""
    usual = known.TOKENIZERS.get(config.model.name)
    if usual is None or config.model.kwargs.get("tokenizer"):
        return []
    public = known.REPOSITORIES[usual]
    place = Path(known.source_of(config.model)).expanduser()
    folder = place if place.is_dir() else place.parent
    if place.exists() and any((folder / name).exists() for name in public.files):
        return []
    why = ("model.tokenizer is not set",)
    size = float(public.bytes)
    return [Need("tokenizer", usual, SETTINGS["tokenizer"], why, size, estimated=True)]


def _drafters(config: StudyConfig) -> list[str]:
    """Sources of the drafters that the entries name, each once."""
    named: dict[str, Any] = config.model.kwargs.get("drafters") or {}
    specs = [entry.spec.drafter for entry in config.decoders]
    names = [str(spec.kwargs.get("checkpoint", "")) for spec in specs if spec is not None]
    found = [
        named.get(name) or (name if known.HUB_ID.fullmatch(name) or Path(name).exists() else "")
        for name in names
    ]
    return list(dict.fromkeys(str(source) for source in found if source))


def _part(role: str, source: str, loaded: float, params: int | None) -> Need:
    """One checkpoint: measured where it is on this disk, else estimated."""
    here, missing = known.present(source)
    published = known.published(source)
    if published is not None:
        params = published.params
    there = float(sum(path.stat().st_size for path in here))
    need = Need(role, source, SETTINGS[role], tuple(missing), params=params, loaded=loaded)
    if not missing:
        return replace(need, bytes=there, download=0.0)
    if published is None:
        return replace(need, estimated=True)
    share = len(missing) / (len(missing) + len(here))
    return replace(
        need, bytes=float(published.bytes), estimated=True, download=published.bytes * share,
        dtype=published.dtype, by_hand=published.by_hand,
    )  # fmt: skip


def _size(need: Need) -> str:
    if need.bytes is None:
        return "?"
    return f"~{need.bytes / GB:.2f} ({need.dtype})" if need.estimated else f"{need.bytes / GB:.2f}"


def _studies(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


COLUMNS = (
    Column("role", "part", words=True),
    Column("source", "source", words=True),
    Column("revision", "revision", words=True),
    Column("params", "parameters", lambda n: "?" if n is None else f"{n / 1e6:.0f} M"),
    Column("", "GB", _size),
    Column("download", "to download, GB", lambda n: "?" if n is None else f"{n / GB:.2f}"),
    Column("state", "state", words=True),
    Column("where", "looked for in", words=True),
    Column("setting", "setting", words=True),
)
EVERY = (*COLUMNS, Column("studies", "needed by", _studies, words=True))


def merged(needs: Iterable[Need]) -> list[Need]:
    """Each thing once, with all the studies that need it."""
    out: dict[tuple[str, str], Need] = {}
    for need in needs:
        key = need.role, need.source
        before = out[key].studies if key in out else ()
        out[key] = replace(need, studies=tuple(dict.fromkeys((*before, *need.studies))))
    return sorted(out.values(), key=lambda need: (need.studies, not need.missing))


def file_needs(config: StudyConfig) -> list[Need]:
    """Files and folders that the settings of prompts and metric name."""
    found = []
    for group, loader in (("prompts", config.prompts), ("metric", config.metric)):
        for key, value in (loader.kwargs if loader else {}).items():
            if not isinstance(value, str) or "/" not in value or key.endswith("dir"):
                continue
            path = Path(value).expanduser()
            if path.exists() or not known.HUB_ID.fullmatch(value) or path.suffix:
                role = {"path": "captions"}.get(key, key)
                gone = () if path.exists() else (value,)
                found.append(Need(role, value, f"{group}.{key}", gone))
    return found


def metric_parts(config: StudyConfig) -> list[Need]:
    """Weight files of the metrics that `metric.metrics` lists, or whose files `metric.weights`
    names, as `metrics.official` looks for them: named there, else under a folder."""
    kwargs = config.metric.kwargs if config.metric else {}
    if not config.quality.images:
        return []
    given, wanted = kwargs.get("weights") or {}, kwargs.get("metrics")
    keys: Iterable[str | None] = network_keys(kwargs)
    if isinstance(wanted, list):
        from metrics.official.papers import METRICS

        keys = dict.fromkeys(METRICS[name].weights for name in wanted if name in METRICS)
    elif not given:
        return []
    from metrics.official.checkpoint import FILES, FOLDER

    folder = Path(kwargs.get("folder") or given.get("folder") or FOLDER).expanduser()
    found = []
    for key in (key for key in keys if key in FILES):
        file, listed = FILES[key], known.METRIC_WEIGHTS.get(key)
        names = [given[key]] if given.get(key) else [n for n in (file.path, file.other) if n]
        here = [path for path in (folder / name for name in names) if path.is_file()]
        size = float(here[0].stat().st_size if here else listed.bytes if listed else 0) or None
        found.append(Need(
            "metric", str(here[0]) if here else file.url, "metric.weights.<name>",
            () if here else (str(folder / names[0]),), bytes=size, estimated=not here,
            download=0.0 if here else size, params=listed.params if listed else None,
            dtype=listed.dtype if listed else "", by_hand=not here,
        ))  # fmt: skip
    return found


def network_keys(kwargs: Mapping[str, Any]) -> list[str]:
    """Keys of the weight files in a metric's settings, without what is off by its name."""
    return [key for key in kwargs.get("weights") or {} if key != "folder" and kwargs.get(key, True)]
