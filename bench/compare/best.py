"""`python -m bench best RUN quality=clip`: the fastest decoder of a run that is not worse than AR.

Why a command: a sweep's answer is one row under one criterion, and whether that row lies at the
edge of what was swept, where a faster one may lie behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.config.describe import PARTS
from bench.config.differences import settings_of
from bench.config.words import fraction, with_folders
from bench.console import say
from bench.data.errors import ConfigError, unknown
from bench.judge.paired import CLIP_LESS
from bench.records.load import load
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots.sweeps import swept_in
from bench.report.table import Column, figures, filled, interval, intervals, terminal

QUALITIES = ("clip", "fid")
KEYS = ("quality", "tv")
USAGE = "write `best RUN`, `best RUN quality=clip` (or fid), or `best RUN tv=0.3`"


@dataclass(frozen=True)
class Criterion:
    """What a decoder must keep. says: in words; margin: by how much it keeps it, negative where it
    does not, NaN where it was not measured, in the unit of the figure. Of an interval the better
    end counts: not worse is what the run cannot tell apart from AR."""

    says: str
    margin: Callable[[Section, Entry], float]


@dataclass(frozen=True)
class Rated:
    """A decoder under the criterion."""

    entry: Entry
    margin: float
    edges: list[str]  # settings of which it has the first or last value

    @property
    def kept(self) -> bool:
        return self.margin >= 0


def cmd_best(words: Sequence[str]) -> int:
    """The fastest decoder of a run that is not worse than AR: best RUN quality=clip.
    Of each section of the table, with its margin, and whether it has the first or last value of
    a setting. Exit status 1 where there is none.
    Usage: RUN [setting=value]
    Settings:
        quality=clip  or fid: not worse as far as 95 % intervals tell (default: clip)
        tv=X          instead: output TV at most X
    Example: best results/tables/sweep tv=0.2

    Raises ConfigError, FolderError.
    """
    folders, given = with_folders(words, KEYS, "best")
    if len(folders) != 1 or len(given) > 1:
        raise ConfigError(
            f"expected one run folder and at most one criterion, found {len(folders)} folders and "
            f"{len(given)} criteria; {USAGE}"
        )
    run = load(Path(folders[0]))
    asked = criterion(given)
    found = [says(section, rated(run, section, asked), asked) for section in run.sections]
    say("\n\n".join(text for text, _ in found))
    return 0 if any(one for _, one in found) else 1


def criterion(given: dict[str, str]) -> Criterion:
    """Of `quality=clip` (as without words), `quality=fid` or `tv=0.3`. Raises ConfigError."""
    if "tv" in given:
        most = fraction("tv", given["tv"], USAGE)
        return Criterion(f"output TV at most {most:g}", lambda _, e: most - tv(e))
    quality = given.get("quality", "clip")
    if quality not in QUALITIES:
        raise ConfigError(f"{unknown('quality', quality, QUALITIES)}; {USAGE}")
    if quality == "clip":  # prompt by prompt, where that was compared
        return Criterion(
            "CLIP score not shown to be below AR's (95 % intervals); margin: their upper end", _clip
        )
    return Criterion(
        "FID within what AR has under other seeds, or below; margin: to the band's end", _fid
    )


def tv(entry: Entry) -> float:
    """Mean output TV; of an exact decoder 0, measured or not."""
    return 0.0 if entry.exact else entry.number("tv_output")


def _clip(section: Section, entry: Entry) -> float:
    less = entry.interval(CLIP_LESS)
    if not math.isnan(less.hi):
        return less.hi
    return entry.number("clip") - section.reseeded("clip").lo


def _fid(section: Section, entry: Entry) -> float:
    return section.reseeded("fid").hi - entry.number("fid")


def rated(run: RunData, section: Section, asked: Criterion) -> list[Rated]:
    """Decoders with a speed-up that counts, fastest first."""
    listed = run.identity.get("config", {}).get("decoders", [])
    swept = [*swept_in(section, {entry["name"]: settings_of(entry) for entry in listed})]

    def edges(entry: Entry) -> list[str]:
        lines = [(s.setting, line) for s in swept if s.setting not in PARTS for line in s.series]
        ends = [(name, (line[0][1], line[-1][1])) for name, line in lines if len(line) > 1]
        return [name for name, (first, last) in ends if entry in (first, last)]

    timed = [
        e
        for e in section.decoders
        if e.role is Role.DECODER and not math.isnan(e.number("speedup")) and not run.unmeasured(e)
    ]
    found = [Rated(e, asked.margin(section, e), edges(e)) for e in timed if not e.replayed]
    return sorted(found, key=lambda one: -one.entry.number("speedup"))


COLUMNS = (
    Column("", "decoder", lambda r: r.entry.label),
    Column("", "speed-up", lambda r: interval(r.entry.interval("speedup"), 2)),
    Column("", "CLIP - AR", lambda r: interval(r.entry.interval(CLIP_LESS), 2)),
    Column("", "FID", lambda r: figures(2)(r.entry.number("fid"))),
    Column("", "output TV", lambda r: figures(3)(tv(r.entry))),
    Column("margin", "margin", figures(3)),
    Column(
        "",
        "keeps it",
        lambda r: "yes" if r.kept else "not measured" if math.isnan(r.margin) else "no",
    ),
)


def says(section: Section, found: Sequence[Rated], asked: Criterion) -> tuple[str, Rated | None]:
    """The answer for one section, then its table; and the decoder, None where there is none."""
    best = next((one for one in found if one.kept), None)
    lines = [section.title, f"Criterion: {asked.says}."]
    if best is None:
        lines.append("No timed decoder keeps it.")
    else:
        speed = intervals(2)(best.entry.interval("speedup"))
        lines.append(f"Fastest: {best.entry.label}, {speed}; margin {best.margin:.3f}.")
        if section.speed_is_noise(best.entry):
            lines.append("Its speed-up cannot be told from 1.")
        lines += [
            f"It lies at the edge of {name}: a value beyond may be faster." for name in best.edges
        ]
    if found:
        lines.append(terminal(filled(COLUMNS, found)))
    return "\n".join(lines), best
