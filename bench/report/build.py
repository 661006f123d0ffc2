"""Write a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page a prompt
<run>/report/table.{txt,md,tex,csv}
<run>/report/scaling.csv          of a run that timed several sizes of batches
<run>/report/plots/*.png, *.svg, *.pdf
<run>/report/contact_sheet.webp, code_maps.webp   where images were kept

With `report out=DIR` they lie in DIR, and nothing is written into the run: that of a colleague may
be read-only, and a report of it must not change it.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from bench.config.words import apart, split
from bench.data.errors import ConfigError, FolderError
from bench.data.files import refuse_links, write_bytes, write_text
from bench.records.load import load
from bench.records.run_data import RunData
from bench.report import table
from bench.report.document import Document, document
from bench.report.page import Sheet, render, render_prompt
from bench.report.plots.style import save
from bench.report.prompts import prompt_pages
from bench.report.sheets import code_maps, contact_sheet

REPORT = {"index.html", "table.txt"}  # what every report holds
LARGEST = 200_000  # bytes of a sheet
SHEETS = {  # file -> what draws it, title, caption
    "contact_sheet": (contact_sheet, "Contact sheet", "Same prompt and same noise in every row."),
    "code_maps": (
        code_maps,
        "How each code came to be",
        "Lower rows: one cell per code, in its place in the image above.",
    ),
}


@dataclass(frozen=True)
class ReportPaths:
    """What was written, next to table.txt, .md, .tex and .csv. terminal: the text of table.txt, for
    the command line to show; sheets: of `SHEETS`, [] where no image was kept."""

    folder: Path
    page: Path
    terminal: str
    plots: dict[str, dict[str, Path]]  # name -> format -> file
    sheets: list[Sheet]


def split_out(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The words without `out=DIR`, and DIR. Raises ConfigError where it names nothing."""
    named, rest = apart(words, ("out",))
    if not named:
        return rest, None
    value = split(named[-1]).value
    if not value:
        raise ConfigError("out= names no folder; write out=DIR, the folder for the report")
    return rest, Path(value).expanduser()


def check_place(run_dir: Path, out: Path | None) -> None:
    """Raises FolderError where a report cannot or must not be written."""
    refuse_links(run_dir)  # a link would show a file of another folder
    if out is None:
        if run_dir.is_dir() and not os.access(run_dir, os.W_OK):
            raise FolderError(f"{run_dir} is read-only; report it elsewhere with out=DIR")
        return
    if out.resolve().is_relative_to(run_dir.resolve()):
        raise FolderError(
            f"out={out} lies in the run's folder, and with out= nothing is written there; choose "
            "another folder, or leave out= away for the report in the run's folder"
        )
    if out.exists() and not out.is_dir():
        raise FolderError(f"out={out} is a file; choose a folder")
    inside = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if inside and not inside >= REPORT:
        raise FolderError(
            f"out={out} is not empty and holds no report, so nothing is written there; choose "
            "another folder"
        )
    refuse_links(out)


def build_report(run_dir: Path) -> ReportPaths:
    """Reads `records.parquet` and `summary.csv` of `run_dir`, writes `run_dir/report/`.

    A run whose every decoder failed gets a page that says so. Raises FolderError (a BenchError) on
    missing, unreadable, empty or incomplete files, before anything is written.
    """
    return write_report(load(run_dir))


def write_report(run: RunData, folder: Path | None = None) -> ReportPaths:
    """The report of a run that was read, in `folder` (None: in report/ of the run)."""
    folder = folder or run.folder / "report"
    folder.mkdir(parents=True, exist_ok=True)
    made = document(run)
    said = terminal(made)
    texts = {"txt": said, "md": markdown(made), "tex": latex(made), "csv": csv(made)}
    for ending, text in texts.items():
        write_text(folder / f"table.{ending}", text)
    if made.batches:
        write_text(folder / "scaling.csv", scaling_csv(made))
    sheets = [
        Sheet(title, caption, path)
        for name, (draw, title, caption) in SHEETS.items()
        if (path := _sheet(draw(made.run), folder / f"{name}.webp"))
    ]
    if not sheets:
        made.notices.append(
            "No image was kept, so there is neither a contact sheet nor a code map."
        )
    for old in (folder / "plots").glob("*.*"):
        old.unlink()
    plots = {plot.name: save(plot, folder / "plots") for plot in made.plots}
    return ReportPaths(folder, write_page(made, folder, sheets), said, plots, sheets)


def write_page(made: Document, folder: Path, sheets: Sequence[Sheet]) -> Path:
    """index.html and the pages of its prompts; those of an earlier report are removed, so that none
    goes stale."""
    for old in (folder / "prompts").glob("*.html"):
        if old.stem.isdecimal():
            old.unlink()
    numbers = [None, *(index for index, _ in made.prompts), None]
    for at, page in enumerate(prompt_pages(made.run, made.prompts)):
        text = render_prompt(made.study, page, numbers[at], numbers[at + 2])
        write_text(folder / page.address, text)
    return write_text(folder / "index.html", render(made, sheets))


def _sheet(image: Image.Image | None, path: Path) -> Path | None:
    """Saves a sheet as WebP, of at most `LARGEST` bytes where quality 30 allows it; removes an
    older one when there is none, so that none goes stale."""
    if image is None:
        path.unlink(missing_ok=True)
        return None
    for quality in range(90, 20, -10):
        file = io.BytesIO()
        image.save(file, format="WEBP", quality=quality, method=6)
        if file.tell() <= LARGEST:
            break
    write_bytes(path, file.getvalue())
    return path


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
    """A booktabs `table*` for each main table; needs the packages booktabs and graphicx."""
    noise = f"Brackets: 95 % intervals; {table.NOISE}: not distinguishable from noise."
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    for at, made in enumerate(document.block("table").tables):
        below = [*([] if at else document.headline), *document.marks]
        blocks.append(table.latex(made, f"{document.study}. {made.title}. {noise}", below))
    return "\n\n".join(blocks) + "\n"


def csv(document: Document) -> str:
    """A line per decoder, in full precision."""
    return pd.DataFrame(document.lines).to_csv(index=False)


def scaling_csv(document: Document) -> str:
    """A line per decoder and batch size, in full precision."""
    return table.csv_text([vars(line) for line in document.batches])
