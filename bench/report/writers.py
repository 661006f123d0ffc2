"""A document as terminal text, Markdown, LaTeX and CSV. The page is in `bench.report.page`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from bench.report import table
from bench.report.document import Document
from bench.report.scaling import LEGEND, scaling_table

ROOFLINE = "Time over floor"


def terminal(document: Document, width: int = table.WIDTH) -> str:
    """Main tables, footnotes and failures as plain text, `width` columns where cells allow."""
    blocks = [f"{document.study}: {document.folder}"]
    blocks += [table.terminal(made, width) for made in document.headline]
    blocks += [_filled(document.regime, width)] if document.regime else []
    blocks.append("How to read it\n" + _filled(document.footnotes, width))
    blocks.append("This run\n" + _filled(document.facts, width))
    if document.floors:
        blocks.append(f"{ROOFLINE}\n" + _filled(document.floor_notes, width))
        blocks += [table.terminal(made, width) for made in document.floors]
    if document.batches:
        by_batch = table.terminal(scaling_table(document.batches), width)
        blocks += [by_batch, _filled([LEGEND], width)]
    broken = [
        textwrap.fill(f"{name}: {text}", width, initial_indent="  ", subsequent_indent="    ")
        for name, text in document.failures
    ]
    if broken:
        blocks.append("Failures\n" + "\n".join(broken))
    return "\n\n".join(blocks) + "\n"


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def markdown(document: Document) -> str:
    """Main, roofline and detail tables, what is said of them, and failures as GitHub Markdown."""
    parts = [f"# {table.escaped(document.study)}", *map(table.markdown, document.headline)]
    parts += [*map(table.escaped, document.regime), table.bullets(document.footnotes)]
    if document.floors:
        parts += [f"# {ROOFLINE}", *map(table.markdown, document.floors)]
        parts.append(table.bullets(document.floor_notes))
    if document.batches:
        parts += [table.markdown(scaling_table(document.batches)), LEGEND]
    parts += ["# Details", *map(table.markdown, document.details)]
    parts += [table.bullets(document.facts), table.bullets(document.columns)]
    if document.failures:
        broken = (f"{name}: {text}" for name, text in document.failures)
        parts += ["# Failures", table.bullets(broken)]
    return "\n\n".join(parts) + "\n"


def latex(document: Document) -> str:
    """One booktabs `table*` a section, then those of the roofline; needs the packages booktabs and
    graphicx."""
    noise = f"Brackets: 95 % intervals; {table.NOISE}: not distinguishable from noise."
    if document.times > 1:
        noise += f" Every image was timed {document.times} times; its fastest counts."
    floors = f"{ROOFLINE}. {' '.join(document.floor_notes)}"
    notes = [*document.regime, *document.fairness]
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    for tables, caption, below in (
        (document.headline, noise, notes),
        (document.floors, floors, []),
    ):
        blocks += [
            table.latex(made, f"{document.study}. {made.title}. {caption}", below)
            for made in tables
        ]
    return "\n\n".join(blocks) + "\n"


def csv(document: Document) -> str:
    """A line per decoder, in full precision."""
    return pd.DataFrame(document.lines).to_csv(index=False)


def scaling_csv(document: Document) -> str:
    """A line per decoder and batch size, in full precision."""
    return table.csv_text([vars(line) for line in document.batches])
