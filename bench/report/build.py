"""Build a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page a prompt
<run>/report/table.{txt,md,tex,csv}
<run>/report/plots/*.svg, *.png
<run>/report/contact_sheet.png, code_maps.png     where images were kept

With `report out=DIR` they lie in DIR, and nothing is written into the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image

from bench.records.schema import write_atomically, write_text
from bench.report import code_map, contact, tables
from bench.report.load import load_run
from bench.report.model import Run
from bench.report.page.index import Figure, render, render_prompt
from bench.report.page.libraries import libraries
from bench.report.page.prompts import PromptPage, chosen, prompt_pages
from bench.report.plots import bars, cost, depth, latency, moved, pareto, roofline, verification
from bench.report.plots.style import Plot, save

log = logging.getLogger(__name__)
CHARTED = (pareto.draw_fid, pareto.draw_clip)  # the page has linked charts of the same
DRAWERS: tuple[Callable[[Run], Plot], ...] = (*CHARTED, bars.draw, latency.draw)
WHERE_KNOWN = (depth, moved, cost)  # left out where a run recorded nothing of it
FLOORS = (verification.draw, roofline.draw)  # where a roofline was measured


@dataclass(frozen=True)
class ReportPaths:
    """What was written. `terminal` is the text of table.txt, for the command line to show."""

    folder: Path
    page: Path | None  # None: its libraries are missing
    text: Path
    markdown: Path
    latex: Path
    csv: Path
    terminal: str
    plots: dict[str, tuple[Path, Path]] = field(default_factory=dict)  # name -> (svg, png)
    contact_sheet: Path | None = None  # None: no image was kept
    code_maps: Path | None = None


def build_report(run_dir: Path) -> ReportPaths:
    """Reads `records.parquet` and `summary.csv` of `run_dir`, writes `run_dir/report/`.

    A run whose every decoder failed gets a page that says so. Raises ReportError (a BenchError) on
    missing, unreadable, empty or incomplete files, before anything is written.
    """
    return write_report(load_run(run_dir))


def write_report(run: Run, folder: Path | None = None) -> ReportPaths:
    """The report of a run that was read, in `folder` (None: in report/ of the run)."""
    folder = folder or run.folder / "report"
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    terminal = tables.terminal(run)
    texts = {"txt": terminal, "md": tables.markdown(run), "tex": tables.latex(run)}
    texts["csv"] = tables.csv(run)
    for ending, text in texts.items():
        write_text(folder / f"table.{ending}", text)

    plots, figures, notes = {}, [], []
    if run.all_failed:
        notes.append("Every decoder of this run failed; there is nothing to plot.")
    else:
        known = [module.draw for module in WHERE_KNOWN if module.shown(run)]
        for draw in (*DRAWERS, *known, *(FLOORS if run.roofline else ())):
            plot = draw(run)
            plots[plot.name] = save(plot, folder / "plots")
            path = plots[plot.name][0]
            figures.append(Figure(plot.title, plot.caption, path, draw in CHARTED))
    sheet = _sheet(contact.contact_sheet(run), folder / "contact_sheet.png")
    maps = _sheet(code_map.code_maps(run), folder / "code_maps.png")
    if sheet is not None:
        figures.append(Figure("Contact sheet", "Same prompt and same noise in every row.", sheet))
    if maps is not None:
        figures.append(Figure("How each code came to be", MAP_CAPTION, maps))
    if sheet is None:
        notes.append("No image was kept, so there is neither a contact sheet nor a code map.")
    if not run.roofline:
        notes.append(NO_ROOFLINE)
    page = write_page(run, folder, figures, notes)
    return ReportPaths(
        folder, page, folder / "table.txt", folder / "table.md", folder / "table.tex",
        folder / "table.csv", terminal, plots, sheet, maps,
    )  # fmt: skip


NO_ROOFLINE = (
    "No roofline was measured (no image was timed, or an older version made this run), so nothing "
    "is said of the baseline's own speed."
)
MAP_CAPTION = "Left: the image. Right: one cell a code, in the same place as in the image."


def write_page(run: Run, folder: Path, figures: list[Figure], notes: list[str]) -> Path | None:
    """index.html and the pages of its prompts. Without its libraries there is none, nor an older
    one, and a warning says so: the page may be missing, never the numbers."""
    try:
        libraries()
    except ImportError as error:
        log.warning(
            "left out: the report's page (%s). Tables and figures are in %s; `pip install itables "
            "vl-convert-python`, then `python -m bench report` writes the page",
            *(error, folder),
        )
        (folder / "index.html").unlink(missing_ok=True)
        return None
    prompts = _prompts(run, folder / "prompts")
    return write_text(folder / "index.html", render(run, figures, notes, prompts))


def _prompts(run: Run, folder: Path) -> list[PromptPage]:
    """Writes a page a prompt; those of an earlier report are removed, so that none goes stale."""
    for old in folder.glob("*.html"):
        if old.stem.isdecimal():
            old.unlink()
    numbers = [None, *(index for index, _ in chosen(run)), None]
    listed = []
    for page, before, after in zip(prompt_pages(run), numbers, numbers[2:], strict=False):
        write_text(folder / f"{page.index}.html", render_prompt(run.study, page, before, after))
        listed.append(replace(page, groups=[]))  # one page's pictures in memory at a time
    return listed


def _sheet(image: Image.Image | None, path: Path) -> Path | None:
    """Saves the sheet; removes an older one when there is none, so that none goes stale."""
    if image is None:
        path.unlink(missing_ok=True)
        return None
    write_atomically(path, lambda file: image.save(file, format="PNG"))
    return path
