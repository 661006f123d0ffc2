"""One self-contained HTML page: the headline, speed against quality, a few prompts' images, tables,
figures as SVG, a line per prompt with a link to its page, provenance.

Every image is embedded, so the file can be mailed and opens offline. Its script sorts tables by the
heading that is clicked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.data.files import write_text
from bench.report.notes import environment
from bench.report.prompts import KEY, PromptPage, prompt_pages
from bench.report.style import inline
from bench.report.summarise import Report

OPENING = ("speedup_tv_output", "speedup_clip")  # figures above the tables
SHEET = 3  # prompts whose images are on the page


def write_page(report: Report, folder: Path) -> Path:
    """index.html and the pages of its prompts; those of an earlier report are removed, so that none
    goes stale."""
    for old in (folder / "prompts").glob("*.html"):
        if old.stem.isdecimal():
            old.unlink()
    numbers = [None, *(index for index, _ in report.prompts), None]
    template = environment(True).get_template("prompt.html.j2")
    sheet: list[PromptPage] = []  # of the prompts of which most decoders have a picture
    for at, page in enumerate(prompt_pages(report.run, report.prompts)):
        before, after = numbers[at], numbers[at + 2]
        text = template.render(study=report.study, page=page, before=before, after=after, key=KEY)
        write_text(folder / page.address, text)
        sheet = sorted([*sheet, page], key=lambda one: -one.pictures)[:SHEET]
    return write_text(folder / "index.html", render(report, sheet))


def render(report: Report, sheet: Sequence[PromptPage] = ()) -> str:
    """The page; sheet: the prompts whose images it shows."""
    template = environment(True).get_template("index.html.j2")
    shown = [page for page in sheet if page.pictures]
    return template.render(report=report, sheet=shown, inline=inline, opening=OPENING)
