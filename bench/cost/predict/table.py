"""What `bench predict` shows: tables in the terminal, predicted.csv, projected.csv, projected.md.

With `hardware=NAME` a finished run is projected: nothing is timed, a floor is bytes over bandwidth
or operations over rate, so no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.compare import measured
from bench.compare import published as published_table
from bench.compare.methods import load_names
from bench.compare.published import Published
from bench.config.schema import LoaderConfig
from bench.console import say
from bench.cost.predict.machines import Asked, Hardware, shipped
from bench.cost.predict.papers import Floors, floors_of, ratios
from bench.cost.predict.recorded import STEP, Row, recorded_of
from bench.cost.predict.there import (
    KERNELS_PER_FORWARD,
    KERNELS_PER_LAYER,
    Sizes,
    project,
    sizes_of,
)
from bench.cost.work import regime
from bench.data.files import ready_folder
from bench.records.load import read_rows
from bench.records.rows import write_text
from bench.records.study import read_identity, require_schema
from bench.report import table
from bench.report.plots.predict import projected_plot
from bench.report.table import ABSENT, Column, Table

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BY_BATCH = (
    "Projected speed-up over AR at the same batch, places refilled (offline). Whether the images' "
    "caches fit the GPU's memory is not looked at."
)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds else ABSENT


SPEEDUPS = (
    Column("", "decoder", lambda row: row.recorded.decoder),
    Column("", "tree", lambda row: row.tree or row.recorded.tree),
    Column("prediction", "codes a step", lambda made: f"{made.codes:.2f}"),
    Column("prediction", "predicted", lambda made: f"{made.speedup:.2f}"),
    Column("measured", "measured", table.intervals(2)),
    Column("", "error", lambda row: table.percent(row.error, sign="+")),
)
PROJECTED = (
    SPEEDUPS[0],
    Column("", "codes verified", lambda row: str(1 + row.recorded.nodes)),
    Column("prediction", "codes per step", SPEEDUPS[2].format),
    Column("", "forward ms", lambda row: _ms(row.step.forward)),
    Column("bound", "bound by"),
    Column("", "draft ms", lambda row: _ms(row.step.draft)),
    Column("", "step ms", lambda row: _ms(row.step.step)),
    Column("prediction", "projected", SPEEDUPS[3].format),
    Column("measured", "measured here", table.intervals(2)),
)
PAPERS = (
    Column("row", "paper", lambda row: f"{row.paper} {row.arxiv}"),
    Column("row", "model", lambda row: row.model),
    Column("row", "method", lambda row: row.label),
    Column("row", "GPU", lambda row: row.gpu or "not stated"),
    Column("step", "AR ms per code", table.figures(1, 1e3)),
    Column("", "floors", lambda one: one.why or (
        f"{one.floors:.1f}" + ("" if one.own else f" of {one.machine}")
    )),
    Column("row", "speed-up", lambda row: table.number(row.figures.get("speedup", math.nan), 2)),
    Column("row", "codes per forward",
           lambda row: table.number(row.figures.get("mal", math.nan), 2)),
    Column("slow", "AR slower than a verification", lambda slow: "yes" if slow else ""),
)  # fmt: skip


def lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """predicted.csv, projected.csv: one line per prediction; seconds are those of a step."""
    out: list[dict[str, Any]] = []
    for row in rows:
        recorded, made = row.recorded, row.prediction
        line: dict[str, Any] = {
            "decoder": recorded.decoder, "tree": row.tree or recorded.tree,
            "temperature": recorded.temperature, "images": recorded.images,
            "codes_verified": 1 + recorded.nodes, "codes_a_step": made.codes, "steps": made.steps,
            "predicted": made.speedup, "measured": row.measured, "error": row.error,
        }  # fmt: skip
        for name in STEP:
            line[f"predicted_{name}"] = getattr(row.step, name)
            line[f"recorded_{name}"] = getattr(recorded.step, name) if row.ran else math.nan
        line |= {"baseline": row.baseline, "predicted_ar": row.ar, "recorded_ar": row.recorded_ar}
        out.append(line)
    return out


def parts(rows: Sequence[Row]) -> Table:
    """Milliseconds of a step and its parts, predicted and as the run charged them; AR's first."""
    cells = [
        [name, _two(now), _two(then), *[ABSENT] * (2 * len(STEP) - 2)]
        for name, now, then in dict.fromkeys((r.baseline, r.ar, r.recorded_ar) for r in rows)
    ]
    cells += [
        [
            r.recorded.decoder,
            *(_two(getattr(s, n)) for n in STEP for s in (r.step, r.recorded.step)),
        ]
        for r in rows
        if r.ran
    ]
    headings = ["ms a step", *(f"{n} {k}" for n in STEP for k in ("pred.", "run"))]
    return table.of_cells(headings, cells)


