"""The tables of a report as terminal text, Markdown, LaTeX and CSV, all from one set of cells.

Every interval is shown beside its figure, a failed decoder keeps its row with its error, AR
under another seed has a row of its own, and figures that cannot be told from noise carry a mark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from bench.judge.paired import counted, repeats
from bench.report import table
from bench.report.cells import detail_tables, main_tables
from bench.report.footnotes import columns, facts, footnotes
from bench.report.model import Run
from bench.report.regime import regime_lines
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


def terminal(run: Run, width: int = table.WIDTH) -> str:
    """Main tables, footnotes and failures as plain text, `width` columns where cells allow."""
    blocks = [f"{run.study}: {run.folder}"]
    blocks += [table.terminal(made, width) for made in main_tables(run)]
    blocks += [_filled(regime_lines(run), width)] if regime_lines(run) else []
    blocks.append("How to read it\n" + _filled(footnotes(run), width))
    blocks.append("This run\n" + _filled(facts(run), width))
    floors = roofline_tables(run)
    if floors:
        blocks.append(f"{ROOFLINE}\n" + _filled(roofline_legend(run), width))
        blocks += [table.terminal(made, width) for made in floors]
    broken = [
        textwrap.fill(f"{name}: {text}", width, initial_indent="  ", subsequent_indent="    ")
        for name, text in failures(run)
    ]
    if broken:
        blocks.append("Failures\n" + "\n".join(broken))
    return "\n\n".join(blocks) + "\n"


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def markdown(run: Run) -> str:
    """Main, roofline and detail tables, what is said of them, and failures as GitHub Markdown."""
    parts = [f"# {table.escaped(run.study)}", *(table.markdown(made) for made in main_tables(run))]
    parts += [*map(table.escaped, regime_lines(run)), table.bullets(footnotes(run))]
    floors = roofline_tables(run)
    if floors:
        parts += [f"# {ROOFLINE}", *(table.markdown(made) for made in floors)]
        parts.append(table.bullets(roofline_legend(run)))
    parts.append("# Details")
    parts += [table.markdown(made) for made in detail_tables(run)]
    parts += [table.bullets(facts(run)), table.bullets(columns(run))]
    broken = failures(run)
    if broken:
        parts.append("# Failures")
        parts.append(table.bullets(f"{name}: {text}" for name, text in broken))
    return "\n\n".join(parts) + "\n"


def latex(run: Run) -> str:
    """One booktabs `table*` a section, then those of the roofline; needs the packages booktabs and
    graphicx."""
    noise = f"Brackets: 95 % intervals; {table.NOISE}: not distinguishable from noise."
    times = repeats(run.records)
    if times > 1:
        noise += f" Every image was timed {times} times; its fastest counts."
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    notes = [*regime_lines(run), *fairness_legend(run)]
    floors = f"{ROOFLINE}. {' '.join(roofline_legend(run))}"
    for tables, caption, below in (
        (main_tables(run), noise, notes), (roofline_tables(run), floors, [])
    ):  # fmt: skip
        blocks += [
            table.latex(made, f"{run.study}. {made.title}. {caption}", below) for made in tables
        ]
    return "\n\n".join(blocks) + "\n"


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
