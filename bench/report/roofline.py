"""The roofline of a run: the table of time over floor, and what bounds a section's forwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bench.cost.work import MEMORY, Growth, Known, Work, place_of
from bench.records.run_data import RunData, Section
from bench.report.table import ABSENT, Column, Row, Table, figures, number, percent


def _times(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.1f} x"


COLUMNS = (
    Column("decoder", "decoder"),
    Column("codes", "codes", figures(0)),
    Column("step_ms", "step ms", number),
    Column("step_over_floor", "step over floor", _times),
    Column("forward_ms", "forward ms", number),
    Column("forward_floor_ms", "floor ms", number),
    Column("forward_over_floor", "over floor", _times),
    Column("draft_ms", "draft call ms", number),
    Column("draft_floor_ms", "draft floor ms", number),
    Column("draft_over_floor", "draft over floor", _times),
    Column("accept_share", "accept share", percent),
)


@dataclass(frozen=True)
class Bounds:
    """Of the forwards of a section. place: what is read at the rate (memory, a cache)."""

    growth: Growth
    rates: Known
    place: str = MEMORY

    @property
    def crossing(self) -> float | None:
        """Where reading and arithmetic take equally long, in codes per forward."""
        return self.growth.crossing(self.rates)

    @property
    def takes_over(self) -> int | None:
        """Codes per forward from which arithmetic takes longest; None: never."""
        return self.growth.takes_over(self.rates)


def bounds(run: RunData, section: Section) -> Bounds | None:
    """From the section's lines of roofline.csv; None where no floor is known."""
    lines = [run.roofline[e.name] for e in section.decoders if e.name in run.roofline]
    known = [one for one in lines if figure(one, "ar_bytes") > 0 and figure(one, "bytes_per_s") > 0]
    if not known:
        return None
    first = known[0]
    trees = [one for one in known if figure(one, "codes") > 1 and figure(one, "forward_bytes") > 0]
    widest = max(trees, key=lambda one: figure(one, "codes"), default=None)
    codes, other = 1.0, None
    if widest is not None:
        codes, other = figure(widest, "codes"), _work(widest, "forward")
    rate = figure(first, "bytes_per_s")
    return Bounds(
        Growth.through(_work(first, "ar"), codes, other),
        Known(rate, figure(first, "operations_per_s")),
        place_of(rate, figure(first, "large_bytes_per_s")),
    )


def _work(line: dict[str, Any], part: str) -> Work:
    return Work(figure(line, f"{part}_bytes"), figure(line, f"{part}_operations"))


def figure(line: dict[str, Any], column: str) -> float:
    """A number of a line of roofline.csv; NaN where it is missing."""
    value = line.get(column, math.nan)
    return float(value) if isinstance(value, int | float) else math.nan


def forward_part(line: dict[str, Any]) -> str:
    """Whether a line's target forward is an AR step ("ar") or one over a draft ("forward")."""
    return "forward" if figure(line, "codes") > 1 or figure(line, "forward_ms") > 0 else "ar"


def roofline_tables(run: RunData) -> list[Table]:
    """One table a section that has a line in roofline.csv."""
    made = []
    for section in run.sections:
        rows = []
        for entry in section.decoders:
            if entry.failed or entry.name not in run.roofline:
                continue
            line = run.roofline[entry.name]
            part = forward_part(line)
            own = {f"forward_{n}": figure(line, f"{part}_{n}") for n in FORWARD}
            values = {c.key: figure(line, c.key) for c in COLUMNS} | own | {"decoder": entry.label}
            rows.append(Row([column.cell(values) for column in COLUMNS], entry.role.value))
        if rows:
            made.append(Table(section.title, COLUMNS, rows))
    return made


FORWARD = ("ms", "floor_ms", "over_floor")
