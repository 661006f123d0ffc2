"""The report of a run as figures and sentences, made once for all its writers.

`summarise(run)` derives the headline, tables with their marks, notes and figures. The writers of
the terminal's text, Markdown, LaTeX (`bench.report.build`) and of the page
(`bench.report.page`) only set it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.judge import paired
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report import notes, roofline, scaling
from bench.report.headline import GROUPS, group, headline, in_display_order, output_tv, quality
from bench.report.plots import figures
from bench.report.prompts import prompts_with_page
from bench.report.style import Plot
from bench.report.table import ABSENT, NOISE, Column, Row, Table, interval, number, table_of

NO_ROOFLINE = (
    "No roofline was measured (no image was timed, or an older version made this run), so nothing "
    "is said of the baseline's own speed."
)


@dataclass(frozen=True)
class Block:
    """Tables and what is said of them, under one heading."""

    name: str
    title: str
    tables: list[Table]
    notes: list[str]


@dataclass(frozen=True)
class Report:
    """What a report says. run: its decoders in the order in which they are shown; blocks: `table`
    (the main tables), `run`, and where there is anything of it `roofline`, `batches`, `details` and
    `failures`; notices: what could not be shown."""

    run: RunData
    headline: list[str]
    blocks: list[Block]
    notices: list[str]

    @property
    def study(self) -> str:
        return self.run.study

    @cached_property
    def plots(self) -> list[Plot]:
        """Figures of what the run recorded."""
        return figures(self.run)

    @cached_property
    def prompts(self) -> list[tuple[int, str]]:
        """Number and text of the prompts that have a page."""
        return prompts_with_page(self.run)

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """Facts and their values in the rows."""
        return notes.provenance(self.run)

    def block(self, name: str) -> Block:
        """One of them; empty where there is nothing of it."""
        return next((b for b in self.blocks if b.name == name), Block(name, "", [], []))


def summarise(run: RunData) -> Report:
    """All that is said of a run."""
    run = in_display_order(run)
    notices = ["Every decoder of this run failed; there is nothing to plot."] * run.all_failed
    notices += [] if run.roofline else [NO_ROOFLINE]
    return Report(run, headline(run), _blocks(run), notices)


def _blocks(run: RunData) -> list[Block]:
    floors, batches = roofline.roofline_tables(run), scaling.lines(run)
    details = [
        _table(f"{section.title}: {what}", columns(section), section.entries)
        for section in run.sections
        for what, columns in DETAILS
    ]
    by_batch = [table_of(scaling.COLUMNS, batches, "By batch size")] if batches else []
    every = [
        Block("table", "Decoders side by side", _main_tables(run), notes.footnotes(run)),
        Block("run", "This run", [], notes.facts(run)),
        Block("roofline", "Time over floor", floors, notes.floors(run) if floors else []),
        Block("batches", "By batch size", by_batch, [scaling.LEGEND] if batches else []),
        Block("details", "Details", details, notes.columns(run)),
        Block("failures", "Failures", [], failures(run)),
    ]
    return [block for block in every if block.tables or block.notes]


def over_blocks(entry: Entry) -> str:
    """`1.42 to 1.81 (20)`: the least and the greatest speed-up of a block, and how many blocks."""
    least, greatest, count = (
        entry.number(f"speedup_{name}") for name in ("least", "greatest", "blocks")
    )
    if entry.role is not Role.DECODER or math.isnan(least):
        return ABSENT
    return f"{number(least, 2)} to {number(greatest, 2)} ({count:.0f})"


def failures(run: RunData) -> list[str]:
    """What went wrong in full, of every entry with a failed image."""
    lines = []
    for entry in (e for e in run.entries if e.failed or e.failures):
        count = f"{entry.failures} of {len(entry.records)} images failed: " * bool(entry.failures)
        lines.append(f"{entry.name}: {count}{entry.error}")
    return lines


def _with_interval(entry: Entry, column: str, digits: int, noise: bool) -> str:
    """`1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    text = interval(entry.interval(column), digits)
    return f"{text} {NOISE}" if noise and text != ABSENT else text


def _scored(section: Section, column: str) -> Callable[[Entry], str]:
    """A quality figure as a cell, with its interval and the noise mark."""
    digits = 5 if column == "kid" else 2
    return lambda e: _with_interval(e, column, digits, section.is_noise(e, column))


def _figure(column: str, heading: str, digits: int) -> Column:
    """A number of an entry's summary row."""
    return Column("", heading, lambda entry: number(entry.number(column), digits))


DECODER = Column("label", "decoder", words=True)


def _main_tables(run: RunData) -> list[Table]:
    """A table a section and group; AR heads each, as what its decoders are compared with."""
    tables = []
    for section in run.sections:
        ar = [e for e in section.entries if e.role is not Role.DECODER]
        groups = {name: [e for e in section.entries if group(e) == name] for name in GROUPS}
        for name, members in groups.items():
            rest = [e for e in members if e.role is Role.DECODER]
            first = ar if name == GROUPS[0] else [e for e in ar if e.role is Role.BASELINE]
            if rest or (name == GROUPS[0] and ar):
                columns = _main_columns(run, section, relaxed=name != GROUPS[0])
                title = f"{section.title}: {name}"
                tables.append(_table(title, columns, [*first, *rest]))
    return tables


def _main_columns(run: RunData, section: Section, relaxed: bool) -> list[Column]:
    def speed(entry: Entry) -> str:
        mark = run.mark(entry)
        if run.unmeasured(entry):
            return mark
        if entry.role is Role.BASELINE and not math.isnan(entry.number("speedup")):
            text = f"{entry.number('speedup'):.2f}"
        else:
            text = _with_interval(entry, "speedup", 2, section.speed_is_noise(entry))
        eager = run.eager(entry)
        return " ".join(filter(None, [text, mark, eager and f"({eager})"]))

    def judged(entry: Entry) -> str:
        return ABSENT if entry.role is not Role.DECODER else quality(section, entry)

    return [
        DECODER,
        Column("", "speed-up", speed),
        _figure("latency_mean_s", "s/image", 3),
        _figure("mal", "codes per forward", 2),
        Column("", section.clip_name, _scored(section, "clip")),
        *([Column("", "CLIP against AR", judged, words=True)] if relaxed else []),
        Column("", "output TV", output_tv),
        Column("", "verdict", lambda entry: entry.word or ABSENT, words=True),
    ]


def _part_columns(section: Section) -> list[Column]:
    return [
        DECODER,
        Column("", "acceptance", lambda entry: entry.text("acceptance") or ABSENT, words=True),
        Column("", "tree", lambda entry: entry.text("tree") or ABSENT, words=True),
        Column("", "speed-up over blocks", over_blocks),
        _figure("n_latency", "images timed", 0),
        _figure("nfe", "NFE", 1),
        _figure("mal_expected", "codes expected", 2),
        _figure("peak_memory_mb", "peak MB", 0),
    ]


def _quality_columns(section: Section) -> list[Column]:
    def less(entry: Entry) -> str:
        """CLIP score less the baseline's, image by image; marked as the score is."""
        return _with_interval(entry, paired.CLIP_LESS, 2, section.is_noise(entry, "clip"))

    clip = [Column("", f"{section.clip_name} - AR", less)] if section.compares_clip else []
    return [
        DECODER,
        _figure("n_quality", "images judged", 0),
        *clip,
        Column("", section.fid_name, _scored(section, "fid")),
        Column("", "FID without bias", _scored(section, "fid_debiased")),
        Column("", "KID", _scored(section, "kid")),
    ]


def _tv_columns(section: Section) -> list[Column]:
    return [
        DECODER,
        _figure("tv_tested", "TV, tested codes", 3),
        _figure("tv_declared_bound", "declared bound", 3),
        _figure("tv_shift_mean", "TV(p, p_A), mean", 4),
        _figure("tv_shift_max", "TV(p, p_A), max", 3),
        _figure("tv_bound", "its bound, max", 3),
    ]


DETAILS = (
    ("parts and lengths", _part_columns),
    ("quality", _quality_columns),
    ("output TV and its bounds", _tv_columns),
)


def _table(title: str, columns: Sequence[Column], entries: Sequence[Entry]) -> Table:
    rows = []
    for entry in entries:
        cells = [column.cell(entry) for column in columns]
        if entry.failed:
            cells = [entry.label, "failed", *[""] * (len(columns) - 2)]
        rows.append(Row(cells, "failed" if entry.failed else entry.role.value))
    return Table(title, columns, rows)
