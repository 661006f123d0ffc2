"""One self-contained HTML page: the headline, speed against quality, a few prompts' images, tables
that sort and filter, figures as SVG, a line per prompt with a link to its page, provenance.

Every image and one JavaScript library (DataTables, which sorts and filters) are embedded, so the
file can be mailed and opens offline. Without scripts the tables are as they are written.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from markupsafe import Markup

from bench.data.files import write_text
from bench.report.notes import environment
from bench.report.prompts import KEY, PromptPage, prompt_pages
from bench.report.style import inline
from bench.report.summarise import Report
from bench.report.table import ABSENT

log = logging.getLogger(__name__)
OPENING = ("speedup_tv_output", "speedup_clip")  # figures above the tables
SHEET = 3  # prompts whose images are on the page


@cache
def libraries() -> dict[str, str]:
    """`tables`, a module whose default export is DataTable, as a data URI; `table_style`. Both are
    "" without itables, and a warning says so: the page may lack its sorting, never the numbers."""
    try:
        import itables
    except ImportError as error:
        log.warning("the page's tables do not sort (%s); `pip install itables`", error)
        return {"tables": "", "table_style": ""}
    tables = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    code = base64.b64encode(tables.read_bytes()).decode("ascii")
    style = tables.with_suffix(".css").read_text(encoding="utf-8").replace("</style", "<\\/style")
    return {"tables": f"data:text/javascript;base64,{code}", "table_style": Markup(style)}


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
    return template.render(
        report=report,
        libraries=libraries(),
        sheet=[page for page in sheet if page.pictures],
        inline=inline,
        opening=OPENING,
        order=sort_key,
    )


def sort_key(cell: str) -> Markup:
    """The attribute by which DataTables sorts a cell: its leading number, nothing for a dash, else
    its text."""
    number = re.match(r"-?\d+(\.\d+)?", cell)
    key = "" if cell == ABSENT else number.group() if number else cell
    return Markup(' data-order="{}"').format(key)
