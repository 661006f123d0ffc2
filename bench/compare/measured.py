"""A run's decoders as the comparison with published numbers sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.describe import Described, read
from bench.data.errors import FolderError
from bench.judge.paired import mal_interval
from bench.records.load import load as load_run
from bench.records.run_data import Entry, Role, RunData, as_text
from metrics.stats import Interval

FIGURES = ("speedup", "mal", "latency_s", "fid", "clip", "precision", "recall", "hps")
PARTS = ("loop", "drafter", "tree", "acceptance")


@dataclass(frozen=True)
class Measured:
    """A decoder. gpu, prompts: "" where not known; parts: by `PARTS`, a proposer in the drafter's
    place; features: name by figure; figures: NaN where not measured; records: the rows of its
    images that came out."""

    decoder: str
    model: str
    parts: Mapping[str, Described]
    temperature: float
    cfg: float
    top_k: float
    device: str
    gpu: str
    prompts: str
    images: int
    features: Mapping[str, str]
    figures: Mapping[str, Interval]
    records: pd.DataFrame = field(compare=False)


@dataclass(frozen=True)
class MeasuredRun:
    """failed: decoders without figures."""

    folder: Path
    study: str
    rows: list[Measured]
    failed: list[str]


def load(folder: Path) -> MeasuredRun:
    """The decoders of a run folder. Raises FolderError where it is none."""
    run = load_run(folder)
    shown = [entry for entry in run.entries if entry.role is not Role.RESEED]
    rows = [_measured(entry, run) for entry in shown if not entry.failed]
    if not rows:
        raise FolderError(
            f"{folder} has no decoder with figures; see the column status of summary.csv"
        )
    return MeasuredRun(folder, run.study, rows, [e.name for e in shown if e.failed])


def _measured(entry: Entry, run: RunData) -> Measured:
    line, records = {**run.quality.get(entry.name, {}), **entry.row}, entry.ok
    line |= {"latency_s": line["latency_mean_s"]}
    figures = {name: _figure(line, name) for name in FIGURES}
    pooled = mal_interval(records)
    if pooled is not None:  # of the same rows, pooled as the summary does
        figures["mal"] = Interval(figures["mal"].value, pooled.lo, pooled.hi)
    return Measured(
        decoder=entry.name,
        model=entry.text("model"),
        parts={name: read(as_text(line[name])) for name in PARTS},
        temperature=entry.number("temperature"),
        cfg=entry.number("cfg"),
        top_k=float(records.top_k.iloc[0]),
        device=entry.text("device"),
        gpu=str(records.gpu.iloc[0]),
        prompts=str(run.identity.get("config", {}).get("prompts", {}).get("name", "")),
        images=int(line["n_quality"]) if line["n_quality"] > 0 else 0,
        features=_features(line),
        figures=figures,
        records=records,
    )


def _features(line: Mapping[str, Any]) -> dict[str, str]:
    """What each quality figure was made with; the embedded CLIP is both FID's features and the CLIP
    score's network."""
    own = {name: as_text(line.get(f"{name}_features", "")) for name in FIGURES}
    for name in ("precision", "recall"):
        own[name] = as_text(line.get("prc_features", "")) or own["fid"]
    if own["fid"].endswith("-clip"):
        own["clip"] = own["clip"] or own["fid"]
    return own


def _figure(line: Mapping[str, Any], column: str) -> Interval:
    return Interval(*(float(line.get(column + end, float("nan"))) for end in ("", "_lo", "_hi")))
