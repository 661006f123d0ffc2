"""`python -m bench checkpoints [study=...] [out=FILE]`: what studies need on this disk, what of it
is found, and where the rest is looked for.

Weights are those of `bench.cost.plan` (target, tokenizer, text encoder, drafters, networks of the
metrics); prompts and reference pictures are the files that the study's settings name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.catalogue import groups
from bench.config.words import apart, given, split
from bench.console import say
from bench.data.errors import BenchError, ConfigError
from bench.data.files import ready_file
from bench.report.table import Column, csv_text, filled, markdown, number, terminal

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig
    from bench.cost.plan.parts import Part

SETTINGS = {
    "target": "model.checkpoint", "tokenizer": "model.tokenizer", "text": "model.text",
    "drafter": "model.drafters.<name>",
}  # fmt: skip
FOUND, MISSING = "found", "missing"
SHOWN = 3  # names of studies in a cell


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


def _studies(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


COLUMNS = (
    Column("role", "part", words=True),
    Column("source", "source", words=True),
    Column("revision", "revision", words=True),
    Column("gigabytes", "GB", lambda size: "?" if size is None else number(size, 2)),
    Column("state", "state", words=True),
    Column("where", "looked for in", words=True),
    Column("setting", "setting", words=True),
    Column("studies", "needed by", _studies, words=True),
)


def cmd_checkpoints(words: Sequence[str]) -> int:
    """What each study needs, and what of it is found.
    Weights, tokenizers, text encoders, networks of the metrics, captions; and where the rest is
    looked for. Fetches nothing.
    Settings: ...
        study=NAME  only this study (default: all), with all of its settings
        out=FILE    the list as .csv or .md
    Example: checkpoints study=lantern_table

    Raises ConfigError.
    """
    own, rest = apart(words, ("out",))
    named = given(own, ("out",), "checkpoints").get("out")
    out = Path(named) if named else None
    if out is not None:
        if out.suffix not in (".csv", ".md"):
            raise ConfigError(f"out={out} must end in .csv or .md: that says the format")
        ready_file(out)
    found, notes = listed(rest)
    table = filled(COLUMNS, found)
    if found:
        say(terminal(table))
    lacking = [need for need in found if not need.found]
    ready = f"{len(lacking)} of {len(found)} are missing" if lacking else "all is there"
    say("\n".join([f"\n{ready}" if found else "nothing is needed", *notes]))
    if out is not None:
        from bench.records.schema import write_text

        rows = [{**vars(need), "studies": " ".join(need.studies)} for need in found]
        text = markdown(table) + "\n" if out.suffix == ".md" else csv_text(rows) if rows else ""
        write_text(out, text)
        say(f"written: {out}")
    return 0


def listed(words: Sequence[str]) -> tuple[list[Need], list[str]]:
    """The needs of the study that the words name, or of all, and notes: studies that need nothing
    or cannot be read."""
    from bench.config.compose import compose_study

    one = any(split(word).key == "study" for word in words)
    found: list[Need] = []
    nothing, notes = [], []
    for name in [None] if one else [*groups()["study"]]:
        try:
            config = compose_study([*words, *([f"study={name}"] if name else [])])
            own = needs_of(config)
        except BenchError as error:
            if name is None:
                raise
            notes.append(f"{name}: {error}")
            continue
        found += own
        nothing += [] if own else [config.name]
    if nothing:
        notes.insert(0, f"need nothing but what is embedded: {', '.join(nothing)}")
    return merged(found), notes


def needs_of(config: StudyConfig) -> list[Need]:
    """All that a study needs; the embedded models need nothing. Raises as `bench plan`."""
    from bench.cost.plan.checkpoints import published, source_of
    from bench.cost.plan.command import make
    from bench.cost.plan.parts import no_tokenizer

    source, usual, embedded = source_of(config.model)
    parts = [] if embedded else [*make(config).parts, *_networks(config)]
    found = [_need(part, config.name) for part in parts]
    if usual is not None and no_tokenizer(config, source, usual):
        public = published(usual.tokenizer)
        found.append(Need(
            "tokenizer", usual.tokenizer, "next to model.checkpoint", "", "model.tokenizer",
            f"{MISSING}: model.tokenizer is not set", public.bytes / 1e9 if public else None,
            (config.name,),
        ))  # fmt: skip
    return [*found, *_files(config)]


def merged(needs: Iterable[Need]) -> list[Need]:
    """Each thing once, with all the studies that need it."""
    out: dict[tuple[str, str], Need] = {}
    for need in needs:
        key = need.role, need.source
        before = out[key].studies if key in out else ()
        out[key] = replace(need, studies=tuple(dict.fromkeys((*before, *need.studies))))
    return sorted(out.values(), key=lambda need: (need.studies, need.found))


def _need(part: Part, study: str) -> Need:
    from bench.cost.plan.checkpoints import HUB_ID

    size = None if part.bytes is None else part.bytes / 1e9
    more = f" and {len(part.missing) - 1} more" if len(part.missing) > 1 else ""
    state = f"{MISSING} {part.missing[0]}{more}" if part.missing else FOUND
    source = Path(part.source).expanduser()
    where, revision, setting = str(source.absolute()), "", SETTINGS.get(part.role, "")
    if part.role == "metric":
        where = str(Path(part.missing[0] if part.missing else part.source).parent)
        state, setting = MISSING if part.missing else FOUND, "metric.weights.<name>"
    elif not source.exists() and HUB_ID.fullmatch(part.source):
        where, revision = _on_hub(part.source)
    return Need(part.role, part.source, where, revision, setting, state, size, (study,))


def _on_hub(repository: str) -> tuple[str, str]:
    """Where hub ids are looked for, with the variable that says so; the branch, with the commit
    that is on this disk."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = [name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)]
    stored = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "refs" / "main"
    commit = f" = {stored.read_text().strip()[:12]}" if stored.is_file() else ""
    return f"{HF_HUB_CACHE} ({names[0] if names else 'HF_HOME is not set'})", f"main{commit}"


def _files(config: StudyConfig) -> list[Need]:
    """Captions and reference pictures that the settings name."""
    found = []
    for role, loader, setting in (
        ("captions", config.prompts, "prompts.path"),
        ("reference", config.metric, "metric.reference"),
    ):
        value = loader.kwargs.get(setting.partition(".")[2]) if loader else None
        if isinstance(value, str):
            place = Path(value).expanduser().absolute()
            state = FOUND if place.exists() else MISSING
            found.append(Need(role, value, str(place), "", setting, state, None, (config.name,)))
    return found


def _networks(config: StudyConfig) -> list[Part]:
    """Weight files of a metric whose settings name them; those of a list are in the plan."""
    from bench.cost.plan.parts import weight_parts

    kwargs = config.metric.kwargs if config.metric else {}
    given = kwargs.get("weights") or {}
    if isinstance(kwargs.get("metrics"), list) or not config.quality.images:
        return []
    return weight_parts(network_keys(kwargs), given, given.get("folder"))


def network_keys(kwargs: Mapping[str, Any]) -> list[str]:
    """Keys of the weight files in a metric's settings, without what is off by its name."""
    return [key for key in kwargs.get("weights") or {} if key != "folder" and kwargs.get(key, True)]
