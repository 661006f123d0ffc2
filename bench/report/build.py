"""Write a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page a prompt
<run>/report/table.{txt,md,tex}
<run>/report/plots/*.png, *.pdf

With `report out=DIR` they lie in DIR, and nothing is written into the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.config.words import divided
from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.records.run_data import RunData
from bench.report.page import write_page
from bench.report.style import save
from bench.report.summarise import summarise
from bench.report.texts import latex, markdown, terminal

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
