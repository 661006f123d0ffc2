"""A document as terminal text, Markdown, LaTeX and CSV. The page is in `bench.report.page`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from bench.report import table
from bench.report.document import Document


def terminal(document: Document, width: int = table.WIDTH) -> str:
    """All but the details as plain text, `width` columns where cells allow."""
    parts = [f"{document.study}: {document.run.folder}", _filled(document.headline, width)]
    for block in document.blocks:
        if block.name == "details":
            continue
        said = _filled(block.notes, width)
        if block.name == "table":
            parts += [*(table.terminal(made, width) for made in block.tables)]
            parts.append(f"How to read it\n{said}")
        else:
            parts.append(f"{block.title}\n{said}")
            parts += [table.terminal(made, width) for made in block.tables]
    return "\n\n".join(filter(None, parts)) + "\n"


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def markdown(document: Document) -> str:
    """All of it but provenance as GitHub Markdown."""
    parts = [f"# {table.escaped(document.study)}", table.bullets(document.headline)]
    for block in document.blocks:
        parts += [f"# {block.title}"] if block.name != "table" else []
        parts += [*map(table.markdown, block.tables), table.bullets(block.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(document: Document) -> str:
    """A booktabs `table*` for each table of the main part and of the roofline; needs the packages
    booktabs and graphicx."""
    main, floors = document.block("table"), document.block("roofline")
    noise = f"Brackets: 95 % intervals; {table.NOISE}: not distinguishable from noise."
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    for block, caption, below in (
        (main, noise, [*document.headline, *document.marks]),
        (floors, f"{floors.title}. {' '.join(floors.notes)}", []),
    ):
        for at, made in enumerate(block.tables):
            own = below if at == 0 else document.marks if below else []
            blocks.append(table.latex(made, f"{document.study}. {made.title}. {caption}", own))
    return "\n\n".join(blocks) + "\n"


def csv(document: Document) -> str:
    """A line per decoder, in full precision."""
    return pd.DataFrame(document.lines).to_csv(index=False)


def scaling_csv(document: Document) -> str:
    """A line per decoder and batch size, in full precision."""
    return table.csv_text([vars(line) for line in document.batches])
