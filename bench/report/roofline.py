"""Shows the roofline of a run: time over floor, what bounds an AR step, what a forward costs by the
codes that it is over, and where the seconds of an image go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from bench.analyse.analyse import PHASES
from bench.analyse.paired import latency_rows
from bench.analyse.run_data import Entry, RunData, Section, forward_part
from bench.measure.roofline import three_digits
from bench.report.table import ABSENT, Column, Row, Table, number

FORWARD = ("ms", "floor_ms", "over_floor")
INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


def _times(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.1f} x"


def _figure(key: str, heading: str, text: Callable[[float], str] = number) -> Column:
    """Makes the column of a number of a decoder's line."""
    return Column(heading, lambda line: text(line[key]))


RATIO = partial(number, digits=2)
COLUMNS = (
    Column("decoder", lambda line: line["decoder"]),
    Column("codes", lambda line: number(line["codes"], 0)),
    _figure("step_ms", "step ms"),
    _figure("step_ar_steps", "step in AR steps", RATIO),
    _figure("step_over_floor", "step over floor", _times),
    _figure("forward_ms", "forward ms"),
    _figure("forward_ar_steps", "forward in AR steps", RATIO),
    _figure("forward_floor_ms", "floor ms"),
    _figure("forward_over_floor", "over floor", _times),
    _figure("draft_ms", "draft call ms"),
)


@dataclass(frozen=True)
class Bounds:
    """The least milliseconds that an AR step needs for reading and for arithmetic. A forward over n
    codes reads as much, but for some keys and values, and computes n times as much."""

    reading: float
    computing: float

    @property
    def crossing(self) -> float:
        """Codes per forward from which on arithmetic takes longer than reading."""
        return max(1.0, self.reading / self.computing)

    def __str__(self) -> str:
        read, computed = (f"{three_digits(ms)} ms" for ms in (self.reading, self.computing))
        if self.crossing > 1:
            return (
                f"AR is bound by memory here: a step needs at least {read} to read and {computed} "
                f"to compute. In a forward over {math.ceil(self.crossing)} codes or more, "
                "computing takes longer than reading."
            )
        return (
            f"AR is bound by arithmetic here: a step needs at least {computed} to compute and "
            f"{read} to read, so a forward over n codes costs about n AR steps."
        )


def bounds(run: RunData, section: Section) -> Bounds | None:
    """Reads a section's bounds from its lines of the roofline; None where no floor is known."""
    for line in (run.roofline[e.name] for e in section.decoders if e.name in run.roofline):
        if line["ar_bytes"] > 0 and line["bytes_per_s"] > 0:
            return Bounds(
                1e3 * line["ar_bytes"] / line["bytes_per_s"],
                1e3 * line["ar_operations"] / line["operations_per_s"],
            )
    return None


def ar_step_ms(run: RunData, section: Section) -> float:
    """Median milliseconds of the baseline's step; NaN where none was timed."""
    base = "" if section.baseline is None else section.baseline.name
    return float(run.roofline.get(base, {}).get("ar_ms", math.nan))


def roofline_tables(run: RunData) -> list[Table]:
    """Makes one table per section that has a line in the roofline."""
    tables = []
    for section in run.sections:
        ar, rows = ar_step_ms(run, section), []
        for entry in section.decoders:
            if entry.failed or entry.name not in run.roofline:
                continue
            line = run.roofline[entry.name]
            part = forward_part(line)
            line = line | {f"forward_{name}": line[f"{part}_{name}"] for name in FORWARD}
            line |= {f"{name}_ar_steps": line[f"{name}_ms"] / ar for name in ("step", "forward")}
            rows.append(Row([column.cell(line) for column in COLUMNS], entry.role.value))
        if rows:
            tables.append(Table(section.title, COLUMNS, rows))
    return tables


@dataclass(frozen=True)
class Forwards:
    """Median milliseconds of the target forwards over `codes` codes, and whose; whole: of the step,
    where a backend runs it as one."""

    codes: int
    ms: float
    names: tuple[str, ...]
    whole: bool = False


def forwards(run: RunData, section: Section) -> list[Forwards]:
    """Groups a section's forwards by their codes, at the mean of decoders with as many codes."""
    timed: dict[tuple[int, bool], list[tuple[str, float]]] = {}
    for entry in section.decoders:
        line = run.roofline.get(entry.name)
        if line is None or entry.failed:
            continue
        part = forward_part(line)
        whole = math.isnan(line[f"{part}_ms"])
        ms = line["step_ms" if whole else f"{part}_ms"]
        if not math.isnan(ms):
            timed.setdefault((int(line["codes"]), whole), []).append((entry.name, ms))
    return [
        Forwards(codes, fmean(ms for _, ms in pairs), tuple(name for name, _ in pairs), whole)
        for (codes, whole), pairs in sorted(timed.items())
    ]


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Averages the seconds of every phase over the timed images, 0 where not recorded; {} without.
    `other` is what seconds_total holds beyond its four timed parts."""
    rows = latency_rows(entry.records)
    if rows.empty:
        return {}
    text, *timed, vq = (float(np.nan_to_num(rows[f"seconds_{name}"].mean())) for name in PHASES)
    other = max(float(np.nan_to_num(rows["seconds_total"].mean())) - sum(timed), 0.0)
    return {"text": text, **dict(zip(INSIDE, timed, strict=True)), "other": other, "VQ decode": vq}
