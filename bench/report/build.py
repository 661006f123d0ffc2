"""Write a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page per prompt
<run>/report/table.{txt,md,tex}
<run>/report/plots/*.png, *.pdf

With `report out=DIR` they lie in DIR, and nothing is written into the run. Every image of a page is
embedded, so that a page can be mailed and opens offline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.analyse.run_data import RunData
from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.report.notes import environment
from bench.report.plots import figures
from bench.report.prompts import KEY, PromptPage, prompt_pages, prompts_with_page
from bench.report.style import Plot, inline, save
from bench.report.summarise import Report, summarise
from bench.report.texts import latex, markdown, terminal

REPORT = {"index.html", "table.txt"}  # what every report holds
OPENING = ("speedup_tv_output", "speedup_clip")  # figures above the tables
SHEET = 3  # prompts whose images are on the page


@dataclass(frozen=True)
class PlaceSettings:
    """The setting of `report` that no study has."""

    out: Path | None = None


def check_place(out: Path | None) -> None:
    """Raises FolderError where a folder holds files but no report."""
    names = {path.name for path in out.iterdir()} if out is not None and out.is_dir() else set()
    if names and not names >= REPORT:
        raise FolderError(
            f"out={out} is not empty and holds no report, so nothing is written there; choose "
            "another folder"
        )


def write_report(run: RunData, folder: Path | None = None) -> Path:
    """Writes the report of a run into `folder` (None: report/ of the run); returns the folder.
    A run whose every decoder failed gets a page that says so."""
    folder = folder or run.folder / "report"
    report = summarise(run)
    texts = {"txt": terminal(report), "md": markdown(report), "tex": latex(report)}
    for ending, text in texts.items():
        write_text(folder / f"table.{ending}", text)
    for old in (*folder.glob("plots/*.*"), *folder.glob("prompts/*.html")):
        old.unlink()
    plots = figures(report.run)
    for plot in plots:
        save(plot, folder / "plots")
    _write_page(report, plots, folder)
    return folder


def _write_page(report: Report, plots: list[Plot], folder: Path) -> None:
    """Writes index.html and the pages of its prompts."""
    prompts, study = prompts_with_page(report.run), report.run.study
    numbers = [None, *(index for index, _ in prompts), None]
    template = environment(True).get_template("prompt.html.j2")
    sheet: list[PromptPage] = []  # of the prompts of which most decoders have a picture
    for at, page in enumerate(prompt_pages(report.run, prompts)):
        before, after = numbers[at], numbers[at + 2]
        text = template.render(study=study, page=page, before=before, after=after, key=KEY)
        write_text(folder / page.address, text)
        sheet = sorted([*sheet, page], key=lambda one: -one.pictures)[:SHEET]
    sheet = [page for page in sheet if page.pictures]
    index = environment(True).get_template("index.html.j2")
    text = index.render(
        report=report, plots=plots, prompts=prompts, sheet=sheet, inline=inline, opening=OPENING
    )
    write_text(folder / "index.html", text)
