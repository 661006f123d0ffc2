"""`python -m bench checkpoints [study=...] [make=DIR]`: what studies need, found and missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.catalogue import groups
from bench.config.words import apart, split
from bench.console import say
from bench.errors import BenchError, ConfigError
from bench.os_errors import ready_file
from bench.report.table import Column, csv_text, filled, markdown, number, terminal

if TYPE_CHECKING:
    from bench.checkpoints.needs import Need

SHOWN = 3  # names of studies in a cell


def cmd_checkpoints(words: Sequence[str]) -> int:
    """Prints the list; make=DIR writes stand-ins of what one study needs. Raises ConfigError."""
    from bench.checkpoints.needs import missing

    told, rest = apart(words, ("make", "out"))
    values = {split(word).key: split(word).value for word in told}
    empty = [key for key, value in values.items() if not value]
    if empty:
        raise ConfigError(f"{empty[0]}= names nothing; write {empty[0]}=PATH")
    named = any(split(word).key == "study" for word in rest)
    if "make" in values:
        if not named:
            raise ConfigError("make=DIR makes what one study needs; add study=NAME")
        return _make(Path(str(values["make"])).expanduser(), rest)
    out = Path(str(values["out"])).expanduser() if "out" in values else None
    if out is not None:
        if out.suffix not in (".csv", ".md"):
            raise ConfigError(f"out={out} must end in .csv or .md: that says the format")
        ready_file(out)
    found, notes = listed(rest, named)
    table = filled(COLUMNS, found)
    if found:
        say(terminal(table))
    lacking = missing(found)
    ready = "all is there" if not lacking else f"{len(lacking)} of {len(found)} are missing"
    say("\n".join([f"\n{ready}" if found else "nothing is needed", *notes]))
    if out is not None:
        _write(out, found, markdown(table))
    return 0


def listed(words: Sequence[str], named: bool) -> tuple[list[Need], list[str]]:
    """The needs of one study, or of all, and notes: studies that need nothing or cannot be read."""
    from bench.checkpoints.needs import merged, needs_of
    from bench.config.compose import compose_study

    names = [None] if named else [*groups()["study"]]
    found: list[Need] = []
    nothing, notes = [], []
    for name in names:
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


def _make(folder: Path, words: Sequence[str]) -> int:
    from bench.checkpoints.stand_in import make
    from bench.config.compose import compose_study

    config = compose_study(words)
    settings = make(config, folder)
    run = [f"run_dir={folder / 'run'}"] if not any(w.startswith("run_dir=") for w in words) else []
    line = shlex.join(["python", "-m", "bench", "run", *words, *settings, *run])
    say(f"stand-ins of what {config.name} needs are in {folder}: random weights, no figures.")
    say(f"a dry run of the study:\n\n{line}")
    return 0


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


def _write(out: Path, found: Sequence[Need], text: str) -> None:
    from bench.records.schema import write_text

    if out.suffix == ".csv":
        rows: list[dict[str, Any]] = [
            {**vars(need), "studies": " ".join(need.studies)} for need in found
        ]
        text = csv_text(rows) if rows else ""
    write_text(out, text.rstrip() + "\n")
    say(f"written: {out}")
