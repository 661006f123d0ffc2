"""The tables of a report as terminal text, Markdown, LaTeX and CSV, all from one set of cells.

Every interval is shown beside its figure, a failed decoder keeps its row with its error, the AR
reseed floor has a row of its own, and figures that cannot be told from noise carry a mark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import pandas as pd

from bench.paired import counted, every_latency_row, repeats
from bench.report.cells import (
    ABSENT,
    FLOOR_LABEL,
    NOISE,
    Table,
    detail_tables,
    main_tables,
    number,
)
from bench.report.model import Run, Section
from bench.report.roofline import fairness_legend, roofline_legend, roofline_tables
from bench.study import REPLAYED
from metrics.stats import FEWEST_BLOCKS, Interval

ROOFLINE = "Time over floor"


def legend(run: Run) -> list[str]:
    """How to read the tables, one sentence group an item."""
    lines = [
        "[a, b]: 95 % interval. Speed-up: AR's seconds over the decoder's on the same prompts, "
        "paired, AR at the same temperature; s/image: prefill and decoding, batch 1.",
        "Quiet speed-up (details): the same from lower quartiles of a step's seconds. Neighbours "
        "on a machine only ever add time, so it moves less from run to run.",
        "MAL: codes committed per target forward, bonus code counted. NFE: target forwards. These "
        "and moved mass are of the quality images (where there are none, of the timed ones), "
        "output TV of quality images alone, times and speed-ups of the timed ones.",
        f"{NOISE} noise: a speed-up whose interval includes 1, or a quality figure that AR itself "
        f"might have under another seed ({FLOOR_LABEL}): within Student's 95 % interval of one "
        "more run, or, where one other seed was run, within twice its difference to AR.",
        "Moved mass: TV(p, p_A) of the relaxed target, beside the bound that the rule declares.",
        "Output TV: distance from p of the law of the committed code, mean over recorded nodes of "
        "the tree. It is exact for one drawn child and for fixed children. For several drawn "
        "children it is the sum of what each adds, exact given the recorded ones before it and "
        "weighted with the probability that those were rejected: on average no less than the "
        "node's own.",
        "Its bound: what the acceptance allows the output, sum (q a - p)+ over the children of "
        "the same nodes (the output bound). Declared: what the rule declares there, composed over "
        "the children; the papers' delta and lambda bound TV(p, p_A), not the output.",
        "Verdict, on small models: exact (the target's own distribution), bounded (output TV "
        "within what the rule declares) or violates. Of a relaxed rule it says which of the two "
        f"bounds holds. {ABSENT}: not measured.",
    ]
    if any(section.compares_clip for section in run.sections):
        lines.append(
            "CLIP - AR (details): the decoder's CLIP score less that of AR at the same temperature "
            "on the same prompt, the mean with its interval over prompts; what prompts differ in "
            "drops out. Where AR was run under several seeds, their mean stands for it, and each "
            "seed is held against the others. Of one seed, chance moves all rows alike. "
            f"{NOISE}, here and at the CLIP score itself: the interval includes 0."
        )
    sources = [f"{e.name}: {e.loop}" for e in run.entries if e.replayed]
    if sources:
        lines.append(
            f"{REPLAYED.capitalize()}: how many drafts a step accepts is stated or read off a "
            f"recording ({'; '.join(sources)}), every step is really computed. Only the times mean "
            "anything: the codes follow no distribution."
        )
    for section in run.sections:
        if max((entry.number("n_latency") for entry in section.decoders), default=0) == 1:
            lines.append(f"{section.title}: one prompt was timed, and a speed-up needs two.")
        lines += drift(section)
        fid, clip = section.reseeded("fid"), section.reseeded("clip")
        if section.floors and math.isnan(fid.value + clip.value):
            lines.append(f"{section.title}: no quality figures of AR, so none is marked.")
        elif math.isnan(fid.value + clip.value):
            unmarked = "FID is not" if section.compares_clip else "neither FID nor CLIP is"
            lines.append(f"{section.title}: no {FLOOR_LABEL}, so {unmarked} marked.")
        else:
            lines.append(
                f"{section.title}: under {len(section.floors) + 1} seeds AR's "
                f"{section.fid_name} is {around(fid)}, its {section.clip_name} {around(clip)}."
            )
    return lines + fairness_legend(run) + made_by(run)


def made_by(run: Run) -> list[str]:
    """Which code ran on which processor: all that the rows name."""
    rows = run.records
    code = rows.git_commit.where(rows.git_commit.fillna("") != "", "no commit")
    code = code.str.replace(r"^([0-9a-f]{10})[0-9a-f]+$", r"\1", regex=True)
    code += rows.git_dirty.map({True: " with changes"}).fillna("")
    where = rows.gpu.where(rows.gpu.fillna("") != "", rows.cpu)
    named = {"Code": code.unique(), "on": where.dropna().unique()}
    return [f"{'; '.join(f'{key} ' + ', '.join(map(str, v)) for key, v in named.items())}."]


def around(reseeded: Interval) -> str:
    """`17.98 ± 0.87`, with as many decimals as the reach calls for."""
    reach = number(reseeded.half_width)
    digits = len(reach.partition(".")[2])
    return f"{number(reseeded.value, digits)} ± {reach}"


def drift(section: Section) -> list[str]:
    """How far the baseline's own time moved between the moments it was timed in: the blocks of
    prompts, of which every round has its own."""
    if section.baseline is None:
        return []
    rows = every_latency_row(section.baseline.records)
    seconds = rows.groupby("block")["seconds_total"].mean()
    if len(seconds) < 2:
        return []
    times, blocks = repeats(rows), int(rows.groupby("repeat")["block"].nunique().max())
    part, cut = ("block", f"{blocks} blocks of prompts") if blocks > 1 else ("round", "all prompts")
    over = "blocks" if len(seconds) >= FEWEST_BLOCKS else "prompts, blocks being too few"
    counts = "Intervals of speed-ups are over " + over
    if times > 1:
        cut = f"{times} rounds of {cut}"
        counts = (
            f"Every image was timed {times} times, its fastest counts; intervals of speed-ups are "
            "over prompts and these moments"
        )
    return [
        f"{section.title}: timed in {cut}; from {part} to {part} "
        f"{section.baseline.name} took {number(seconds.min(), 3)} to {number(seconds.max(), 3)} s "
        f"an image. {counts}."
    ]


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
    """Main tables, legend and failures as plain text, at most `width` columns where cells allow."""
    blocks = [f"{run.study}: {run.folder}"]
    blocks += [_terminal_table(table, width) for table in main_tables(run)]
    blocks.append("How to read it\n" + _filled(legend(run), width))
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
    """Main, roofline and detail tables, legends and failures as GitHub Markdown."""
    parts = [f"# {_md(run.study)}", *(_markdown_table(table) for table in main_tables(run))]
    parts.append("\n".join(f"* {_md(line)}" for line in legend(run)))
    floors = roofline_tables(run)
    if floors:
        parts += [f"# {ROOFLINE}", *(_markdown_table(table) for table in floors)]
        parts.append("\n".join(f"* {_md(line)}" for line in roofline_legend(run)))
    parts.append("# Details")
    parts += [_markdown_table(table) for table in detail_tables(run)]
    broken = failures(run)
    if broken:
        parts.append("# Failures")
        parts.append("\n".join(f"* **{_md(name)}**: {_md(text)}" for name, text in broken))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [f"**{_md(table.title)}**", ""]
    lines.append("| " + " | ".join(map(_md, table.columns)) + " |")
    lines.append("|" + "|".join([":--", *["--:"] * (len(table.columns) - 1)]) + "|")
    for row in table.rows:
        cells = [_md(cell) for cell in row.cells]
        if row.message:
            cells[1] = f"**failed**: {_md(row.message.removeprefix('failed: '))}"
        if row.kind == "floor":
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
        if row.kind == "floor":
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
