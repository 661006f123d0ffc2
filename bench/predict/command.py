"""`python -m bench predict`: predicted and measured speed-ups of a run, as tables and a picture.

With `hardware=NAME` a finished run is projected: nothing is timed, a floor is bytes over bandwidth
or operations over rate, so no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.compare import measured
from bench.compare import published as published_table
from bench.compare.methods import load_names
from bench.compare.published import Published
from bench.config.compose import compose_study
from bench.config.differences import MACHINES, differences
from bench.config.hydra_edge import own_settings
from bench.config.schedule import cells
from bench.config.schema import LoaderConfig, StudyConfig
from bench.console import complain, say
from bench.cost.work import regime
from bench.data.errors import BenchError, ConfigError
from bench.data.files import ready_folder, write_text
from bench.judge.paired import every_latency_row
from bench.predict.here import PredictConfig, rows_of
from bench.predict.machines import Asked, Hardware, asked, shipped
from bench.predict.recorded import STEP, Recorded, Row, recorded_of
from bench.predict.there import (
    KERNELS_PER_FORWARD,
    KERNELS_PER_LAYER,
    Floors,
    Sizes,
    floors_of,
    project,
    ratios,
    sizes_of,
)
from bench.records.load import read_rows
from bench.records.study import read_identity, require_own, require_schema
from bench.report import table
from bench.report.plots.predict import predicted_plot, projected_plot
from bench.report.table import ABSENT, Column, Table
from bench.run.session import opened

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BY_BATCH = (
    "Projected speed-up over AR at the same batch, places refilled (offline). Whether the images' "
    "caches fit the GPU's memory is not looked at."
)


_two = table.figures(2, 1e3)  # milliseconds


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


def cmd_predict(words: Sequence[str]) -> int:
    """Speed-ups that a run's acceptance predicts, here or on another machine.
    Predicts the speed-ups of a finished run from step costs and acceptance, and compares them
    with the measured ones. Takes the words of that run. Writes predicted.csv to
    run_dir/predict. With hardware=NAME nothing is timed: what the run's acceptance would give
    on a machine that is not here (projected), and papers' AR steps in floors. Of the run it
    takes study= or run_dir= alone. Writes projected.csv and projected.md there.
    Settings: study decoders run_dir ...
        predict.*       bench/predict/here.py PredictConfig
        hardware=NAME   a machine (`list hardware`), or your own through hydra.searchpath
        model=NAME      with hardware=: at whose size (default: the run's own model)
        published=FILE  with hardware=: another table of published numbers
    Example: predict study=smoke
    """
    elsewhere = asked(words)
    if elsewhere is not None:
        return projection(elsewhere)
    settings, rest = own_settings(PredictConfig, "predict", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / "predict"
    rows, machine = read_run(config)
    ready_folder(folder)
    own = opened(config, 1)
    if machine != own.made.machine():
        raise ConfigError(
            f"{config.run_dir} was made on another machine: "
            f"{differences(machine, own.made.machine(), MACHINES)}; costs are to be measured on "
            "the machine of the run"
        )
    every = cells(config, own.model.sampling)
    found = rows_of(config, settings, own.model, every, rows, own.prompts[0].text)
    if not found:
        complain("no decoder of this run drafts and has a baseline: nothing to predict")
        return 1
    path = write_text(folder / "predicted.csv", table.csv_text(lines(found)))
    say(table.terminal(table.filled(SPEEDUPS, found)))
    say("\n" + table.terminal(parts(found)))
    plot = predicted_plot(pd.read_csv(path), f"Speed model: {config.name}", folder)[0]
    errors = [abs(row.error) for row in found if row.ran]
    say(
        f"\nmean size of the error: {100 * sum(errors) / len(errors):.1f} %, largest "
        f"{100 * max(errors):.1f} %"
    )
    say(f"saved: {path}, {plot}")
    return 0


def read_run(config: StudyConfig) -> tuple[pd.DataFrame, dict[str, str]]:
    """Latency rows of the study's folder that came out, each image as often as it was timed, and
    the machine that they were made on. Raises BenchError: no run there, of another version or
    configuration, unfinished or damaged, without latency rows."""
    folder = Path(config.run_dir)
    machine: dict[str, str] = require_own(folder, config)["machine"]
    ok = every_latency_row(read_rows(folder))
    if ok.empty:
        raise BenchError(
            f"{folder} has no timed images that count: it was run with latency.prompts=0, or on a "
            "busy machine; run it again with latency.prompts, when the machine is quiet"
        )
    return ok, machine


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


@dataclass(frozen=True)
class Part:
    """A part of projected.md, and of what is printed."""

    title: str
    table: Table
    before: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """What is read of a run, whose words are not needed: nothing is loaded or timed. model: its
    own; left_out: decoders of which no image came out."""

    study: str
    model: LoaderConfig
    decoders: Sequence[Recorded]
    left_out: Sequence[str]


def projection(wanted: Asked) -> int:
    """Prints the projection and writes predict/projected.csv and .md into the run's folder. Raises
    BenchError: no such run, machine or model."""
    run, machine, folder = _run(wanted.folder), wanted.hardware, wanted.folder / "predict"
    sizes, names = sizes_of(wanted.model or run.model), load_names()
    rows = [project(one, sizes, machine) for one in run.decoders]
    papers = published_table.load(wanted.published or published_table.DEFAULT)
    there = ratios(papers, measured.load(wanted.folder).rows, names, sizes.name)
    published = {name: "; ".join(map(_published, theirs)) for name, theirs in there.items()}
    ready_folder(folder)
    others = [other for other in shipped() if other.name != machine.name]
    every = {one.name: by_batch(run.decoders, sizes, one) for one in (machine, *others)}
    made = [
        {**line, "hardware": machine.name, "model": sizes.name, "bound": row.bound,
         **{f"predicted_at_{n}": x
            for n, x in zip(BATCHES, every[machine.name][line["decoder"]], strict=True)},
         "published": published.get(line["decoder"], "")}
        for line, row in zip(lines(rows), rows, strict=True)
    ]  # fmt: skip
    drafting = [one.decoder for one in run.decoders if one.drafts]
    found = {name: {d: many[d] for d in drafting} for name, many in every.items()}
    last = Column("", "published", lambda row: published.get(row.recorded.decoder) or ABSENT)
    title = (
        f"Projected: acceptance of {run.study} ({run.model.name}) on {machine.name}, at the size "
        f"of {sizes.name} in bfloat16, batch 1"
    )
    floors = floors_of(papers, names, shipped(), machine)
    document = [
        Part(title, table.filled((*PROJECTED, last), rows), notes=notes(run, sizes, machine)),
        Part("By batch", _batched(found[machine.name]), before=BY_BATCH),
        *([_papers(floors, machine)] if floors else []),
    ]
    write_text(folder / "projected.csv", table.csv_text(made))
    write_text(folder / "projected.md", markdown(machine, document))
    for part in document:
        said = [part.title, part.before, table.terminal(part.table), "\n".join(part.notes)]
        say("\n\n".join(text for text in said if text) + "\n")
    plot = projected_plot(found, BATCHES, f"{run.study} at the size of {sizes.name}", folder)
    say(f"saved: {folder / 'projected.csv'}, {folder / 'projected.md'}, {plot[0]}")
    return 0


def _run(folder: Path) -> Run:
    found = read_identity(folder)
    require_schema(folder, found)
    config = found["config"]
    entries, model = config.get("decoders", []), config.get("model", {})
    baselines = [entry["name"] for entry in entries if entry.get("baseline")]
    rows = recorded_of(read_rows(folder), baselines)
    came_out = {row.decoder for row in rows}
    kwargs = dict(model.get("kwargs", {}))
    return Run(
        str(config.get("name", folder.name)),
        LoaderConfig(str(model.get("name", "")), str(model.get("target", "")), kwargs),
        rows,
        [entry["name"] for entry in entries if entry["name"] not in came_out],
    )


def by_batch(
    decoders: Sequence[Recorded], sizes: Sizes, machine: Hardware
) -> dict[str, list[float]]:
    """Speed-ups over AR at the same batch, by decoder, one of each of BATCHES. Rows advance alone
    and are refilled, so none waits for another."""
    return {
        one.decoder: [
            project(replace(one, rows=one.rows * batch), sizes, machine).prediction.speedup
            for batch in BATCHES
        ]
        for one in decoders
    }


def _batched(many: Mapping[str, Sequence[float]]) -> Table:
    rows = [[name, *(f"{x:.2f}" for x in speedups)] for name, speedups in many.items()]
    return table.of_cells(["decoder", *map(str, BATCHES)], rows)


def _published(one: Published) -> str:
    """`1.69 (LANTERN, RTX 3090)`: a ratio in a paper."""
    return f"{one.figures['speedup']:g} ({one.paper}, {one.gpu or 'GPU not stated'})"


def _papers(floors: Sequence[Floors], machine: Hardware) -> Part:
    reading = [
        "Floors: how many floors of its own GPU the paper's AR step took, the prefill counted in.",
        f"Where the source names no known GPU, they are floors of {machine.name}.",
        "AR slower than a verification: the speed-up is larger than the codes per forward.",
    ]
    return Part("Published AR steps", table.filled(PAPERS, floors), notes=reading)


def notes(run: Run, sizes: Sizes, machine: Hardware) -> list[str]:
    """How to read the projection."""
    growth = sizes.target.growth(max((one.rows for one in run.decoders), default=1))
    missing = ", ".join(run.left_out)
    return [
        *([f"Left out, as no image of theirs came out: {missing}."] if missing else []),
        regime(growth, machine, where=f"on {machine.name}"),
        f"{machine}.",
        f"Launches: {machine.launch_source}.",
        "Projected: the speed-up that the data sheet allows. Nothing was timed, so a real step is "
        "slower.",
        f"Acceptance is that of the run's {run.model.name}; another model with its own drafter "
        "accepts other drafts.",
        "A forward is max(bytes / bandwidth, operations / rate) and the launches of its kernels, "
        f"{KERNELS_PER_LAYER} per layer and {KERNELS_PER_FORWARD} more.",
        "A drafter call is one EAGLE layer of the model's width and the model's head.",
        "Published: over AR at this model and temperature, as far as the source states them. "
        "Trees, settings and weights may differ.",
    ]  # fmt: skip


def markdown(machine: Hardware, document: Sequence[Part]) -> str:
    """projected.md."""
    parts = []
    for one in document:
        parts += [f"# {one.title}", one.before, table.markdown(one.table), table.bullets(one.notes)]
    sources = [
        f"Memory: {machine.memory_source}.",
        f"Dense bfloat16: {machine.dense_bf16_source}.",
        f"Launches: {machine.launch_source}.",
    ]
    parts += ["# Sources", table.bullets(sources)]
    return "\n\n".join(part for part in parts if part) + "\n"
