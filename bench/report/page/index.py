"""One self-contained HTML page: linked charts, tables that sort and filter, a line a prompt with a
link to its page, plots, contact sheet, code maps, provenance, failures.

Every image and both libraries are embedded, so the file can be mailed or attached to an issue as
it is, and opens offline. Its own script (templates/page.js) only hands the tables and the charts to
the libraries. Without scripts the page still shows all but the linked charts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bench.report.cells import detail_tables, main_tables
from bench.report.footnotes import columns, facts, footnotes, made_by
from bench.report.load import PROVENANCE
from bench.report.model import Run, as_text
from bench.report.page.charts import Charts, pareto_charts
from bench.report.page.libraries import libraries
from bench.report.page.prompts import KEY, PHASE_KEY, PromptPage
from bench.report.page.sweeps import sweep_charts
from bench.report.regime import regime_lines
from bench.report.roofline import roofline_legend, roofline_tables
from bench.report.table import ABSENT
from bench.report.tables import failures

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parents[1] / "templates"
MANY = 12  # values of one fact from which on they are counted
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


def render(
    run: Run, figures: list[Figure], notes: list[str], prompts: Sequence[PromptPage] = ()
) -> str:
    """The page. notes: what could not be shown (no images kept, nothing succeeded); prompts: those
    with a page."""
    there = run.records[run.records["status"] == "ok"]["prompt_index"].nunique()
    charts, sweeps = list[Charts](), list[Charts]()
    if not run.all_failed:
        charts = pareto_charts(run, {page.index: page.address for page in prompts})
        sweeps = sweep_charts(run)
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            study=run.study,
            made_by=made_by(run),
            libraries=libraries(),
            charts=charts,
            sweeps=sweeps,
            prompts=prompts,
            left_out=there - len(prompts),
            tables=main_tables(run),
            details=detail_tables(run),
            regime=regime_lines(run),
            legend=footnotes(run),
            reading=[*facts(run), *columns(run)],
            floors=roofline_tables(run),
            floor_legend=roofline_legend(run),
            figures=figures,
            notes=notes,
            failures=failures(run),
            facts=provenance(run),
            images=len(run.records[run.records["status"] == "ok"]),
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


def provenance(run: Run) -> list[tuple[str, list[str]]]:
    """(name, distinct values over all rows): more than one value says the run is a mixture."""
    facts = [("rows", [_counts(run)])]
    for column in ("model", "backend", "device", "dtype", "seed", *PROVENANCE):
        values = [as_text(value) for value in run.records[column].dropna().unique()]
        values = [value for value in values if value]
        if not values:
            continue
        if column == "started_at":
            facts.append(("started", [min(values), max(values)]))
        elif column in ("versions", "weights_hash"):
            facts.append((column, sorted({line for text in values for line in _flat(text)})))
        elif len(values) > MANY:
            facts.append((column, [f"{len(values)} different values, {values[0]} the first"]))
        else:
            facts.append((column, values))
    return facts


def _counts(run: Run) -> str:
    kinds = run.records["protocol"].str.cat(run.records["status"], sep=" ")
    return ", ".join(f"{count} {kind}" for kind, count in kinds.value_counts(sort=False).items())


def _flat(text: str) -> list[str]:
    """`{"torch": "2.9"}` -> ["torch 2.9"]; text that is no JSON object stays as it is."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError:
        return [text]
    if not isinstance(found, dict):
        return [text]
    return [f"{key} {value}" for key, value in found.items()]
