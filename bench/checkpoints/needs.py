"""What a study needs on this disk, what of it is found, and where the rest is looked for.

Weights are those of `bench.plan` (target, tokenizer, text encoder, drafters, networks of the
metrics); prompts and reference pictures are the files that the study's settings name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plan import checkpoints as known
from bench.plan.command import source_of
from bench.plan.parts import Part, no_tokenizer, weight_parts

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

SETTINGS = {
    "target": "model.checkpoint", "tokenizer": "model.tokenizer", "text": "model.text",
    "drafter": "model.drafters.<name>",
}  # fmt: skip
FOUND, MISSING = "found", "missing"


@dataclass(frozen=True)
class Need:
    """One thing that studies need. source: a path, hub id or address; where: in which file or
    folder it is looked for; revision: of a hub id; setting: what names another place."""

    role: str
    source: str
    where: str
    revision: str
    setting: str
    state: str
    gigabytes: float | None
    studies: tuple[str, ...]

    @property
    def found(self) -> bool:
        return self.state == FOUND


def needs_of(config: StudyConfig) -> list[Need]:
    """All that a study needs; the embedded models need nothing. Raises as `bench plan`."""
    from bench.plan.command import make

    source, usual, embedded = source_of(config.model)
    parts = [] if embedded else [*make(config).parts, *_networks(config)]
    found = [_need(part, config.name) for part in parts]
    if no_tokenizer(config, source, usual) and usual is not None:
        found.append(_unset_tokenizer(config.name, usual.tokenizer))
    return [*found, *_files(config)]


def merged(needs: Iterable[Need]) -> list[Need]:
    """Each thing once, with all the studies that need it."""
    out: dict[tuple[str, str], Need] = {}
    for need in needs:
        key = need.role, need.source
        before = out.get(key)
        studies = (*before.studies, *need.studies) if before else need.studies
        out[key] = replace(need, studies=tuple(dict.fromkeys(studies)))
    return sorted(out.values(), key=lambda need: (need.studies, need.found))


def hub_folder() -> str:
    """Where hub ids are looked for, with the variable that says so."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = [name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)]
    return f"{HF_HUB_CACHE} ({names[0] if names else 'HF_HOME is not set'})"


def _need(part: Part, study: str) -> Need:
    size = None if part.bytes is None else part.bytes / 1e9
    many = len(part.missing)
    state = FOUND if not many else f"{MISSING} {part.missing[0]}"
    state += f" and {many - 1} more" if many > 1 else ""
    if part.role == "metric":
        where = str(Path(part.missing[0]).parent) if many else str(Path(part.source).parent)
        return Need(
            part.role, part.source, where, "", "metric.weights.<name>",
            MISSING if many else FOUND, size, (study,),
        )  # fmt: skip
    hub = not Path(part.source).expanduser().exists() and known.HUB_ID.fullmatch(part.source)
    return Need(
        part.role,
        part.source,
        hub_folder() if hub else str(Path(part.source).expanduser().absolute()),
        _revision(part.source) if hub else "",
        SETTINGS.get(part.role, ""),
        state,
        size,
        (study,),
    )


def _revision(repository: str) -> str:
    """The branch, with the commit that is on this disk."""
    from huggingface_hub.constants import HF_HUB_CACHE

    stored = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "refs" / "main"
    return f"main = {stored.read_text().strip()[:12]}" if stored.is_file() else "main"


def _unset_tokenizer(study: str, usual: str) -> Need:
    public = known.published(usual)
    size = public.bytes / 1e9 if public else None
    return Need(
        "tokenizer", usual, "beside model.checkpoint", "", "model.tokenizer",
        f"{MISSING}: model.tokenizer is not set", size, (study,),
    )  # fmt: skip


def _files(config: StudyConfig) -> list[Need]:
    """Captions and reference pictures that the settings name."""
    found = []
    for role, loader, key in (
        ("captions", config.prompts, "path"),
        ("reference", config.metric, "reference"),
    ):
        value = loader.kwargs.get(key) if loader else None
        if not isinstance(value, str):
            continue
        place = Path(value).expanduser()
        group = "prompts" if role == "captions" else "metric"
        state = FOUND if place.exists() else MISSING
        where = str(place.absolute())
        found.append(Need(role, value, where, "", f"{group}.{key}", state, None, (config.name,)))
    return found


def _networks(config: StudyConfig) -> list[Part]:
    """Weight files of a metric whose settings name them; those of a list are in the plan."""
    kwargs = config.metric.kwargs if config.metric else {}
    given = kwargs.get("weights") or {}
    if isinstance(kwargs.get("metrics"), list) or not config.quality.images:
        return []
    return weight_parts(network_keys(kwargs), given, given.get("folder"))


def network_keys(kwargs: Mapping[str, Any]) -> list[str]:
    """Keys of the weight files in a metric's settings, without what is off by its name."""
    return [key for key in kwargs.get("weights") or {} if key != "folder" and kwargs.get(key, True)]


def missing(needs: Sequence[Need]) -> list[Need]:
    return [need for need in needs if not need.found]
