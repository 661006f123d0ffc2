"""`python -m bench predict hardware=NAME [model=NAME] [study=NAME | run_dir=DIR] [published=FILE]`:
a finished run projected, as tables of words, as projected.md and as projected.csv."""

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
from bench.cost.project.papers import Floors, floors_of, ratios
from bench.cost.project.settings import Asked, Hardware, asked, shipped
from bench.cost.project.steps import (
    KERNELS_PER_FORWARD,
    KERNELS_PER_LAYER,
    Projected,
    Sizes,
    project,
    recorded_of,
    sizes_of,
)
from bench.cost.work import regime
from bench.data.files import ready_folder
from bench.records.load import read_rows
from bench.records.schema import write_text
from bench.records.study import read_identity, require_schema
from bench.report import table
from bench.report.plots.predict import projected_plot
from bench.report.table import ABSENT, Table

HEAD = [
    "decoder", "codes verified", "codes per step", "forward ms", "bound by", "draft ms", "step ms",
    "projected", "measured here", "published",
]  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PAPERS = [
    "paper", "model", "method", "GPU", "AR ms per code", "floors", "speed-up", "codes per forward",
    "AR slower than a verification",
]  # fmt: skip


BY_BATCH = (
    "Projected speed-up over AR at the same batch, places refilled (offline). Whether the images' "
    "caches fit the GPU's memory is not looked at."
)


@dataclass(frozen=True)
class Report:
    """study, own: name and model of the run; beside: published ratios by decoder; left_out:
    decoders of which no image came out."""

    study: str
    own: str
    machine: Hardware
    sizes: Sizes
    rows: Sequence[Projected]
    beside: Mapping[str, Sequence[Published]]
    papers: Sequence[Floors]
    left_out: Sequence[str] = ()

    @property
    def drafting(self) -> list[Projected]:
        return [row for row in self.rows if row.recorded.drafts]

    @property
    def title(self) -> str:
        return (
            f"Projected: acceptance of {self.study} ({self.own}) on {self.machine.name}, at the "
            f"size of {self.sizes.name} in bfloat16, batch 1"
        )


def cmd_project(words: Sequence[str]) -> int:
    """Prints the projection and writes predict/projected.csv and .md into the run's folder. Raises
    BenchError: no such run, machine or model."""
    wanted = asked(words)
    report = _report(wanted)
    folder = wanted.folder / "predict"
    ready_folder(folder)
    write_text(folder / "projected.csv", table.csv_text(lines(report)))
    write_text(folder / "projected.md", markdown(report))
    say(f"{report.title}\n\n{table.terminal(projected(report))}\n")
    say("\n".join(notes(report)))
    say(f"\n{BY_BATCH}\n\n{table.terminal(batched(report))}\n")
    every = {machine.name: machine for machine in (report.machine, *shipped())}
    found = {name: by_batch(report.drafting, report.sizes, one) for name, one in every.items()}
    plot = projected_plot(
        found, BATCHES, f"{report.study} at the size of {report.sizes.name}", folder
    )
    if report.papers:
        say(f"\n{table.terminal(papers(report))}\n")
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
    out = []
    for row in report.rows:
        recorded, beside = row.recorded, report.beside.get(row.recorded.decoder, ())
        out.append(
            [recorded.decoder, str(1 + recorded.nodes), f"{row.prediction.codes:.2f}",
             f"{1e3 * row.forward.seconds:.3g}", row.forward.bound,
             f"{1e3 * row.draft:.3g}" if row.draft else ABSENT, f"{1e3 * row.step:.3g}",
             f"{row.prediction.speedup:.2f}", table.interval(recorded.speedup, 2),
             "; ".join(map(ratio, beside)) or ABSENT]
        )  # fmt: skip
    return table.of_cells(HEAD, out)


def by_batch(rows: Sequence[Projected], sizes: Sizes, machine: Hardware) -> dict[str, list[float]]:
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


def ratio(row: Published) -> str:
    """`1.69 (LANTERN, RTX 3090)`."""
    return f"{row.figures['speedup']:g} ({row.paper}, {row.gpu or 'GPU not stated'})"


def papers(report: Report) -> Table:
    """A row per published number with an AR step, or with a mark."""
    out = []
    for one in report.papers:
        row, gpu = one.row, one.row.gpu or "not stated"
        floors = one.why or f"{one.floors:.1f}"
        if not (one.why or one.own):
            floors += f" of {one.machine}"
        speed, mal = row.figures.get("speedup"), row.figures.get("mal")
        out.append(
            [f"{row.paper} {row.arxiv}", row.model, row.label, gpu,
             ABSENT if math.isnan(one.step) else f"{1e3 * one.step:.1f}", floors,
             ABSENT if speed is None else f"{speed:.2f}", ABSENT if mal is None else f"{mal:.2f}",
             "yes" if one.slow else ""]
        )  # fmt: skip
    return table.of_cells(PAPERS, out)


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
    if not report.papers:
        return []
    return [
        "Floors: how many floors of its own GPU the paper's AR step took, the prefill counted in.",
        f"Where the source names no known GPU, they are floors of {report.machine.name}.",
        "AR slower than a verification: the speed-up is larger than the codes per forward.",
    ]


def sources(machine: Hardware) -> list[str]:
    """Where the machine's figures come from."""
    return [
        f"Memory: {machine.memory_source}.",
        f"Dense bfloat16: {machine.dense_bf16_source}.",
        f"Launches: {machine.launch_source}.",
    ]


def markdown(report: Report) -> str:
    """projected.md."""
    parts = [f"# {report.title}", table.markdown(projected(report)), table.bullets(notes(report))]
    parts += ["# By batch", BY_BATCH, table.markdown(batched(report))]
    if report.papers:
        parts += ["# Published AR steps", table.markdown(papers(report))]
        parts += [table.bullets(paper_notes(report))]
    return "\n\n".join([*parts, "# Sources", table.bullets(sources(report.machine))]) + "\n"


def lines(report: Report) -> list[dict[str, Any]]:
    """projected.csv: one row per decoder; seconds, and published speed-ups as they were stated."""
    out: list[dict[str, Any]] = []
    many = by_batch(report.rows, report.sizes, report.machine)
    for row in report.rows:
        recorded, made = row.recorded, row.prediction
        more = many[recorded.decoder]
        out.append({
            "decoder": recorded.decoder, "tree": recorded.tree, "hardware": report.machine.name,
            "model": report.sizes.name, "temperature": recorded.temperature,
            "images": recorded.images, "codes_verified": 1 + recorded.nodes,
            "codes_a_step": made.codes, "steps": made.steps, "projected": made.speedup,
            "measured": recorded.speedup.value, "measured_lo": recorded.speedup.lo,
            "measured_hi": recorded.speedup.hi, "projected_step": row.step,
            "projected_forward": row.forward.seconds, "projected_draft": row.draft,
            "bound": row.forward.bound,
            **{f"projected_at_{b}": x for b, x in zip(BATCHES, more, strict=True)},
            "published": "; ".join(map(ratio, report.beside.get(recorded.decoder, ()))),
        })  # fmt: skip
    return out
