"""What a report says, as tables and sentences, and as text for the terminal, as Markdown and as
LaTeX. `bench.report.page` sets the same as HTML."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bench.analyse.run import Run, in_display_order
from bench.config.methods import detailed, load_methods, method_of, settings_of
from bench.errors import ConfigError, escape_hidden
from bench.report import notes, tables
from bench.report.headline import headline
from bench.report.names import called, names_of, renamed
from bench.report.table import ABSENT, DAGGER, NOISE, Column, Table, terminal
from decoders.errors import unknown
from metrics.speedup import FEWEST_BLOCKS

PAGE_ONLY = ("categories", "ambiguity", "details")  # and in table.md
SET_IN_LATEX = ("table", "quality", "claims")
LONG, LONG_TEXT = 40, "p{6cm}"  # letters of a cell of LaTeX, and the column of longer ones
WIDTH = 132  # columns of text in the terminal; a table may be wider
MINUS = re.compile(r"(?<![^\s(\[])-(?=[\d\s])")  # of a number, or between two terms
MARKUP = re.compile(r"[\\|*_<`]|\](?=[(\[:])|\[(?=\^)")  # ends a cell, or starts markup or a link


SIGNS = {  # what a caption says of the signs that its table has
    "[": "[a, b]: a 95 % interval.",
    NOISE: f"{NOISE}: chance can explain the difference from AR.",
    "≤": "≤: the most that the acceptance allows.",
    DAGGER: f"{DAGGER}: above the paper's delta or lambda, which limits another TV (p to p_A).",
    "margin": "Not worse: CLIP score less than the margin below AR's (95 %, one-sided, paired).",
    "not told": "Not told (n): n images would tell.",
    ABSENT: f"{ABSENT}: not measured.",
}


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
    (the main tables), `run`, and where there is anything of it `quality`, `roofline`, `batches`,
    `details` and `failures`; provenance: facts and their values in the rows."""

    run: Run
    headline: list[str]
    blocks: list[Block]
    provenance: list[tuple[str, str]]


def summarise(run: Run, more: Sequence[Block] = ()) -> Report:
    """Makes the report of a run. more: blocks of others, behind those of quality."""
    run = replace(in_display_order(run), study=run.title)
    quality, floors = tables.quality_tables(run), tables.roofline_tables(run)
    measured = {heading for table in quality for heading in table.headings}
    failures = []  # in full, of every entry with a failed image
    for entry in (e for e in run.entries if e.failed or e.errors):
        errors = entry.errors or [""]
        count = f"{len(errors)} of {len(entry.rows)} images failed: " * bool(entry.errors)
        failures.append(f"{entry.name}: {count}{errors[0]}")
    every = [
        Block("table", "Decoders side by side", tables.main_tables(run), notes.footnotes(run)),
        _block("projected", "Projected, not measured", tables.projected_tables(run)),
        _block("within", "Fastest within an output TV", tables.within_tables(run)),
        _block("equal", "Speed at equal loss", tables.equal_tables(run)),
        Block("quality", "Quality", quality, notes.paragraphs("quality", measured)),
        *more,
        Block("run", "These runs" if run.folders else "This run", [], notes.facts(run)),
        Block("roofline", "Time over floor", floors, notes.floors(run) if floors else []),
        _block("depth", "Acceptance by draft depth", tables.depth_tables(run)),
        _block("reliability", "Confidence of drafters", tables.reliability_tables(run)),
        _block("batches", "By batch size", tables.batch_tables(run), FEWEST_BLOCKS),
        Block("categories", "By category of prompt", tables.category_tables(run), []),
        _block("ambiguity", "Token selection ambiguity", tables.ambiguity_tables(run)),
        Block("details", "Details", tables.detail_tables(run), notes.paragraphs("columns", NOISE)),
        Block("failures", "Failures", [], failures),
    ]
    blocks = [block for block in every if block.tables or block.notes]
    return Report(run, headline(run), blocks, notes.provenance(run))


def _block(name: str, title: str, shown: list[Table], *values: object) -> Block:
    """A block with the notes of its name, which are of its tables."""
    return Block(name, title, shown, notes.paragraphs(name, *values) if shown else [])


def plain(report: Report) -> str:
    """Formats the report without what is `PAGE_ONLY`, as plain text."""

    places = ", ".join(map(str, report.run.folders or [report.run.folder]))
    parts = [f"{report.run.study}: {places}", fill(report.headline)]
    for block in report.blocks:
        if block.name not in PAGE_ONLY:
            parts += [block.title, *map(terminal, block.tables), fill(block.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def fill(lines: Iterable[str]) -> str:
    """Breaks each line at the width of a terminal; a path stays whole."""
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, lines))


