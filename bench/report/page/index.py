"""One self-contained HTML page: linked charts, tables that sort and filter, a line a prompt with a
link to its page, plots, contact sheet, code maps, provenance, failures.

Every image and two JavaScript libraries are embedded, so the file can be mailed or attached to an
issue as it is, and opens offline. Vega-Lite draws the linked charts from a description in JSON;
vl-convert-python carries it, and nothing else of it is used here. DataTables sorts and filters the
tables; itables carries it. Together they are about 1.8 MB of a page, a third of plotly.js alone.
The page's own script (templates/page.js) only hands the tables and the charts to them. Without
scripts the page still shows all but the linked charts.
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

from bench.records.run_data import RunData
from bench.report.document import Document
from bench.report.page.charts import Charts, pareto_charts
from bench.report.page.prompts import KEY, PHASE_KEY, PromptPage
from bench.report.page.sweeps import sweep_charts
from bench.report.table import ABSENT

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parents[1] / "templates"
MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Figure:
    """An image of the page with its heading and caption. charted: a linked chart says the same, so
    only readers without scripts see it."""

    title: str
    caption: str
    path: Path
    charted: bool = False

    @property
    def source(self) -> str:
        """The file as a data URI."""
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return f"data:{MEDIA[self.path.suffix]};base64,{data}"


@dataclass(frozen=True)
class Libraries:
    """charts: a script that sets window.vegaEmbed; tables, table_style: a module whose default
    export is DataTable, as a data URI, and its style sheet."""

    charts: Markup
    tables: str
    table_style: Markup


@lru_cache(maxsize=1)  # bundling takes two seconds
def libraries() -> Libraries:
    """Both, ready to be put into a page. ImportError where one is not installed."""
    import itables
    import vl_convert

    tables = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    code = base64.b64encode(tables.read_bytes()).decode("ascii")
    return Libraries(
        charts=_inside("script", vl_convert.javascript_bundle()),  # type: ignore[call-arg]
        tables=f"data:text/javascript;base64,{code}",
        table_style=_inside("style", tables.with_suffix(".css").read_text(encoding="utf-8")),
    )


def _inside(element: str, text: str) -> Markup:
    """Trusted text that cannot end the element that it is in."""
    return Markup(text.replace(f"</{element}", f"<\\/{element}"))


def render(
    run: RunData,
    document: Document,
    figures: Sequence[Figure] = (),
    notices: Sequence[str] = (),
    prompts: Sequence[PromptPage] = (),
) -> str:
    """The page. notices: what could not be shown (no images kept, nothing succeeded); prompts:
    those with a page."""
    ok = run.records[run.records["status"] == "ok"]
    charts, sweeps = list[Charts](), list[Charts]()
    if not run.all_failed:
        charts = pareto_charts(run, {page.index: page.address for page in prompts})
        sweeps = sweep_charts(run)
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            document=document,
            libraries=libraries(),
            charts=charts,
            sweeps=sweeps,
            prompts=prompts,
            left_out=ok["prompt_index"].nunique() - len(prompts),
            figures=figures,
            notices=notices,
            images=len(ok),
            rows=len(run.records),
        )
    )


def render_prompt(study: str, page: PromptPage, before: int | None, after: int | None) -> str:
    """The page of a prompt, with links to those before and after it (None: there is none)."""
    template = _environment().get_template("prompt.html.j2")
    return template.render(
        study=study, page=page, before=before, after=after, key=KEY, phases=PHASE_KEY
    )


@lru_cache(maxsize=1)  # a template is compiled once for all prompts
def _environment() -> jinja2.Environment:
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
