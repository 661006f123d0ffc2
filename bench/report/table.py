"""Tables: columns and rows as terminal text, Markdown, LaTeX and CSV.

Why one writer: every command shows figures with intervals, a dash where nothing is known and a mark
where something failed, in the terminal and in files. Nothing heavy is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.data.clean import for_markdown as escaped
from bench.data.clean import on_one_line, shown

if TYPE_CHECKING:
    from metrics.stats import Interval

ABSENT = "—"
NOISE = "≈"
APART = "reseed"  # the kind of row that is set apart: slanted, or below a rule


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
    """One line. kind: what it is of, see `APART`."""

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


def markdown(table: Table) -> str:
    """A GitHub table below its title: words to the left (the first column always), figures to the
    right."""
    sides = [":--" if c.words or not at else "--:" for at, c in enumerate(table.columns)]
    lines = [f"**{escaped(table.title)}**", ""] if table.title else []
    lines += [f"| {' | '.join(map(escaped, table.headings))} |", f"|{'|'.join(sides)}|"]
    for row in table.rows:
        cells = [escaped(cell) for cell in row.cells]
        if row.kind == APART:
            cells = [f"*{cell}*" if cell else "" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"* {escaped(line)}" for line in lines)


def latex(table: Table, caption: str, notes: Sequence[str] = ()) -> str:
    """A booktabs `table*`; needs the packages booktabs and graphicx. notes: set below the rows."""
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{tex(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        " & ".join(map(tex, table.headings)) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        if row.kind == APART:
            lines.append(r"\midrule")
        lines.append(" & ".join(map(tex, row.cells)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    lines += [rf"\par\smallskip\raggedright\footnotesize {tex(note)}" for note in notes]
    lines.append(r"\end{table*}")
    return "\n".join(lines)


def tex(text: str) -> str:
    """For LaTeX: special characters escaped, on one line."""
    escapes = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        NOISE: r"$\approx$", "±": r"$\pm$", ABSENT: "--", "τ": r"$\tau$", "<": r"$<$", ">": r"$>$",
    }  # fmt: skip
    return "".join(escapes.get(char, char) for char in " ".join(shown(text).split()))


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
