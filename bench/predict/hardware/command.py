"""`python -m bench predict hardware=NAME [model=NAME] [study=NAME | run_dir=DIR] [published=FILE]`:
reads a finished run, writes predict/projected.csv and .md into its folder.

Why the run's words are not needed: nothing is loaded or timed, so only its rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.config.schema import LoaderConfig
from bench.console import say
from bench.os_errors import ready_folder
from bench.predict.hardware.settings import Asked, asked, shipped

if TYPE_CHECKING:
    from bench.predict.hardware.table import Report


def cmd_project(words: Sequence[str]) -> int:
    """Prints and writes the projection. Raises BenchError: no such run, machine or model."""
    from bench.predict.hardware import table as tables
    from bench.records.schema import write_text
    from bench.report.table import csv_text, terminal

    told = asked(words)
    report = _report(told)
    folder = told.folder / "predict"
    ready_folder(folder)
    write_text(folder / "projected.csv", csv_text(tables.lines(report)))
    write_text(folder / "projected.md", tables.markdown(report))
    say(f"{report.title}\n\n{terminal(tables.projected(report))}\n")
    say("\n".join(tables.notes(report)))
    if report.papers:
        say(f"\n{terminal(tables.papers(report))}\n")
        say("\n".join(tables.paper_notes(report)))
    say(f"\nsaved: {folder / 'projected.csv'}, {folder / 'projected.md'}")
    return 0


def _report(told: Asked) -> Report:
    from bench.predict.hardware.papers import floors_of, ratios
    from bench.predict.hardware.sizes import sizes_of
    from bench.predict.hardware.steps import project, recorded_of
    from bench.predict.hardware.table import Report
    from bench.predict.recorded import rows_in
    from bench.published import measured, names, table
    from bench.records.study import read_identity, require_schema

    found = read_identity(told.folder)
    require_schema(told.folder, found)
    config = found["config"]
    entries = config.get("decoders", [])
    baselines = [entry["name"] for entry in entries if entry.get("baseline")]
    rows = recorded_of(rows_in(told.folder), baselines)
    came_out = {row.decoder for row in rows}
    own = _own_model(config)
    sizes = sizes_of(told.model or own)
    known, published = names.load(), table.load(told.published or table.DEFAULT)
    there = measured.load(told.folder / "summary.csv").rows
    return Report(
        study=str(config.get("name", told.folder.name)),
        own=own.name,
        machine=told.hardware,
        sizes=sizes,
        rows=[project(row, sizes, told.hardware) for row in rows],
        beside=ratios(published, there, known, sizes.name),
        papers=floors_of(published, known, shipped(), told.hardware),
        left_out=[entry["name"] for entry in entries if entry["name"] not in came_out],
    )


def _own_model(config: dict[str, Any]) -> LoaderConfig:
    """The run's model, as study.json has it."""
    model = config.get("model", {})
    kwargs = dict(model.get("kwargs", {}))
    return LoaderConfig(str(model.get("name", "")), str(model.get("target", "")), kwargs)
