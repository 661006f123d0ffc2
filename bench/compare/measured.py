"""A run as the comparison with published numbers sees it.

Only summary.csv is needed. The records give what it does not hold: times of every prompt (for the
interval of a ratio to another decoder than AR), intervals of MAL, top-k and the GPU's name.
study.json gives the prompt set.
"""

from __future__ import annotations

import math
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
from metrics.stats import UNKNOWN as UNKNOWN
from metrics.stats import Interval

COLUMNS = {"latency_s": "latency_mean_s"}  # of summary.csv, where a figure has another name there
FIGURES = ("speedup", "mal", "latency_s", "fid", "clip", "precision", "recall", "hps")


@dataclass(frozen=True)
class Measured:
    """A decoder's row. gpu, prompts "" and top_k, loop, drafter None: not known (tables of older
    versions say no loop and no drafter); features: name by figure, of which parts are NaN where not
    known; records: the rows of its images that came out; drafter: or the proposer in its place."""

    decoder: str
    model: str
    rule: Described
    tree: Described
    temperature: float
    cfg: float
    top_k: float | None
    device: str
    gpu: str
    prompts: str
    images: int
    features: Mapping[str, str]
    figures: Mapping[str, Interval]
    records: pd.DataFrame = field(compare=False)
    loop: Described | None = None
    drafter: Described | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """failed: decoders without figures, with their status."""

    source: Path
    study: str
    rows: list[Measured]
    failed: dict[str, str]


def load(run: Path) -> MeasuredRun:
    """The decoders of a run folder, or of its summary.csv. Raises FolderError where it is none."""
    found = load_run(run, rows="if there")
    shown = [entry for entry in found.entries if entry.role is not Role.RESEED]
    rows = [_measured(entry, found) for entry in shown if not entry.failed]
    if not rows:
        raise FolderError(f"{run} has no decoder with figures; see the column status of its table")
    failed = {entry.name: entry.text("status") for entry in shown if entry.failed}
    return MeasuredRun(run, found.study, rows, failed)


def _measured(entry: Entry, run: RunData) -> Measured:
    line, records = {**run.quality.get(entry.name, {}), **entry.row}, entry.ok
    figures = {name: _figure(line, COLUMNS.get(name, name)) for name in FIGURES}
    gpu, top_k = str(run.identity.get("machine", {}).get("gpu", "")), None
    if len(records):
        gpu, top_k = str(records.gpu.iloc[0]) or gpu, float(records.top_k.iloc[0])
        pooled = None if math.isnan(figures["mal"].value) else mal_interval(records)
        if pooled is not None:  # of the same rows, pooled as the summary does
            figures["mal"] = Interval(figures["mal"].value, pooled.lo, pooled.hi)
    return Measured(
        decoder=entry.name,
        model=entry.text("model"),
        rule=read(entry.text("acceptance")),
        tree=read(entry.text("tree")),
        temperature=entry.number("temperature"),
        cfg=entry.number("cfg"),
        top_k=top_k,
        device=entry.text("device"),
        gpu=gpu,
        prompts=str(run.identity.get("config", {}).get("prompts", {}).get("name", "")),
        images=int(line["n_quality"]) if line["n_quality"] > 0 else 0,
        features=_features(line),
        figures=figures,
        records=records,
        loop=read(line["loop"]) if line.get("loop") else None,
        drafter=read(line["drafter"]) if line.get("drafter") else None,
    )


def _features(line: Mapping[str, Any]) -> dict[str, str]:
    """What each quality figure was made with. `<figure>_features` where the summary has it; the
    embedded CLIP is both FID's features and the CLIP score's network."""
    own = {name: as_text(line.get(f"{name}_features", "")) for name in FIGURES}
    for name in ("precision", "recall"):
        own[name] = own[name] or as_text(line.get("prc_features", "")) or own["fid"]
    if own["fid"].endswith("-clip"):
        own["clip"] = own["clip"] or own["fid"]
    return own


def _figure(line: Mapping[str, Any], column: str) -> Interval:
    return Interval(*(float(line.get(column + end, math.nan)) for end in ("", "_lo", "_hi")))