def markdown(report: Report) -> str:
    """Formats the report without provenance, as GitHub Markdown."""
    parts = [f"# {escape_markdown(report.run.study)}", bullets(report.headline)]
    for block in report.blocks:
        parts += [f"# {block.title}"] if block.name != "table" else []
        parts += [*map(markdown_table, block.tables), bullets(block.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(table: Table) -> str:
    """Formats a GitHub table below its title: texts to the left (the first column always),
    figures to the right."""
    sides = [":--" if c.text or not at else "--:" for at, c in enumerate(table.columns)]
    lines = [f"**{escape_markdown(table.title)}**", ""] if table.title else []
    lines += [f"| {' | '.join(map(escape_markdown, table.headings))} |", f"|{'|'.join(sides)}|"]
    for row in table.rows:
        cells = [escape_markdown(cell) for cell in row.cells]
        if row.kind == "reseed":
            cells = [f"*{cell}*" if cell else "" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"* {escape_markdown(line)}" for line in lines)


def latex(report: Report, columns: Sequence[str] | None = None) -> str:
    """Formats a booktabs `table*` for each table of decoders, of their quality and of claims; needs
    the packages booktabs and graphicx. Decoders have papers' names. columns: headings of the
    tables of decoders to keep. Raises ConfigError on one that is none."""
    lines = ["% needs \\usepackage{booktabs,graphicx}"]
    main, names = report.blocks[0], paper_names(report.run)
    headings = list(dict.fromkeys(h for table in main.tables for h in table.headings[1:]))
    for name in columns or ():
        if name not in headings:
            raise ConfigError(unknown("column", name, headings))
    first = [*headline(renamed(report.run, names)), *_settings(report.run, names)]
    for block in (b for b in report.blocks if b.name in SET_IN_LATEX):
        for table in block.tables:
            keep = [
                index
                for index, name in enumerate(table.headings)
                if not index or columns is None or block is not main or name in columns
            ]
            shown = [table.columns[index] for index in keep]
            cells = [
                [
                    called(row.cells[at], names) if table.columns[at].names else row.cells[at]
                    for at in keep
                ]
                for row in table.rows
            ]
            text = " ".join(cell for row in cells for cell in row)
            signs = SIGNS if block.name != "claims" else {"[": SIGNS["["]}
            caption = [f"{report.run.study}. {table.title or block.title}."]
            caption += [says for sign, says in signs.items() if sign in text]
            below = block.notes if block.name == "claims" else []
            if block is main:  # numbers that the table has; what is the same for all stands once
                marks = [called(mark, names) for mark in notes.marks(report.run)]
                of_table = [mark for mark in marks if mark.partition(" ")[0] in text]
                below = [*first, *of_table, *(m for m in marks if first and not m.startswith("("))]
            lines += ["", *_latex_table(shown, cells, " ".join(caption), below)]
            first = []
    return "\n".join(lines) + "\n"


def _latex_table(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], caption: str, below: Sequence[str]
) -> list[str]:
    """The lines of a table and of the notes below it. Long texts are set in paragraphs."""
    names = [escape_latex(column.heading) for column in columns]
    frame = pd.DataFrame([[*map(escape_latex, row)] for row in cells], columns=names)
    form = ""
    for at, column in enumerate(columns):
        short = all(len(row[at]) <= LONG for row in cells)
        form += LONG_TEXT if not short else "l" if column.text or not at else "r"
    return [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        frame.to_latex(index=False, column_format=form).rstrip() + "}",
        *(rf"\par\smallskip\raggedright\footnotesize {escape_latex(note)}" for note in below),
        r"\end{table*}",
    ]


def paper_names(run: Run) -> dict[str, str]:
    """Papers' names by decoder, as on the page. One of those that have equal names there has its
    method's, and its own behind it."""
    names, methods = names_of(run), load_methods()
    for decoder, spec in run.specs.items():
        title, _ = method_of(spec, methods)
        if title and decoder not in names:
            names[decoder] = detailed(title, decoder)
    return names


def _settings(run: Run, names: Mapping[str, str]) -> list[str]:
    """A sentence with the settings that papers state of their methods and names do not have, and
    with the trees; none without one."""
    trees = {entry.name: entry.text("tree") for entry in run.entries}
    methods, found = load_methods(), dict[str, str]()
    for decoder, spec in run.specs.items():
        name, tree = names.get(decoder, decoder), trees.get(decoder, "none")
        settings = settings_of(spec, methods).values()
        every = [*settings, *[f"tree {tree}"] * (tree not in ("", "none"))]
        if more := ", ".join(setting for setting in every if setting not in name):
            found[name] = more
    said = "; ".join(f"{name}: {settings}" for name, settings in found.items())
    return [f"Settings. {said}."] if said else []


def escape_markdown(text: str) -> str:
    """Escapes what would end a cell or start markup in Markdown, and puts it on one line."""
    return " ".join(MARKUP.sub(lambda match: "\\" + match[0], escape_hidden(text)).split())


def escape_latex(text: str) -> str:
    """Escapes special characters of LaTeX, and puts them on one line."""
    escapes = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        NOISE: r"$\approx$", "±": r"$\pm$", ABSENT: "--", "τ": r"$\tau$", "<": r"$<$", ">": r"$>$",
        "≤": r"$\le$", "†": r"\dag{}", "\N{MINUS SIGN}": r"$-$",
    }  # fmt: skip
    text = MINUS.sub("\N{MINUS SIGN}", " ".join(escape_hidden(text).split()))
    return "".join(escapes.get(char, char) for char in text)
