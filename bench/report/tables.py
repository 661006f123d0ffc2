"""The tables of a report as terminal text, Markdown, LaTeX and CSV, all from one set of cells.

Every interval is shown beside its figure, a failed decoder keeps its row with its error, AR
under another seed has a row of its own, and figures that cannot be told from noise carry a mark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from bench.judge.paired import counted, repeats
from bench.report.cells import ABSENT, NOISE, Table, detail_tables, main_tables
from bench.report.footnotes import columns, facts, footnotes
from bench.report.model import Run
from bench.report.roofline import fairness_legend, roofline_legend, roofline_tables

ROOFLINE = "Time over floor"


def failures(run: Run) -> list[tuple[str, str]]:
    """(decoder, what went wrong in full) of every entry with a failed image."""
    lines = []
    for entry in run.failures:
        total = len(entry.records)
        unit = counted(entry.records)
        count = f"{entry.failures} of {total} {unit} failed: " if entry.failures else ""
        lines.append((entry.name, count + entry.error))
    return lines


def terminal(run: Run, width: int = 132) -> str:
    """Main tables, footnotes and failures as plain text, `width` columns where cells allow."""
    blocks = [f"{run.study}: {run.folder}"]
    blocks += [_terminal_table(table, width) for table in main_tables(run)]
    blocks.append("How to read it\n" + _filled(footnotes(run), width))
    blocks.append("This run\n" + _filled(facts(run), width))
    floors = roofline_tables(run)
    if floors:
        blocks.append(f"{ROOFLINE}\n" + _filled(roofline_legend(run), width))
        blocks += [_terminal_table(table, width) for table in floors]
    broken = [
        textwrap.fill(f"{name}: {text}", width, initial_indent="  ", subsequent_indent="    ")
        for name, text in failures(run)
    ]
    if broken:
        blocks.append("Failures\n" + "\n".join(broken))
    return "\n\n".join(blocks) + "\n"


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def _terminal_table(table: Table, width: int) -> str:
    grid = [table.columns, *(row.cells for row in table.rows)]
    widths = [max(len(cells[at]) for cells in grid) for at in range(len(table.columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.ljust(size) for cell, size in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([first, *rest]).rstrip()

    lines = [table.title, line(table.columns), line(["─" * size for size in widths])]
    for row in table.rows:
        if row.message:
            room = max(width - widths[0] - 2, 40)
            message = textwrap.shorten(row.message, room, placeholder=" …")
            lines.append(f"{row.cells[0].ljust(widths[0])}  {message}")
        else:
            lines.append(line(row.cells))
    return "\n".join(lines)


def markdown(run: Run) -> str:
    """Main, roofline and detail tables, what is said of them, and failures as GitHub Markdown."""
    parts = [f"# {_md(run.study)}", *(_markdown_table(table) for table in main_tables(run))]
    parts.append(_bullets(footnotes(run)))
    floors = roofline_tables(run)
    if floors:
        parts += [f"# {ROOFLINE}", *(_markdown_table(table) for table in floors)]
        parts.append(_bullets(roofline_legend(run)))
    parts.append("# Details")
    parts += [_markdown_table(table) for table in detail_tables(run)]
    parts += [_bullets(facts(run)), _bullets(columns(run))]
    broken = failures(run)
    if broken:
        parts.append("# Failures")
        parts.append("\n".join(f"* **{_md(name)}**: {_md(text)}" for name, text in broken))
    return "\n\n".join(parts) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"* {_md(line)}" for line in lines)


def _markdown_table(table: Table) -> str:
    lines = [f"**{_md(table.title)}**", ""]
    lines.append("| " + " | ".join(map(_md, table.columns)) + " |")
    lines.append("|" + "|".join([":--", *["--:"] * (len(table.columns) - 1)]) + "|")
    for row in table.rows:
        cells = [_md(cell) for cell in row.cells]
        if row.message:
            cells[1] = f"**failed**: {_md(row.message.removeprefix('failed: '))}"
        if row.kind == "reseed":
            cells = [f"*{cell}*" if cell else "" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _md(text: str) -> str:
    """Escapes what would end a cell or start markup."""
    for char in "\\|*_<`":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())


def latex(run: Run) -> str:
    """One booktabs `table*` a section, then those of the roofline; needs the packages booktabs and
    graphicx."""
    noise = f"Brackets: 95 % intervals; {NOISE}: not distinguishable from noise."
    times = repeats(run.records)
    if times > 1:
        noise += f" Every image was timed {times} times; its fastest counts."
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    notes = fairness_legend(run)
    blocks += [_latex_table(table, run, noise, notes) for table in main_tables(run)]
    floors = f"{ROOFLINE}. {' '.join(roofline_legend(run))}"
    blocks += [_latex_table(table, run, floors, []) for table in roofline_tables(run)]
    return "\n\n".join(blocks) + "\n"


def _latex_table(table: Table, run: Run, caption: str, notes: Sequence[str]) -> str:
    """notes: footnotes, set below the rows."""
    count = len(table.columns)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{_tex(run.study)}. {_tex(table.title)}. {_tex(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (count - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, table.columns)) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        if row.kind == "reseed":
            lines.append(r"\midrule")
        cells = [_tex(cell) for cell in row.cells]
        if row.message:
            cells = [cells[0], rf"\multicolumn{{{count - 1}}}{{l}}{{\emph{{{_tex(row.message)}}}}}"]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    lines += [rf"\par\smallskip\raggedright\footnotesize {_tex(note)}" for note in notes]
    lines.append(r"\end{table*}")
    return "\n".join(lines)


def _tex(text: str) -> str:
    escapes = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        NOISE: r"$\approx$", "±": r"$\pm$", ABSENT: "--", "τ": r"$\tau$", "<": r"$<$", ">": r"$>$",
    }  # fmt: skip
    return "".join(escapes.get(char, char) for char in " ".join(text.split()))


def csv(run: Run) -> str:
    """Every column of the summary in full precision, plus section, role, noise marks, fairness of
    the baseline and error."""
    rows = []
    for section in run.sections:
        for entry in section.entries:
            fair = run.fairness.get(entry.name)
            rows.append(
                entry.row
                | {
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
            )
    return pd.DataFrame(rows).to_csv(index=False)
