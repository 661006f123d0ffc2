"""What the cells of a table say: figures, intervals, noise marks, names (no markup yet)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.judge import paired
from bench.judge.clip_pairs import FIGURE as CLIP_LESS
from bench.report.model import Entry, Role, Run, Section
from bench.report.table import ABSENT, NOISE, Column, Row, Table, interval, number
from metrics.stats import Interval

RESEED_LABEL = "AR reseed"


def main_tables(run: Run) -> list[Table]:
    """The headline figures, one table a section."""
    return [_table(section, section.title, _main_columns(run, section)) for section in run.sections]


def detail_tables(run: Run) -> list[Table]:
    """What the headline table leaves out, two tables a section: parts, times and lengths, then
    bounds and further figures of quality."""
    return [
        _table(section, f"{section.title}: {what}", columns(section))
        for section in run.sections
        for what, columns in DETAILS
    ]


def with_interval(entry: Entry, column: str, digits: int, noise: bool) -> str:
    """`1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    found = Interval(*(entry.number(column + end) for end in ("", "_lo", "_hi")))
    text = interval(found, digits)
    return f"{text} {NOISE}" if noise and text != ABSENT else text


def quiet(section: Section, entry: Entry) -> str:
    """The speed-up from lower quartiles of a step's seconds."""
    if entry.role is not Role.DECODER or section.baseline is None:
        return ABSENT
    sides = ("", section.baseline.records), ("", entry.records)
    found = paired.quiet(*([side] for side in sides))
    return ABSENT if found is None else interval(found[0].interval(), 2)


def label(entry: Entry) -> str:
    """The decoder's name as tables show it."""
    if entry.role is not Role.RESEED:
        return entry.name
    seed = "" if entry.records.empty else f", seed {entry.records['seed'].iloc[0]}"
    return RESEED_LABEL + seed


def clip_difference(section: Section, entry: Entry, digits: int) -> str:
    """CLIP score less the baseline's, image by image; marked as the score is."""
    reseed = entry.role is Role.RESEED
    noise = entry.clip_like_ar if reseed else section.quality_is_noise(entry, "clip")
    return with_interval(entry, CLIP_LESS, digits, noise)


def _digits(section: Section, column: str) -> int:
    """Decimals for a quality column: the same in every row, from its largest figure."""
    figures = [abs(e.number(column)) for e in section.entries if not math.isnan(e.number(column))]
    largest = max(figures, default=1.0)
    return 2 if largest >= 10 else 3 if largest >= 1 else 4


def _main_columns(run: Run, section: Section) -> list[Column]:
    fid, clip = _digits(section, "fid"), _digits(section, "clip")

    def speed(entry: Entry) -> str:
        if entry.role is Role.BASELINE and not math.isnan(entry.number("speedup")):
            text = f"{entry.number('speedup'):.2f}"
        else:
            text = with_interval(entry, "speedup", 2, section.speed_is_noise(entry))
        mark = run.mark(entry)
        if run.unmeasured(entry):
            return mark
        eager = run.eager(entry)
        return " ".join(filter(None, [text, mark, eager and f"({eager})"]))

    def quality(column: str, digits: int) -> Callable[[Entry], str]:
        return lambda e: with_interval(e, column, digits, section.quality_is_noise(e, column))

    return [
        Column("", "decoder", label, words=True),
        Column("", "speed-up", speed),
        _figure("latency_mean_s", "s/image", 3),
        _figure("mal", "MAL", 2),
        _figure("nfe", "NFE", 1),
        Column("", section.fid_name, quality("fid", fid)),
        Column("", section.clip_name, quality("clip", clip)),
        _figure("tv_output", "output TV", 3),
        _word("exactness", "verdict"),
    ]


def _figure(column: str, heading: str, digits: int) -> Column:
    """A number of an entry's summary row."""
    return Column("", heading, lambda entry: number(entry.number(column), digits))


def _word(column: str, heading: str) -> Column:
    """A text of an entry's summary row."""
    return Column("", heading, lambda entry: entry.text(column) or ABSENT, words=True)


def _part_columns(section: Section) -> list[Column]:
    return [
        Column("", "decoder", label, words=True),
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
    less = Column("", f"{section.clip_name} - AR", lambda e: clip_difference(section, e, digits))
    return [
        Column("", "decoder", label, words=True),
        _figure("tv_moved_mean", "moved mass, mean", 4),
        _figure("tv_moved_max", "max", 3),
        _figure("tv_bound", "bound, max", 3),
        _figure("tv_output_bound", "output bound", 3),
        _figure("tv_declared_bound", "declared bound", 3),
        _figure("n_quality", "images judged", 0),
        _figure("kid", "KID", 5),
        _figure("precision", "precision", 3),
        _figure("recall", "recall", 3),
        *([less] if section.compares_clip else []),
    ]


def _table(section: Section, title: str, columns: Sequence[Column]) -> Table:
    rows = []
    for entry in section.entries:
        kind = "failed" if entry.failed else entry.role.value
        if entry.failed:
            blank = [""] * (len(columns) - 1)
            rows.append(Row([label(entry), *blank], kind, f"failed: {entry.error}"))
        else:
            rows.append(Row([column.cell(entry) for column in columns], kind))
    return Table(title, columns, rows)


DETAILS = (("parts, times and lengths", _part_columns), ("bounds and quality", _bound_columns))
