"""One self-contained HTML page: the headline, tables that sort and filter, figures as SVG, a line
per prompt with a link to its page, contact sheet, code maps, provenance, failures.

Every image and one JavaScript library (DataTables, which sorts and filters) are embedded, so the
file can be mailed and opens offline. Without scripts the tables are as they are written.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench.report.document import Document
from bench.report.plots.style import inline
from bench.report.prompts import KEY, PromptPage
from bench.report.table import ABSENT

if TYPE_CHECKING:
    import jinja2

log = logging.getLogger(__name__)
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Sheet:
    """A WebP image of the page with its heading and caption."""

    title: str
    caption: str
    path: Path

    @property
    def source(self) -> str:
        """The file as a data URI."""
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return f"data:image/webp;base64,{data}"


@lru_cache(maxsize=1)
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


def render(document: Document, sheets: Sequence[Sheet] = ()) -> str:
    """The page."""
    template = environment().get_template("index.html.j2")
    return template.render(document=document, libraries=libraries(), sheets=sheets, inline=inline)


def render_prompt(study: str, page: PromptPage, before: int | None, after: int | None) -> str:
    """The page of a prompt, with links to those before and after it (None: there is none)."""
    template = environment().get_template("prompt.html.j2")
    return template.render(study=study, page=page, before=before, after=after, key=KEY)


@lru_cache(maxsize=1)  # a template is compiled once for all prompts
def environment() -> jinja2.Environment:
    """The templates of the page; texts are escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["order"] = sort_key
    return made


def sort_key(cell: str) -> Markup:
    """The attribute by which DataTables sorts a cell: its leading number, nothing for a dash, else
    its text."""
    found = re.match(r"-?\d+(\.\d+)?", cell)
    key = "" if cell == ABSENT else found.group() if found else cell
    return Markup(' data-order="{}"').format(key)
