"""One self-contained HTML page: table, plots, contact sheet, code maps, provenance, failures.

Every image is embedded, so the file can be mailed or attached to an issue as it is.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.cells import detail_tables, main_tables
from bench.report.footnotes import columns, facts, footnotes
from bench.report.load import PROVENANCE
from bench.report.model import Run, as_text
from bench.report.regime import regime_lines
from bench.report.roofline import roofline_legend, roofline_tables
from bench.report.tables import failures

TEMPLATES = Path(__file__).parent / "templates"
MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Figure:
    """An image of the page with its heading and caption."""

    title: str
    caption: str
    path: Path

    @property
    def source(self) -> str:
        """The file as a data URI."""
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return f"data:{MEDIA[self.path.suffix]};base64,{data}"


def render(run: Run, figures: list[Figure], notes: list[str]) -> str:
    """The page. notes: what could not be shown (no images kept, nothing succeeded)."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("index.html.j2").render(
        study=run.study,
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
        images=int((run.records["status"] == "ok").sum()),
        rows=len(run.records),
    )


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
