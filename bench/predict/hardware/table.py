"""A projection as tables of words, as projected.md and as projected.csv."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure.regime import regime
from bench.predict.hardware.papers import Floors
from bench.predict.hardware.settings import Hardware
from bench.predict.hardware.sizes import Sizes
from bench.predict.hardware.steps import KERNELS_PER_FORWARD, KERNELS_PER_LAYER, Projected
from bench.published.table import Published
from bench.report import table
from bench.report.table import ABSENT, Table

HEAD = [
    "decoder", "codes verified", "codes per step", "forward ms", "bound by", "draft ms", "step ms",
    "projected", "measured here", "published",
]  # fmt: skip
PAPERS = [
    "paper", "model", "method", "GPU", "AR ms per code", "floors", "speed-up", "codes per forward",
    "AR slower than a verification",
]  # fmt: skip


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
    def title(self) -> str:
        return (
            f"Projected: acceptance of {self.study} ({self.own}) on {self.machine.name}, at the "
            f"size of {self.sizes.name} in bfloat16, batch 1"
        )


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
    if report.papers:
        parts += ["# Published AR steps", table.markdown(papers(report))]
        parts += [table.bullets(paper_notes(report))]
    return "\n\n".join([*parts, "# Sources", table.bullets(sources(report.machine))]) + "\n"


def lines(report: Report) -> list[dict[str, Any]]:
    """projected.csv: one row per decoder; seconds, and published speed-ups as they were stated."""
    out: list[dict[str, Any]] = []
    for row in report.rows:
        recorded, made = row.recorded, row.prediction
        out.append({
            "decoder": recorded.decoder, "tree": recorded.tree, "hardware": report.machine.name,
            "model": report.sizes.name, "temperature": recorded.temperature,
            "images": recorded.images, "codes_verified": 1 + recorded.nodes,
            "codes_a_step": made.codes, "steps": made.steps, "projected": made.speedup,
            "measured": recorded.speedup.value, "measured_lo": recorded.speedup.lo,
            "measured_hi": recorded.speedup.hi, "projected_step": row.step,
            "projected_forward": row.forward.seconds, "projected_draft": row.draft,
            "bound": row.forward.bound,
            "published": "; ".join(map(ratio, report.beside.get(recorded.decoder, ()))),
        })  # fmt: skip
    return out
