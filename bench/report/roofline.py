"""The roofline of a run in a table: time over floor of AR steps, verifications and drafter calls,
and what the fairness gate says of the baseline that speed-ups refer to."""

from __future__ import annotations

import math
from typing import Any

from bench.report.cells import label
from bench.report.model import Entry, Role, Run, Section
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


def roofline_tables(run: Run) -> list[Table]:
    """One table a section that has a line in roofline.csv."""
    return [made for section in run.sections if (made := _table(run, section)).rows]


def roofline_legend(run: Run) -> list[str]:
    """How to read the tables, on which machine, and why a floor is missing."""
    if not roofline_tables(run):
        return []
    lines = [
        "Forward: an AR step, or the verification of a tree of that many codes per row, root "
        "included.",
        "Over floor: the time over the least that this machine needs (max of bytes / bandwidth and "
        "operations / rate).",
        "Accept share: acceptance, commit and bookkeeping, as a share of draft, verification and "
        "acceptance.",
    ]
    if run.machine is not None:
        lines.append(f"Machine: {run.machine}.")
        if run.machine.noisy:
            lines.append(
                f"The machine was not quiet while its rates were measured (spread "
                f"{100 * run.machine.spread:.0f} %): floors may be too high."
            )
    for reason, names in _reasons(run).items():
        lines.append(f"{', '.join(names)}: {reason}.")
    return lines


def fairness_legend(run: Run) -> list[str]:
    """Footnotes of the marks in the tables; what was not judged; that all is fair."""
    if not run.fairness:
        return []
    lines = [f"({n}) {mark}: {reason}." for n, (mark, reason) in enumerate(run.marks, 1)]
    lines += [
        f"Fairness of the baseline unknown for {', '.join(names)}: {reason}."
        for reason, names in run.unjudged.items()
    ]
    lines += [f"{f.decoder}: {f.mixed}." for f in run.fairness.values() if f.mixed]
    if not lines and (fair := run.fair):
        lines.append(f"Baselines are fair: {'; '.join(fair)}.")
    return lines


def unfair_caption(run: Run) -> str:
    """Text for the caption of a plot of speed-ups, "" where no baseline is unfair."""
    decoders = [e for e in run.entries if e.role is Role.DECODER and not run.unmeasured(e)]
    names = [e.name for e in decoders if run.mark(e)]
    return f" Against an unfair baseline (see the table): {', '.join(names)}." if names else ""


def figure(line: dict[str, Any], column: str) -> float:
    """A number of a line of roofline.csv; NaN where it is missing."""
    value = line.get(column, math.nan)
    return float(value) if isinstance(value, int | float) else math.nan


def forward_part(line: dict[str, Any]) -> str:
    """Whether a line's target forward is an AR step ("ar") or one over a draft ("forward")."""
    return "forward" if figure(line, "codes") > 1 or figure(line, "forward_ms") > 0 else "ar"


def _table(run: Run, section: Section) -> Table:
    rows = [
        _row(entry, run.roofline[entry.name])
        for entry in section.decoders
        if entry.name in run.roofline and not entry.failed
    ]
    return Table(section.title, COLUMNS, rows)


def _row(entry: Entry, line: dict[str, Any]) -> Row:
    part = forward_part(line)
    own = {f"forward_{n}": figure(line, f"{part}_{n}") for n in ("ms", "floor_ms", "over_floor")}
    values = {c.key: figure(line, c.key) for c in COLUMNS} | own | {"decoder": label(entry)}
    return Row([column.cell(values) for column in COLUMNS], entry.role.value)


def _reasons(run: Run) -> dict[str, list[str]]:
    """Why a floor is not known -> decoders."""
    found: dict[str, list[str]] = {}
    for name, line in run.roofline.items():
        if line["note"]:
            found.setdefault(line["note"], []).append(name)
    return found
