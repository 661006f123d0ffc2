"""What a report says, as tables and sentences, and as text for the terminal, as Markdown and as
LaTeX. `bench.report.page` sets the same as HTML."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bench.analyse.run import Run, in_display_order
from bench.config.methods import load_methods, title_of
from bench.errors import ConfigError, escape_hidden
from bench.report import notes, tables
from bench.report.headline import headline
from bench.report.names import names_of, renamed
from bench.report.table import ABSENT, DAGGER, NOISE, Table, terminal
from bench.store.facts import flat
from decoders.errors import unknown
from metrics.speedup import FEWEST_BLOCKS

PAGE_ONLY = ("categories", "ambiguity", "details")  # and in table.md
SET_IN_LATEX = ("table", "quality", "claims")
WIDTH = 132  # columns of text in the terminal; a table may be wider
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
    quality = tables.quality_tables(run)
    measured = {heading for table in quality for heading in table.headings}
    floors, batches = tables.roofline_tables(run), tables.batch_tables(run)
    depths, categories = tables.depth_tables(run), tables.category_tables(run)
    sure, within = tables.reliability_tables(run), tables.within_tables(run)
    projected = tables.projected_tables(run)
    spread, equal = tables.ambiguity_tables(run), tables.equal_tables(run)
    failures = []  # in full, of every entry with a failed image
    for entry in (e for e in run.entries if e.failed or e.errors):
        errors = entry.errors or [""]
        count = f"{len(errors)} of {len(entry.rows)} images failed: " * bool(entry.errors)
        failures.append(f"{entry.name}: {count}{errors[0]}")
    every = [
        Block("table", "Decoders side by side", tables.main_tables(run), notes.footnotes(run)),
        Block("projected", "Projected, not measured", projected, _notes("projected", projected)),
        Block("within", "Fastest within an output TV", within, _notes("within", within)),
        Block("equal", "Speed at equal loss", equal, _notes("equal", equal)),
        Block("quality", "Quality", quality, notes.paragraphs("quality", measured)),
        *more,
        Block("run", "These runs" if run.folders else "This run", [], notes.facts(run)),
        Block("roofline", "Time over floor", floors, notes.floors(run) if floors else []),
        Block("depth", "Acceptance by draft depth", depths, _notes("depth", depths)),
        Block("reliability", "Confidence of drafters", sure, _notes("reliability", sure)),
        Block("batches", "By batch size", batches, _notes("batches", batches, FEWEST_BLOCKS)),
        Block("categories", "By category of prompt", categories, []),
        Block("ambiguity", "Token selection ambiguity", spread, _notes("ambiguity", spread)),
        Block("details", "Details", tables.detail_tables(run), notes.paragraphs("columns", NOISE)),
        Block("failures", "Failures", [], failures),
    ]
    blocks = [block for block in every if block.tables or block.notes]
    return Report(run, headline(run), blocks, notes.provenance(run))


def _notes(name: str, shown: Sequence[Table], *values: object) -> list[str]:
    return notes.paragraphs(name, *values) if shown else []


def plain(report: Report) -> str:
    """Formats the report without what is `PAGE_ONLY`, as plain text."""

    def fill(lines: Sequence[str]) -> str:
        wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join(map(wrapper.fill, lines))  # a path stays whole

    places = ", ".join(map(str, report.run.folders or [report.run.folder]))
    parts = [f"{report.run.study}: {places}", fill(report.headline)]
    for block in report.blocks:
        if block.name not in PAGE_ONLY:
            parts += [block.title, *map(terminal, block.tables), fill(block.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


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
    """Formats a booktabs `table*` for each table of decoders and of their quality; needs the
    packages booktabs and graphicx. Decoders have their methods' names. columns: headings of the
    tables of decoders to keep. Raises ConfigError on one that is none."""
    lines = ["% needs \\usepackage{booktabs,graphicx}"]
    main, titles = report.blocks[0].tables, paper_names(report.run)
    said = headline(renamed(report.run, titles))
    headings = list(dict.fromkeys(h for table in main for h in table.headings[1:]))
    for name in columns or ():
        if name not in headings:
            raise ConfigError(unknown("column", name, headings))
    shown = [t for b in report.blocks if b.name in SET_IN_LATEX for t in b.tables]
    for at, table in enumerate(shown):
        keep = [
            index
            for index, name in enumerate(table.headings)
            if not index or columns is None or at >= len(main) or name in columns
        ]
        rows = [[titles.get(row.cells[0], row.cells[0]), *row.cells[1:]] for row in table.rows]
        cells = [[escape_latex(row[index]) for index in keep] for row in rows]
        names = [escape_latex(table.headings[index]) for index in keep]
        text = " ".join(cell for row in cells for cell in row)
        caption = [f"{report.run.study}. {table.title}."]
        caption += [says for sign, says in SIGNS.items() if escape_latex(sign) in text]
        below = [] if at >= len(main) else notes.marks(report.run)
        lines += [
            "",
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{escape_latex(' '.join(caption))}}}",
            r"\resizebox{\linewidth}{!}{%",
            pd.DataFrame(cells, columns=names)
            .to_latex(index=False, column_format="l" + "r" * (len(names) - 1))
            .rstrip()
            + "}",
            *(
                rf"\par\smallskip\raggedright\footnotesize {escape_latex(note)}"
                for note in [*([] if at else said), *below]
            ),
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def paper_names(run: Run) -> dict[str, str]:
    """Maps decoders to what papers call them; those of one name keep theirs behind it."""
    methods = load_methods()
    decoders = run.identity.get("config", {}).get("decoders", ())
    short = names_of(run)  # of those of a method's rule on another tree
    titles = {
        one["name"]: title_of(flat(one.get("spec", {})), methods) or short.get(one["name"], "")
        for one in decoders
    }
    twice = [title for title, count in Counter(titles.values()).items() if count > 1]
    return {
        name: f"{title}: {name}" if title in twice else title
        for name, title in titles.items()
        if title
    }


def escape_markdown(text: str) -> str:
    """Escapes what would end a cell or start markup in Markdown, and puts it on one line."""
    return " ".join(MARKUP.sub(lambda match: "\\" + match[0], escape_hidden(text)).split())


def escape_latex(text: str) -> str:
    """Escapes special characters of LaTeX, and puts them on one line."""
    escapes = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        NOISE: r"$\approx$", "±": r"$\pm$", ABSENT: "--", "τ": r"$\tau$", "<": r"$<$", ">": r"$>$",
        "≤": r"$\le$", "†": r"\dag{}",
    }  # fmt: skip
    return "".join(escapes.get(char, char) for char in " ".join(escape_hidden(text).split()))