def _two(seconds: float) -> str:
    return table.number(1e3 * seconds, 2)


@dataclass(frozen=True)
class Report:
    """study, own: name and model of the run; beside: published ratios by decoder; left_out:
    decoders of which no image came out."""

    study: str
    own: str
    machine: Hardware
    sizes: Sizes
    rows: Sequence[Row]
    beside: Mapping[str, Sequence[Published]]
    papers: Sequence[Floors]
    left_out: Sequence[str] = ()

    @property
    def drafting(self) -> list[Row]:
        return [row for row in self.rows if row.recorded.drafts]

    @property
    def title(self) -> str:
        return (
            f"Projected: acceptance of {self.study} ({self.own}) on {self.machine.name}, at the "
            f"size of {self.sizes.name} in bfloat16, batch 1"
        )


def projection(wanted: Asked) -> int:
    """Prints the projection and writes predict/projected.csv and .md into the run's folder. Raises
    BenchError: no such run, machine or model."""
    report = _report(wanted)
    folder = wanted.folder / "predict"
    ready_folder(folder)
    here = {"hardware": report.machine.name, "model": report.sizes.name}
    many = by_batch(report.rows, report.sizes, report.machine)
    made = [
        {**line, **here, "bound": row.bound,
         **{f"predicted_at_{n}": x for n, x in zip(BATCHES, many[line["decoder"]], strict=True)},
         "published": _published(report, row)}
        for line, row in zip(lines(report.rows), report.rows, strict=True)
    ]  # fmt: skip
    write_text(folder / "projected.csv", table.csv_text(made))
    write_text(folder / "projected.md", markdown(report))
    say(f"{report.title}\n\n{table.terminal(projected(report))}\n")
    say("\n".join(notes(report)))
    say(f"\n{BY_BATCH}\n\n{table.terminal(batched(report))}\n")
    every = {machine.name: machine for machine in (report.machine, *shipped())}
    found = {name: by_batch(report.drafting, report.sizes, one) for name, one in every.items()}
    title = f"{report.study} at the size of {report.sizes.name}"
    plot = projected_plot(found, BATCHES, title, folder)
    if report.papers:
        say(f"\n{table.terminal(table.filled(PAPERS, report.papers))}\n")
        say("\n".join(paper_notes(report)))
    say(f"\nsaved: {folder / 'projected.csv'}, {folder / 'projected.md'}, {plot[0]}")
    return 0


def _report(wanted: Asked) -> Report:
    """The run's words are not needed: nothing is loaded or timed, so only its rows are read."""
    found = read_identity(wanted.folder)
    require_schema(wanted.folder, found)
    config = found["config"]
    entries = config.get("decoders", [])
    baselines = [entry["name"] for entry in entries if entry.get("baseline")]
    rows = recorded_of(read_rows(wanted.folder), baselines)
    came_out = {row.decoder for row in rows}
    own = _own_model(config)
    sizes = sizes_of(wanted.model or own)
    known = load_names()
    published = published_table.load(wanted.published or published_table.DEFAULT)
    there = measured.load(wanted.folder).rows
    return Report(
        study=str(config.get("name", wanted.folder.name)),
        own=own.name,
        machine=wanted.hardware,
        sizes=sizes,
        rows=[project(row, sizes, wanted.hardware) for row in rows],
        beside=ratios(published, there, known, sizes.name),
        papers=floors_of(published, known, shipped(), wanted.hardware),
        left_out=[entry["name"] for entry in entries if entry["name"] not in came_out],
    )


