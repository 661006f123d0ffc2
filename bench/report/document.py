"""The report of a run as figures and sentences, made once for all its writers.

`document(run)` derives tables with their marks, footnotes, facts and failures. The terminal's text,
Markdown, LaTeX, CSV (`bench.report.writers`) and the page (`bench.report.page.index`) only set it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.judge import paired
from bench.judge.paired import CLIP_LESS
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report import notes, scaling
from bench.report.roofline import roofline_tables
from bench.report.table import ABSENT, NOISE, Column, Row, Table, interval, number


@dataclass(frozen=True)
class Document:
    """What a report says. Lists of tables hold one or more for each section of the run."""

    study: str
    folder: Path
    made_by: str  # which code ran which model on which processor
    headline: list[Table]
    regime: list[str]  # what bounds an AR step
    footnotes: list[str]
    facts: list[str]  # of this run
    fairness: list[str]  # footnotes of marks in the tables
    floors: list[Table]  # time over floor
    floor_notes: list[str]
    batches: list[scaling.Line]  # by batch size, of a run that timed several
    details: list[Table]
    columns: list[str]  # how each figure is defined
    failures: list[tuple[str, str]]  # decoder, what went wrong in full
    provenance: list[tuple[str, list[str]]]  # fact, its values in the rows
    times: int  # that each image was timed
    lines: list[dict[str, Any]]  # of the CSV: a decoder each, in full precision


def document(run: RunData) -> Document:
    """All that is said of a run."""
    floors = roofline_tables(run)
    fairness = notes.fairness(run)
    return Document(
        study=run.study,
        folder=run.folder,
        made_by=notes.made_by(run),
        headline=[_table(s, s.title, _main_columns(run, s)) for s in run.sections],
        regime=notes.regime_lines(run),
        footnotes=notes.footnotes(fairness),
        facts=notes.facts(run),
        fairness=fairness,
        floors=floors,
        floor_notes=notes.floors(run) if floors else [],
        batches=scaling.lines(run),
        details=[
            _table(section, f"{section.title}: {what}", columns(section))
            for section in run.sections
            for what, columns in DETAILS
        ],
        columns=notes.columns(run),
        failures=_failures(run),
        provenance=notes.provenance(run),
        times=paired.repeats(run.records),
        lines=[_line(run, section, entry) for section in run.sections for entry in section.entries],
    )


def quiet(section: Section, entry: Entry) -> str:
    """The speed-up from lower quartiles of a step's seconds."""
    if entry.role is not Role.DECODER or section.baseline is None:
        return ABSENT
    found = paired.quiet([("", section.baseline.records)], [("", entry.records)])
    return ABSENT if found is None else interval(found[0].interval(), 2)


def _failures(run: RunData) -> list[tuple[str, str]]:
    """Every entry with a failed image, and how many failed."""
    lines = []
    for entry in run.failures:
        total, unit = len(entry.records), paired.counted(entry.records)
        count = f"{entry.failures} of {total} {unit} failed: " if entry.failures else ""
        lines.append((entry.name, count + entry.error))
    return lines


def _line(run: RunData, section: Section, entry: Entry) -> dict[str, Any]:
    """Every column of the summary, plus section, role, noise marks, fairness and error."""
    fair = run.fairness.get(entry.name)
    return entry.row | {
        "section": section.title,
        "role": entry.role.value,
        "speedup_is_noise": section.speed_is_noise(entry),
        "fid_is_noise": section.quality_is_noise(entry, "fid"),
        "clip_is_noise": section.quality_is_noise(entry, "clip"),
        "fairness": fair.verdict if fair else "",
        "fairness_reason": fair.reason if fair else "",
        "failed_images": entry.failures,
        "error": entry.error,
    }


def _with_interval(entry: Entry, column: str, digits: int, noise: bool) -> str:
    """`1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    text = interval(entry.interval(column), digits)
    return f"{text} {NOISE}" if noise and text != ABSENT else text


def _digits(section: Section, column: str) -> int:
    """Decimals for a quality column: the same in every row, from its largest figure."""
    figures = [abs(e.number(column)) for e in section.entries if not math.isnan(e.number(column))]
    largest = max(figures, default=1.0)
    return 2 if largest >= 10 else 3 if largest >= 1 else 4


def _figure(column: str, heading: str, digits: int) -> Column:
    """A number of an entry's summary row."""
    return Column("", heading, lambda entry: number(entry.number(column), digits))


def _word(column: str, heading: str) -> Column:
    """A text of an entry's summary row."""
    return Column("", heading, lambda entry: entry.text(column) or ABSENT, words=True)


DECODER = Column("label", "decoder", words=True)


def _main_columns(run: RunData, section: Section) -> list[Column]:
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

    def quality(column: str) -> Callable[[Entry], str]:
        digits = _digits(section, column)
        return lambda e: _with_interval(e, column, digits, section.quality_is_noise(e, column))

    return [
        DECODER,
        Column("", "speed-up", speed),
        _figure("latency_mean_s", "s/image", 3),
        _figure("mal", "MAL", 2),
        _figure("nfe", "NFE", 1),
        Column("", section.fid_name, quality("fid")),
        Column("", section.clip_name, quality("clip")),
        _figure("tv_output", "output TV", 3),
        _word("exactness", "verdict"),
    ]


def _part_columns(section: Section) -> list[Column]:
    return [
        DECODER,
        _word("acceptance", "acceptance"),
        _word("tree", "tree"),
        _figure("n_latency", "images timed", 0),
        _figure("latency_p50_s", "p50 s", 3),
        _figure("latency_p95_s", "p95 s", 3),
        Column("", "quiet speed-up", lambda entry: quiet(section, entry)),
        _figure("mal_no_bonus", "MAL, no bonus", 2),
        _figure("mal_expected", "MAL expected", 2),
        _figure("peak_memory_mb", "peak MB", 0),
    ]


def _bound_columns(section: Section) -> list[Column]:
    digits = _digits(section, "clip")

    def less(entry: Entry) -> str:
        """CLIP score less the baseline's, image by image; marked as the score is."""
        own = entry.role is Role.RESEED
        noise = entry.clip_like_ar if own else section.quality_is_noise(entry, "clip")
        return _with_interval(entry, CLIP_LESS, digits, noise)

    return [
        DECODER,
        _figure("tv_moved_mean", "moved mass, mean", 4),
        _figure("tv_moved_max", "max", 3),
        _figure("tv_bound", "bound, max", 3),
        _figure("tv_output_bound", "output bound", 3),
        _figure("tv_declared_bound", "declared bound", 3),
        _figure("n_quality", "images judged", 0),
        _figure("kid", "KID", 5),
        _figure("precision", "precision", 3),
        _figure("recall", "recall", 3),
        *([Column("", f"{section.clip_name} - AR", less)] if section.compares_clip else []),
    ]


DETAILS = (("parts, times and lengths", _part_columns), ("bounds and quality", _bound_columns))


def _table(section: Section, title: str, columns: Sequence[Column]) -> Table:
    rows = []
    for entry in section.entries:
        if entry.failed:
            blank = [""] * (len(columns) - 1)
            rows.append(Row([entry.label, *blank], "failed", f"failed: {entry.error}"))
        else:
            rows.append(Row([column.cell(entry) for column in columns], entry.role.value))
    return Table(title, columns, rows)
