"""Makes the report of a run as tables and sentences, once for all its writers.

`summarise(run)` derives the headline, tables with their marks, and notes. The writers of texts
(`bench.report.texts`) and of the page (`bench.report.build`) only set it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.analyse.run_data import RunData
from bench.report import notes, roofline, scaling
from bench.report.decoder_tables import detail_tables, main_tables
from bench.report.headline import headline, in_display_order
from bench.report.table import Table, table_of


@dataclass(frozen=True)
class Block:
    """Tables and what is said of them, under one heading."""

    name: str
    title: str
    tables: list[Table]
    notes: list[str]


@dataclass(frozen=True)
class Report:
    """What a report says. run: its decoders in the order in which they are shown; blocks: `table`
    (the main tables), `run`, and where there is anything of it `roofline`, `batches`, `details` and
    `failures`; provenance: facts and their values in the rows."""

    run: RunData
    headline: list[str]
    blocks: list[Block]
    provenance: list[tuple[str, str]]


def summarise(run: RunData) -> Report:
    """Makes the report of a run."""
    run = in_display_order(run)
    return Report(run, headline(run), _blocks(run), notes.provenance(run))


def _blocks(run: RunData) -> list[Block]:
    floors, batches = roofline.roofline_tables(run), scaling.lines(run)
    by_batch = [table_of(scaling.COLUMNS, batches, "By batch size")] if batches else []
    every = [
        Block("table", "Decoders side by side", main_tables(run), notes.footnotes(run)),
        Block("run", "This run", [], notes.facts(run)),
        Block("roofline", "Time over floor", floors, notes.floors(run) if floors else []),
        Block("batches", "By batch size", by_batch, [scaling.LEGEND] if batches else []),
        Block("details", "Details", detail_tables(run), notes.columns()),
        Block("failures", "Failures", [], failures(run)),
    ]
    return [block for block in every if block.tables or block.notes]


def failures(run: RunData) -> list[str]:
    """Says in full what went wrong, for every entry with a failed image."""
    lines = []
    for entry in (e for e in run.entries if e.failed or e.failures):
        count = f"{entry.failures} of {len(entry.records)} images failed: " * bool(entry.failures)
        lines.append(f"{entry.name}: {count}{entry.error}")
    return lines
