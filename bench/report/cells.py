"""What the cells of a table say: figures, intervals, noise marks, names (no markup yet)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.judge import paired
from bench.judge.clip_pairs import FIGURE as CLIP_LESS
from bench.report.model import Entry, Role, Run, Section

NOISE = "≈"
ABSENT = "—"
RESEED_LABEL = "AR reseed"
UNFAIR = "unfair baseline"  # followed by the number of its footnote


@dataclass(frozen=True)
class Row:
    """One line of a table; `message` replaces every cell but the first (a failed decoder)."""

    cells: list[str]
    kind: str  # "baseline", "decoder", "reseed" or "failed"
    message: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[Row]


def main_tables(run: Run) -> list[Table]:
    """The headline figures, one table a section."""
    return [_table(section, _main_columns(run, section)) for section in run.sections]


def detail_tables(run: Run) -> list[Table]:
    """What the headline table leaves out: parts, percentiles, TV, counts."""
    return [_table(section, _detail_columns(section)) for section in run.sections]


def number(value: float, digits: int | None = None) -> str:
    """A figure with sensible decimals; an absent one is a dash, never a zero."""
    if math.isnan(value):
        return ABSENT
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        digits = 4 if 0 < size < 0.1 else digits
    return f"{value:.{digits}f}"


def with_interval(entry: Entry, column: str, digits: int, noise: bool) -> str:
    """`1.82 [1.75, 1.90]`, with the noise mark where it applies."""
    value, low, high = (entry.number(column + end) for end in ("", "_lo", "_hi"))
    if math.isnan(value):
        return ABSENT
    text = number(value, digits)
    if not (math.isnan(low) or math.isnan(high)):
        text += f" [{number(low, digits)}, {number(high, digits)}]"
    return f"{text} {NOISE}" if noise else text


def quiet(section: Section, entry: Entry) -> str:
    """The speed-up from lower quartiles of a step's seconds."""
    if entry.role is not Role.DECODER or section.baseline is None:
        return ABSENT
    found = paired.quiet(section.baseline.records, entry.records)
    return ABSENT if found is None else f"{found.value:.2f} [{found.lo:.2f}, {found.hi:.2f}]"


def label(entry: Entry) -> str:
    """The decoder's name as tables show it."""
    if entry.role is not Role.RESEED:
        return entry.name
    seed = "" if entry.records.empty else f", seed {entry.records['seed'].iloc[0]}"
    return RESEED_LABEL + seed


def clip_difference(entry: Entry, digits: int) -> str:
    """CLIP score less the baseline's, image by image; marked where less and more are possible."""
    return with_interval(entry, CLIP_LESS, digits, entry.clip_like_ar)


Column = tuple[str, Callable[[Entry], str]]


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
        note = run.unfair_note(entry)
        return f"{text} {UNFAIR} ({note})" if note else text

    return [
        ("decoder", label),
        ("speed-up", speed),
        ("s/image", lambda e: number(e.number("latency_mean_s"), 3)),
        ("MAL", lambda e: number(e.number("mal"), 2)),
        ("NFE", lambda e: number(e.number("nfe"), 1)),
        (
            section.fid_name,
            lambda e: with_interval(e, "fid", fid, section.quality_is_noise(e, "fid")),
        ),
        (
            section.clip_name,
            lambda e: with_interval(e, "clip", clip, section.quality_is_noise(e, "clip")),
        ),
        ("output TV", lambda e: number(e.number("tv_output"), 3)),
        ("its bound", lambda e: number(e.number("tv_output_bound"), 3)),
        ("declared", lambda e: number(e.number("tv_declared_bound"), 3)),
        ("verdict", lambda e: e.text("exactness") or ABSENT),
    ]


def _detail_columns(section: Section) -> list[Column]:
    def plain(column: str, digits: int | None = None) -> Callable[[Entry], str]:
        return lambda entry: number(entry.number(column), digits)

    def word(column: str) -> Callable[[Entry], str]:
        return lambda entry: entry.text(column) or ABSENT

    digits = _digits(section, "clip")
    less = (f"{section.clip_name} - AR", lambda entry: clip_difference(entry, digits))
    return [
        ("decoder", label),
        ("acceptance", word("acceptance")),
        ("tree", word("tree")),
        ("images timed", plain("n_latency", 0)),
        ("p50 s", plain("latency_p50_s", 3)),
        ("p95 s", plain("latency_p95_s", 3)),
        ("quiet speed-up", lambda entry: quiet(section, entry)),
        ("MAL, no bonus", plain("mal_no_bonus", 2)),
        ("moved mass, mean", plain("tv_moved_mean", 4)),
        ("max", plain("tv_moved_max", 3)),
        ("bound, max", plain("tv_bound", 3)),
        ("images judged", plain("n_quality", 0)),
        ("KID", plain("kid", 5)),
        ("precision", plain("precision", 3)),
        ("recall", plain("recall", 3)),
        *([less] if section.compares_clip else []),
        ("peak MB", plain("peak_memory_mb", 0)),
    ]


def _table(section: Section, columns: list[Column]) -> Table:
    rows = []
    for entry in section.entries:
        kind = "failed" if entry.failed else entry.role.value
        if entry.failed:
            blank = [""] * (len(columns) - 1)
            rows.append(Row([label(entry), *blank], kind, f"failed: {entry.error}"))
        else:
            rows.append(Row([cell(entry) for _, cell in columns], kind))
    return Table(section.title, [name for name, _ in columns], rows)
