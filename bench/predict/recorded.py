"""What a run recorded of its decoders, as a prediction needs it, and the prediction beside it.

One reader for both kinds of cost: those that are measured here (`bench.predict.here`) and
those of a machine that is not here (`bench.predict.there`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.cost.speed import Prediction, StepSeconds, reach
from bench.data.errors import BenchError
from bench.judge.paired import image_rows, latency_rows, paired_speedup
from metrics.stats import UNKNOWN, Interval

PARTS = ("draft", "forward", "accept")
STEP = ("step", *PARTS)
NO_STEP = StepSeconds(math.nan, math.nan)


@dataclass(frozen=True)
class Recorded:
    """What a run recorded of a decoder. rows: guidance rows; images: how many; reached:
    P(accepted >= d); nodes: N; calls: of the drafter in a step; speedup: as measured where the run
    was made; step: seconds that it charged; mal: codes per forward."""

    decoder: str
    tree: str
    temperature: float
    rows: int
    images: int
    reached: tuple[float, ...]
    nodes: int
    calls: float
    speedup: Interval
    step: StepSeconds = NO_STEP
    mal: float = math.nan

    @property
    def drafts(self) -> bool:
        """Whether a forward verifies more than one code."""
        return self.nodes > 0


@dataclass(frozen=True)
class Row:
    """A prediction of a decoder, or of a tree that it did not run (`tree`; "": its own). step: in
    seconds; ar, recorded_ar: the baseline's step as predicted and as the run had it; bound: what
    bounds a forward on a machine that is not here, "" where costs were measured here."""

    recorded: Recorded
    prediction: Prediction
    step: StepSeconds
    baseline: str
    ar: float
    recorded_ar: float
    tree: str = ""
    bound: str = ""

    @property
    def ran(self) -> bool:
        return not (self.tree or math.isnan(self.recorded.speedup.value))

    @property
    def measured(self) -> Interval:
        return UNKNOWN if self.tree else self.recorded.speedup

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return math.nan if self.bound else self.prediction.speedup / self.measured.value - 1


def recorded_of(rows: pd.DataFrame, baselines: Sequence[str]) -> list[Recorded]:
    """Every decoder of a run with an image that came out, in the run's order. Of images that were
    timed where there are any, else of those for quality. Raises BenchError where none came out."""
    ok = rows[(rows.status == "ok") & (rows.protocol != "floor") & (rows.nfe > 0)]
    if ok.empty:
        raise BenchError("no image of this run came out: there is no acceptance to project from")
    found = []
    for name in ok.decoder.unique():
        timed, every = (f(ok[ok.decoder == name]) for f in (latency_rows, image_rows))
        used = timed if len(timed) else every
        found.append(_recorded(str(name), used, _speedup(name, ok, baselines)))
    return found


def _recorded(name: str, rows: pd.DataFrame, speedup: Interval) -> Recorded:
    first: Any = rows.iloc[0]
    lengths = [list(image) for image in rows.accepted]
    deepest = max((max(image, default=0) for image in lengths), default=0)
    depth = max(int(rows.tree_depth.max()), deepest)
    return Recorded(
        decoder=name,
        tree=str(first["tree"]),
        temperature=float(first["temperature"]),
        rows=1 if float(first["cfg"]) == 1 else 2,
        images=len(rows),
        reached=reach(lengths, depth) if depth else (),
        nodes=int(rows.tree_nodes.max()),
        calls=float(rows.drafter_calls.sum() / rows.nfe.sum()),
        speedup=speedup,
        step=step_of(rows),
        mal=float(rows.mal.mean()),
    )


def step_of(rows: pd.DataFrame) -> StepSeconds:
    """Mean seconds of a step's parts as a run's rows have them; NaN where they were not told apart
    (a step that is one launch)."""
    steps = float(rows.nfe.sum())
    totals = {name: float(rows[f"seconds_{name}"].sum()) for name in PARTS}
    return StepSeconds(
        prefill=float(rows.seconds_prefill.mean()),
        step=float((rows.seconds_total - rows.seconds_prefill).sum()) / steps,
        **{name: total / steps if total > 0 else math.nan for name, total in totals.items()},
    )


def _speedup(name: str, rows: pd.DataFrame, baselines: Sequence[str]) -> Interval:
    """Over the baseline of the same temperature and guidance; NaN where one of them was not timed,
    or for the baseline itself."""
    mine = rows[rows.decoder == name]
    for base in baselines:
        theirs = rows[rows.decoder == base]
        if base != name and len(theirs) and _settings(theirs) == _settings(mine):
            return paired_speedup(theirs, mine) or UNKNOWN
    return UNKNOWN


def _settings(rows: pd.DataFrame) -> tuple[float, float]:
    """Temperature and guidance of a decoder's rows."""
    return float(rows.temperature.iloc[0]), float(rows.cfg.iloc[0])
