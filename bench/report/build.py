"""Write a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page a prompt
<run>/report/table.{txt,md,tex}
<run>/report/plots/*.png, *.pdf

With `report out=DIR` they lie in DIR, and nothing is written into the run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.config.words import divided
from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.records.run_data import RunData
from bench.report import table
from bench.report.notes import fairness
from bench.report.page import write_page
from bench.report.style import save
from bench.report.summarise import Report, summarise

WIDTH = 132  # columns of text in the terminal; a table may be wider
REPORT = {"index.html", "table.txt"}  # what every report holds


@dataclass(frozen=True)
class ReportPaths:
    """What was written, next to table.txt, .md and .tex. terminal: the text of table.txt, for
    the command line to show."""

    folder: Path
    page: Path
    terminal: str
    plots: dict[str, dict[str, Path]]  # name -> format -> file


@dataclass(frozen=True)
class PlaceSettings:
    """The setting of `report` that no study has."""

    out: Path | None = None


def split_out(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The words without `out=DIR`, and DIR. Raises ConfigError where it names nothing."""
    place, rest = divided(PlaceSettings, words)
    return rest, place.out


def check_place(out: Path | None) -> None:
    """Raises FolderError where files of something else lie there."""
    names = {path.name for path in out.iterdir()} if out is not None and out.is_dir() else set()
    if names and not names >= REPORT:
        raise FolderError(
            f"out={out} is not empty and holds no report, so nothing is written there; choose "
            "another folder"
        )


def write_report(run: RunData, folder: Path | None = None) -> ReportPaths:
    """The report of a run that was read, in `folder` (None: in report/ of the run). A run whose
    every decoder failed gets a page that says so."""
    folder = folder or run.folder / "report"
    folder.mkdir(parents=True, exist_ok=True)
    report = summarise(run)
    shown = terminal(report)
    texts = {"txt": shown, "md": markdown(report), "tex": latex(report)}
    for ending, text in texts.items():
        write_text(folder / f"table.{ending}", text)
    for old in (folder / "plots").glob("*.*"):
        old.unlink()
    plots = {plot.name: save(plot, folder / "plots") for plot in report.plots}
    return ReportPaths(folder, write_page(report, folder), shown, plots)


def terminal(report: Report) -> str:
    """All but the details as plain text."""
    parts = [f"{report.study}: {report.run.folder}", _filled(report.headline)]
    for block in report.blocks:
        if block.name == "details":
            continue
        notes = _filled(block.notes)
        if block.name == "table":
            parts += [*map(table.terminal, block.tables)]
            parts.append(f"How to read it\n{notes}")
        else:
            parts.append(f"{block.title}\n{notes}")
            parts += map(table.terminal, block.tables)
    return "\n\n".join(filter(None, parts)) + "\n"


def _filled(lines: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def markdown(report: Report) -> str:
    """All of it but provenance as GitHub Markdown."""
    parts = [f"# {table.escaped(report.study)}", table.bullets(report.headline)]
    for block in report.blocks:
        parts += [f"# {block.title}"] if block.name != "table" else []
        parts += [*map(table.markdown, block.tables), table.bullets(block.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(report: Report) -> str:
    """A booktabs `table*` for each main table; needs the packages booktabs and graphicx."""
    noise = f"Brackets: 95 % intervals; {table.NOISE}: not distinguishable from noise."
    blocks = ["% needs \\usepackage{booktabs,graphicx}"]
    for at, each in enumerate(report.block("table").tables):
        below = [*([] if at else report.headline), *fairness(report.run)]
        blocks.append(table.latex(each, f"{report.study}. {each.title}. {noise}", below))
    return "\n\n".join(blocks) + "\n"