def _own_model(config: dict[str, Any]) -> LoaderConfig:
    """The run's model, as study.json has it."""
    model = config.get("model", {})
    kwargs = dict(model.get("kwargs", {}))
    return LoaderConfig(str(model.get("name", "")), str(model.get("target", "")), kwargs)


def projected(report: Report) -> Table:
    """A row per decoder."""
    published = Column("", "published", lambda row: _published(report, row) or ABSENT)
    return table.filled((*PROJECTED, published), report.rows)


def by_batch(rows: Sequence[Row], sizes: Sizes, machine: Hardware) -> dict[str, list[float]]:
    """Speed-ups over AR at the same batch, by decoder, one of each of BATCHES. Rows advance alone
    and are refilled, so none waits for another."""
    return {
        one.decoder: [
            project(replace(one, rows=one.rows * batch), sizes, machine).prediction.speedup
            for batch in BATCHES
        ]
        for one in (row.recorded for row in rows)
    }


def batched(report: Report) -> Table:
    """A row per decoder, a column per batch."""
    found = by_batch(report.drafting, report.sizes, report.machine)
    rows = [[name, *(f"{x:.2f}" for x in speedups)] for name, speedups in found.items()]
    return table.of_cells(["decoder", *map(str, BATCHES)], rows)


def _published(report: Report, row: Row) -> str:
    """`1.69 (LANTERN, RTX 3090); ...`: ratios of its method in the papers."""
    return "; ".join(
        f"{one.figures['speedup']:g} ({one.paper}, {one.gpu or 'GPU not stated'})"
        for one in report.beside.get(row.recorded.decoder, ())
    )


def notes(report: Report) -> list[str]:
    """How to read the tables."""
    machine, rows = report.machine, max((r.recorded.rows for r in report.rows), default=1)
    growth, missing = report.sizes.target.growth(rows), ", ".join(report.left_out)
    return [
        *([f"Left out, as no image of theirs came out: {missing}."] if missing else []),
        regime(growth, machine, where=f"on {machine.name}"),
        f"{machine}.",
        f"Launches: {machine.launch_source}.",
        "Projected: the speed-up that the data sheet allows. Nothing was timed, so a real step is "
        "slower.",
        f"Acceptance is that of the run's {report.own}; another model with its own drafter accepts "
        "other drafts.",
        "A forward is max(bytes / bandwidth, operations / rate) and the launches of its kernels, "
        f"{KERNELS_PER_LAYER} per layer and {KERNELS_PER_FORWARD} more.",
        "A drafter call is one EAGLE layer of the model's width and the model's head.",
        "Published: over AR at this model and temperature, as far as the source states them. "
        "Trees, settings and weights may differ.",
    ]  # fmt: skip


def paper_notes(report: Report) -> list[str]:
    """How to read the published numbers."""
    return [
        "Floors: how many floors of its own GPU the paper's AR step took, the prefill counted in.",
        f"Where the source names no known GPU, they are floors of {report.machine.name}.",
        "AR slower than a verification: the speed-up is larger than the codes per forward.",
    ]


def markdown(report: Report) -> str:
    """projected.md."""
    machine = report.machine
    parts = [f"# {report.title}", table.markdown(projected(report)), table.bullets(notes(report))]
    parts += ["# By batch", BY_BATCH, table.markdown(batched(report))]
    if report.papers:
        papers = table.filled(PAPERS, report.papers)
        parts += ["# Published AR steps", table.markdown(papers)]
        parts += [table.bullets(paper_notes(report))]
    sources = [
        f"Memory: {machine.memory_source}.",
        f"Dense bfloat16: {machine.dense_bf16_source}.",
        f"Launches: {machine.launch_source}.",
    ]
    return "\n\n".join([*parts, "# Sources", table.bullets(sources)]) + "\n"
