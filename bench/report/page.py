"""One self-contained HTML page: the headline, tables that sort and filter, linked charts, a line a
prompt with a link to its page, plots, contact sheet, code maps, provenance, failures.

Every image and two JavaScript libraries are embedded, so the file can be mailed and opens offline:
Vega-Lite, which draws the charts from their descriptions as wide as the page, and DataTables, which
sorts and filters; about 1.8 MB together. The page's own script (templates/page.js) hands them the
charts and tables. Without scripts the page shows pictures in their place.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench.data.clean import for_page
from bench.report.document import Document
from bench.report.plots.chart import Chart
from bench.report.prompts import KEY, PHASE_KEY, PromptPage
from bench.report.table import ABSENT

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Figure:
    """An image of the page with its heading and caption. chart: drawn by the page's script in its
    place; the image is for readers without scripts."""

    title: str
    caption: str
    path: Path
    chart: Chart | None = None

    @property
    def source(self) -> str:
        """The file as a data URI."""
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return f"data:{MEDIA[self.path.suffix]};base64,{data}"


@lru_cache(maxsize=1)  # bundling takes two seconds
def libraries() -> dict[str, str]:
    """Ready to be put into a page: `charts`, a script that sets window.vegaEmbed; `tables`, a
    module whose default export is DataTable, as a data URI; `table_style`. Raises ImportError."""
    import itables
    import vl_convert

    tables = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    code = base64.b64encode(tables.read_bytes()).decode("ascii")
    return {
        "charts": _inside("script", vl_convert.javascript_bundle()),  # type: ignore[call-arg]
        "tables": f"data:text/javascript;base64,{code}",
        "table_style": _inside("style", tables.with_suffix(".css").read_text(encoding="utf-8")),
    }


def _inside(element: str, text: str) -> Markup:
    """Trusted text that cannot end the element that it is in."""
    return Markup(text.replace(f"</{element}", f"<\\/{element}"))


def render(
    document: Document, figures: Sequence[Figure] = (), prompts: Sequence[PromptPage] = ()
) -> str:
    """The page. prompts: those with a page."""
    template = environment().get_template("index.html.j2")
    return template.render(
        document=document, libraries=libraries(), prompts=prompts, figures=figures
    )


def render_prompt(study: str, page: PromptPage, before: int | None, after: int | None) -> str:
    """The page of a prompt, with links to those before and after it (None: there is none)."""
    template = environment().get_template("prompt.html.j2")
    return template.render(
        study=study, page=page, before=before, after=after, key=KEY, phases=PHASE_KEY
    )


@lru_cache(maxsize=2)  # a template is compiled once for all prompts
def environment(templates: Path = TEMPLATES) -> jinja2.Environment:
    """Templates of a folder for a page whose texts others wrote: escaped, and shown as they are."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        finalize=for_page,
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
