"""Predicted and measured: how well the speed model explains the rows of a run.

Acceptance is what the run recorded. Costs are measured now, apart from the run: piece by piece
(`bench.cost.predict.timed`), or in place on an image. What the pieces leave out, the acceptance
step, is the run's own. The machine must be the run's.
"""

from __future__ import annotations

import logging
import math
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from bench.config.schedule import Cell
from bench.config.schema import StudyConfig
from bench.console import progress
from bench.cost.predict.timed import PARTS, in_place, piece_by_piece
from bench.cost.speed import (
    Prediction,
    SpeedError,
    StepCosts,
    StepSeconds,
    TreeShape,
    predict,
    reach,
    shallower,
    step_seconds,
)
from bench.data.errors import ConfigError, unknown
from bench.judge.paired import latency_rows, paired_speedup, pairs
from bench.run.outcome import Failure, attempt
from decoders import pieces as timing
from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.kinds import Count, require
from metrics.stats import Interval

log = logging.getLogger(__name__)
COSTS = ("auto", "steps", "images")
STEP = ("step", *PARTS)
FEWEST = 2  # images that a decoder and its baseline both timed
NOT_RUN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class PredictConfig:
    """`predict.*`."""

    costs: str = "auto"  # NAME steps (single ones), images (whole), or auto: steps where eager
    images: Count = 2  # timed images per decoder for predict.costs=images
    shorter: bool = True  # also what shorter chains would do

    def __post_init__(self) -> None:
        if self.costs not in COSTS:
            raise ConfigError(unknown("predict.costs", self.costs, COSTS))
        require(self, "predict.", ConfigError)


@dataclass(frozen=True)
class Row:
    """A decoder of the run. measured: paired over AR; NaN for a tree that was not run. step: as
    predicted; recorded: what the run charged to a step and its parts. ar: the baseline's name, its
    step as measured now (seconds) and as the run had it."""

    decoder: str
    tree: str
    prediction: Prediction
    measured: Interval
    step: StepSeconds
    recorded: StepSeconds
    ar: tuple[str, float, float]

    @property
    def ran(self) -> bool:
        return not math.isnan(self.measured.value)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.prediction.speedup / self.measured.value - 1


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """predicted.csv: one row a decoder; seconds are those of a step."""
    out = []
    for row in rows:
        line: dict[str, Any] = {
            "decoder": row.decoder,
            "tree": row.tree,
            "codes_a_step": row.prediction.codes,
            "steps": row.prediction.steps,
            "predicted": row.prediction.speedup,
            "measured": row.measured.value,
            "measured_lo": row.measured.lo,
            "measured_hi": row.measured.hi,
            "error": row.error,
        }
        for name in STEP:
            line[f"predicted_{name}"] = getattr(row.step, name)
            line[f"recorded_{name}"] = getattr(row.recorded, name) if row.ran else math.nan
        line["baseline"], line["predicted_ar"], line["recorded_ar"] = row.ar
        out.append(line)
    return pd.DataFrame(out)


def rows_of(
    config: StudyConfig,
    settings: PredictConfig,
    model: ImageModel,
    cells: Sequence[Cell],
    rows: pd.DataFrame,
    prompt: str,
) -> list[Row]:
    """Predictions of every decoder that drafts, section by section (one sampling, one baseline).

    rows: every latency row that came out; prompt: what costs are measured on. Raises SpeedError and
    what decoders raise.
    """
    costs = settings.costs
    if costs == "auto":
        eager = getattr(model.execution, "name", "eager") == "eager"
        costs = "steps" if eager else "images"
    recorded = {cell.entry.name: _Recorded.of(cell, rows) for cell in cells}
    drafting = [recorded[c.entry.name] for c in cells if c.entry.spec.tree is not None]
    sections = [
        (base, [r for r in drafting if r.cell.sampling == base.cell.sampling and r.enough(base)])
        for base in recorded.values()
        if base.cell.entry.baseline
    ]
    out: list[Row] = []
    with progress(sum(len(mine) for _, mine in sections), "costs", unit="decoder") as bar:
        for base, mine in sections:
            if not mine:
                continue
            section = _Section(config, settings, model, prompt, base, recorded_step(base.images))
            out += (
                section.by_pieces(mine, bar) if costs == "steps" else section.by_images(mine, bar)
            )
    return out


def recorded_step(rows: pd.DataFrame) -> StepSeconds:
    """Mean seconds of a step's parts as a run's rows have them; NaN where they were not told apart
    (a step that is one launch)."""
    steps = float(rows.nfe.sum())

    def part(name: str) -> float:
        total = float(rows[f"seconds_{name}"].sum())
        return total / steps if total > 0 else math.nan

    whole = float((rows.seconds_total - rows.seconds_prefill).sum()) / steps
    return StepSeconds(
        prefill=float(rows.seconds_prefill.mean()),
        step=whole,
        draft=part("draft"),
        forward=part("forward"),
        accept=part("accept"),
    )


