"""Tables: columns and rows as terminal text, and how figures are written.

Why one writer: every command shows figures with intervals, a dash where nothing is known and a mark
where something failed, in the terminal and in files. Nothing heavy is imported here.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import escape_hidden

if TYPE_CHECKING:
    from metrics.stats import Interval

ABSENT = "—"
NOISE = "≈"
DAGGER = "†"


@dataclass(frozen=True)
class Column:
    """A column. heading: above it; cell: the text of a row; text: aligned as texts are, not as
    figures; names: its cells name decoders, for which a page and LaTeX have papers' names."""

    heading: str
    cell: Callable[[Any], str]
    text: bool = False
    names: bool = False


@dataclass(frozen=True)
class Row:
    """One line. kind: what it is of, for its look."""

    cells: Sequence[str]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]


def table_of(columns: Sequence[Column], rows: Iterable[Any], title: str = "") -> Table:
    return Table(title, columns, [Row([c.cell(row) for c in columns]) for row in rows])


def table_of_texts(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table("", [Column(name, str) for name in headings], [Row(cells) for cells in rows])


def number(value: float, digits: int | None = None) -> str:
    """Formats a figure; None: with sensible decimals. An unknown one is a dash, never a zero."""
    if not math.isfinite(value):
        return ABSENT
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        digits = 4 if 0 < size < 0.1 else digits
    return f"{value:z.{digits}f}"


def interval(value: Interval, digits: int | None) -> str:
    """Formats `1.23 [1.20, 1.26]`, without bounds where they are unknown or nothing varies; a dash
    for NaN. digits: decimals; None: as many as the interval allows."""
    digits = digits_of([value]) if digits is None else digits
    text = number(value.value, digits)
    if math.isfinite(value.value) and -math.inf < value.lo < value.hi < math.inf:
        text += f" [{number(value.lo, digits)}, {number(value.hi, digits)}]"
    return text


def digits_of(column: Iterable[Interval]) -> int | None:
    """Decimals that the widest of these intervals allows: one or two digits of its half width,
    below 3.55; None without an interval."""
    half = max((one.half_width for one in column if 0 < one.half_width < math.inf), default=0)
    return max(0, math.ceil(-math.log10(half / 3.55))) if half else None


def percent(value: float, digits: int = 1) -> str:
    """Formats a share of one: `12.3 %`."""
    return f"{100 * value:z.{digits}f} %" if math.isfinite(value) else ABSENT


def terminal(table: Table) -> str:
    """Formats a table as plain text, left-aligned."""
    grid = [table.headings]
    for row in table.rows:
        cells = map(escape_hidden, row.cells)
        grid.append([cell.replace("\n", "\\n").replace("\t", "\\t") for cell in cells])
    widths = [max(map(columns_of, column)) for column in zip(*grid, strict=True)]
    grid.insert(1, ["-" * size for size in widths])
    lines = [table.title] if table.title else []
    for line in grid:
        sized = zip(line, widths, strict=True)
        lines.append("  ".join(c + " " * (size - columns_of(c)) for c, size in sized).rstrip())
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide letter, as of Chinese, none for a
    mark on the letter before it."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me") for letter in text)
