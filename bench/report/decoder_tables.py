"""Makes the tables of decoders, by section: exact, relaxed and unjudged ones with what a reader
needs, then the details of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.analyse.paired import CLIP_LESS
from bench.analyse.run_data import Entry, Role, RunData, Section
from bench.report.headline import GROUPS, group, output_tv, quality
from bench.report.table import ABSENT, NOISE, Column, Row, Table, interval, number


def main_tables(run: RunData) -> list[Table]:
    """Makes a table per section and group; AR heads each, as its decoders are compared with it."""
    tables = []
    for section in run.sections:
        ar = [e for e in section.entries if e.role is not Role.DECODER]
        for name in GROUPS:
            rest = [e for e in section.entries if e.role is Role.DECODER and group(e) == name]
            first = ar if name == GROUPS[0] else [e for e in ar if e.role is Role.BASELINE]
            if rest or (name == GROUPS[0] and ar):
                columns = _main_columns(run, section, relaxed=name != GROUPS[0])
                if any(e.word == "broken" for e in rest):
                    name = name.replace("relaxed", "relaxed or broken")
                tables.append(_table(f"{section.title}: {name}", columns, [*first, *rest]))
    return tables


def detail_tables(run: RunData) -> list[Table]:
    """Makes a table per section and kind of detail."""
    return [
        _table(f"{section.title}: {name}", columns, section.entries)
        for section in run.sections
        for name, columns in (
            ("parts and lengths", PARTS),
            ("quality", _quality_columns(section)),
            ("output TV and its bounds", BOUNDS),
        )
    ]


def _table(title: str, columns: Sequence[Column], entries: Sequence[Entry]) -> Table:
    columns = [Column("decoder", lambda entry: entry.label, words=True), *columns]
    rows = []
    for entry in entries:
        if entry.failed:
            rows.append(Row([entry.label, "failed", *[""] * (len(columns) - 2)], "failed"))
        else:
            rows.append(Row([column.cell(entry) for column in columns], entry.role.value))
    return Table(title, columns, rows)


def _main_columns(run: RunData, section: Section, relaxed: bool) -> list[Column]:
    def speed(entry: Entry) -> str:
        mark = run.speed_mark(entry)
        if run.unmeasured(entry):
            return mark
        text = _with_interval(entry, "speedup", 2, section.speed_is_noise(entry))
        eager = run.eager(entry)
        return " ".join(filter(None, [text, mark, eager and f"({eager})"]))

    def judged(entry: Entry) -> str:
        return ABSENT if entry.role is not Role.DECODER else quality(section, entry)

    return [
        Column("verdict", lambda entry: run.verdict(entry) or ABSENT, words=True),
        Column("speed-up", speed),
        _figure("latency_mean_s", "s/image", 3),
        _figure("mal", "codes per forward", 2),
        Column(section.clip_name, _scored(section, "clip")),
        *([Column("CLIP against AR", judged, words=True)] if relaxed else []),
        Column("output TV", output_tv),
    ]


def _quality_columns(section: Section) -> list[Column]:
    return [
        _figure("n_quality", "images judged", 0),
        Column(f"{section.clip_name} - AR", lambda e: interval(e.interval(CLIP_LESS), 2)),
        Column(section.fid_name, _scored(section, "fid")),
        Column("FID without bias", _scored(section, "fid_debiased")),
        Column("KID", _scored(section, "kid")),
    ]


def _with_interval(entry: Entry, column: str, digits: int, noise: bool) -> str:
    """Formats `1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    text = interval(entry.interval(column), digits)
    return f"{text} {NOISE}" if noise and text != ABSENT else text


def _scored(section: Section, column: str) -> Callable[[Entry], str]:
    """Returns what formats a quality figure as a cell, with its interval and the noise mark."""
    digits = 5 if column == "kid" else 2
    return lambda e: _with_interval(e, column, digits, section.is_noise(e, column))


def _figure(column: str, heading: str, digits: int) -> Column:
    """Makes the column of a number of an entry's summary row."""
    return Column(heading, lambda entry: number(entry.number(column), digits))


def _over_blocks(entry: Entry) -> str:
    """Formats `1.42 to 1.81 (20)`: least and greatest speed-up of a block, and how many blocks."""
    least, greatest, count = (
        entry.number(f"speedup_{name}") for name in ("least", "greatest", "blocks")
    )
    if entry.role is not Role.DECODER or math.isnan(least):
        return ABSENT
    return f"{number(least, 2)} to {number(greatest, 2)} ({count:.0f})"


PARTS = (
    Column("acceptance", lambda entry: entry.text("acceptance") or ABSENT, words=True),
    Column("tree", lambda entry: entry.text("tree") or ABSENT, words=True),
    Column("speed-up over blocks", _over_blocks),
    _figure("n_latency", "images timed", 0),
    _figure("nfe", "NFE", 1),
    _figure("mal_expected", "codes expected", 2),
    _figure("peak_memory_mb", "peak MB", 0),
)
BOUNDS = (
    _figure("tv_tested", "TV, tested codes", 3),
    _figure("tv_declared_bound", "declared bound", 3),
    _figure("tv_shift_mean", "TV(p, p_A), mean", 4),
    _figure("tv_shift_max", "TV(p, p_A), max", 3),
    _figure("tv_bound", "its bound, max", 3),
)