@dataclass(frozen=True)
class _Recorded:
    """What the run has of a cell. timed: its rows, each image as often as it was timed; images: one
    row each."""

    cell: Cell
    timed: pd.DataFrame
    images: pd.DataFrame

    @classmethod
    def of(cls, cell: Cell, rows: pd.DataFrame) -> _Recorded:
        timed = rows[rows.decoder == cell.entry.name]
        return cls(cell, timed, latency_rows(timed))

    @property
    def name(self) -> str:
        return self.cell.entry.name

    @property
    def drafter(self) -> str:
        return str(self.cell.entry.spec.drafter)

    @property
    def committed(self) -> int:
        """Codes that a step commits."""
        return max(1, round(float(self.images.mal.mean())))

    def reached(self, depth: int) -> tuple[float, ...]:
        return reach(self.images.accepted, depth)

    def enough(self, base: _Recorded) -> bool:
        """Whether both timed so many images that a row means something; else a warning."""
        count = len(pairs(base.timed, self.timed)[1])
        if count < FEWEST:
            names = base.name, self.name
            log.warning("%s and %s both timed %d images, %d are needed", *names, count, FEWEST)
        return count >= FEWEST


@dataclass(frozen=True)
class _Section:
    """Decoders of one sampling and their baseline; ar: what the run charged to a step of it."""

    config: StudyConfig
    settings: PredictConfig
    model: ImageModel
    prompt: str
    base: _Recorded
    ar: StepSeconds

    def by_pieces(self, decoders: Sequence[_Recorded], bar: Any) -> list[Row]:
        """Costs from steps alone, measured once for each drafter."""
        out: list[Row] = []
        built = {one.name: self._built(one) for one in decoders}
        text = self.model.text.encode([self.prompt])
        costs: dict[str, StepCosts] = {}
        for one in decoders:
            bar.set_postfix_str(one.name, False)
            recorded = recorded_step(one.images)
            if math.isnan(recorded.accept):
                raise SpeedError(
                    f"the rows of {one.name} do not tell the parts of a step apart (it was one "
                    "launch); set predict.costs=images"
                )
            if one.drafter not in costs:
                same = [other for other in decoders if other.drafter == one.drafter]
                loops = ChainMap(*(self._loops(other, built[other.name]) for other in same))
                costs[one.drafter] = piece_by_piece(self.model, dict(loops), text)
            pieces, shape = costs[one.drafter], TreeShape.of(built[one.name].tree)
            ar = StepSeconds(pieces.prefill, pieces.ar)
            step = step_seconds(pieces, one.name, recorded.accept)
            out.append(self._row(one, shape, ar, step, recorded))
            if self.settings.shorter and shape.chain:
                out += self._best_chain(one, shape, ar, pieces, recorded)
            bar.update()
        return out

    def by_images(self, decoders: Sequence[_Recorded], bar: Any) -> list[Row]:
        """Costs from whole images."""
        ar = self._in_place(self._built(self.base))
        out: list[Row] = []
        for one in decoders:
            bar.set_postfix_str(one.name, False)
            decoder, recorded = self._built(one), recorded_step(one.images)
            step = self._in_place(decoder)
            out.append(self._row(one, TreeShape.of(decoder.tree), ar, step, recorded))
            bar.update()
        return out

    def _built(self, one: _Recorded) -> Any:
        return build_decoder(self.model, one.cell.entry.spec, one.cell.sampling)

    def _in_place(self, decoder: Any) -> StepSeconds:
        return in_place(self.model, decoder, [self.prompt], self.config.seed, self.settings.images)

    def _loops(self, one: _Recorded, decoder: Any) -> dict[str, tuple[Any, int]]:
        """The decoder and, where it drafts a chain, the same with fewer levels, unless its loop
        refuses them; by name, with the codes that a step commits."""
        shape, committed = TreeShape.of(decoder.tree), one.committed
        found = {one.name: (decoder, committed)}
        if self.settings.shorter and shape.chain:
            loop = one.cell.entry.spec.loop
            for depth in range(1, shape.depth):
                made = attempt(partial(timing.shallower, decoder, loop, depth))
                if not isinstance(made, Failure):
                    found[_cut(one.name, depth)] = made, min(committed, depth + 1)
        return found

    def _row(
        self,
        one: _Recorded,
        shape: TreeShape,
        ar: StepSeconds,
        step: StepSeconds,
        recorded: StepSeconds,
    ) -> Row:
        """The decoder's row."""
        made = predict(ar, step, one.reached(shape.depth), self.model.target.length)
        measured = paired_speedup(self.base.timed, one.timed)
        assert measured is not None, "`enough` images"
        return Row(one.name, shape.name, made, measured, step, recorded, self._ar(ar))

    def _ar(self, now: StepSeconds) -> tuple[str, float, float]:
        return self.base.name, now.step, self.ar.step

    def _best_chain(
        self,
        one: _Recorded,
        shape: TreeShape,
        ar: StepSeconds,
        pieces: StepCosts,
        recorded: StepSeconds,
    ) -> list[Row]:
        """The chain of fewer levels that would be fastest: its acceptance is that of the recorded
        chain's first levels, its acceptance step is taken to cost the same."""
        reached, length = one.reached(shape.depth), self.model.target.length
        found: list[Row] = []
        for depth in range(1, shape.depth):
            name = _cut(one.name, depth)
            if name not in pieces.draft:
                continue
            step = step_seconds(pieces, name, recorded.accept)
            made = predict(ar, step, shallower(reached, depth), length)
            tree = f"chain(depth={depth}), not run"
            found.append(Row(one.name, tree, made, NOT_RUN, step, recorded, self._ar(ar)))
        return [max(found, key=lambda row: row.prediction.speedup)] if found else []


def _cut(name: str, depth: int) -> str:
    """What the costs call a decoder's chain of fewer levels."""
    return f"{name}, {depth} levels"
