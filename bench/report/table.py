"""Tables: columns and rows as terminal text and CSV, and how figures are written.

Why one writer: every command shows figures with intervals, a dash where nothing is known and a mark
where something failed, in the terminal and in files. Nothing heavy is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.data.clean import on_one_line

if TYPE_CHECKING:
    from metrics.stats import Interval

ABSENT = "—"
NOISE = "≈"


@dataclass(frozen=True)
class Column:
    """key: of the value in a row, which is a mapping or an object with attributes ("": the row
    itself); heading: above it; format: the value as text; words: aligned as words are."""

    key: str
    heading: str
    format: Callable[[Any], str] = str
    words: bool = False

    def cell(self, row: Any) -> str:
        """The text of a row's value."""
        if not self.key:
            return self.format(row)
        return self.format(row[self.key] if isinstance(row, Mapping) else getattr(row, self.key))


@dataclass(frozen=True)
class Row:
    """One line. kind: what it is of, for its look."""

    cells: Sequence[str]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Columns with the cells below them."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]


def table_of(columns: Sequence[Column], rows: Iterable[Any], title: str = "") -> Table:
    """A table of values: each row's, formatted by its column."""
    return Table(title, columns, [Row([c.cell(row) for c in columns]) for row in rows])


def table_of_texts(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of texts."""
    return Table("", [Column("", name) for name in headings], [Row(cells) for cells in rows])


def number(value: float, digits: int | None = None) -> str:
    """A figure; None: with sensible decimals. An unknown one is a dash, never a zero."""
    if not math.isfinite(value):
        return ABSENT
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        digits = 4 if 0 < size < 0.1 else digits
    return f"{value:z.{digits}f}"


def interval(value: Interval, digits: int) -> str:
    """`1.23 [1.20, 1.26]`, without bounds where they are unknown; a dash for NaN."""
    text = number(value.value, digits)
    if math.isfinite(value.value) and math.isfinite(value.lo) and math.isfinite(value.hi):
        text += f" [{number(value.lo, digits)}, {number(value.hi, digits)}]"
    return text


def percent(value: float, digits: int = 1, sign: str = "") -> str:
    """A share of one: `12.3 %`. sign="+": always with its sign."""
    return f"{100 * value:{sign}z.{digits}f} %" if math.isfinite(value) else ABSENT


def figures(digits: int | None = None, scale: float = 1) -> Callable[[float], str]:
    """A column's format: `scale` times its value, with these decimals."""
    return lambda value: number(scale * value, digits)


def intervals(digits: int) -> Callable[[Interval], str]:
    """A column's format for intervals."""
    return lambda value: interval(value, digits)


def terminal(table: Table) -> str:
    """Plain text, left-aligned."""
    grid = [table.headings, *([on_one_line(cell) for cell in row.cells] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    grid.insert(1, ["-" * size for size in widths])
    lines = [table.title] if table.title else []
    for cells in grid:
        padded = (cell.ljust(size) for cell, size in zip(cells, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def csv_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines of one set of keys in full precision, with a header. An interval called x is three
    columns: x, x_lo and x_hi; what is not known is empty."""
    import pandas as pd

    return pd.DataFrame(map(_flat, lines)).to_csv(index=False)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    from metrics.stats import Interval

    out: dict[str, Any] = {}
    for key, value in line.items():
        if isinstance(value, Interval):
            out |= {key: value.value, f"{key}_lo": value.lo, f"{key}_hi": value.hi}
        else:
            out[key] = value
    return out
