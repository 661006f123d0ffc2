"""Predicted beside measured: how well the speed model explains the rows of a run.

Acceptance is what the run recorded. Costs are measured now, apart from the run: piece by piece
(`bench.predict.costs`), or in place on an image. What the pieces leave out, the acceptance step, is
the run's own. The machine must be the run's.
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

from bench.config.schema import StudyConfig
from bench.console import progress
from bench.errors import ConfigError, unknown
from bench.judge.paired import latency_rows, paired_speedup, pairs
from bench.predict.costs import PARTS, baseline_of, in_place, piece_by_piece
from bench.predict.model import (
    Baseline,
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
from bench.predict.parts import Workshop, shape_of
from bench.predict.recorded import recorded_step
from bench.run.outcome import Failure, attempt
from bench.run.schedule import Cell
from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.kinds import Count, require
from decoders.propose.trees.chain import Chain
from metrics.stats import Interval

log = logging.getLogger(__name__)
COSTS = ("auto", "steps", "images")
FEWEST = 2  # images that a decoder and its baseline both timed


@dataclass(frozen=True)
class PredictConfig:
    """costs: of steps alone, of whole images, or auto: steps where they run eagerly. images: timed
    a decoder, for costs=images. shorter: also what chains would do with fewer levels."""

    costs: str = "auto"
    images: Count = 2
    shorter: bool = True

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


def rows_of(
    config: StudyConfig,
    told: PredictConfig,
    model: ImageModel,
    cells: Sequence[Cell],
    rows: pd.DataFrame,
    prompt: str,
) -> list[Row]:
    """Predictions of every decoder that drafts, section by section (one sampling, one baseline).

    rows: every latency row that came out; prompt: what costs are measured on. Raises SpeedError and
    what decoders raise.
    """
    costs = told.costs
    if costs == "auto":
        eager = getattr(model.execution, "name", "eager") == "eager"
        costs = "steps" if eager else "images"
    out: list[Row] = []
    drafting = [c for c in cells if c.entry.spec.tree is not None]
    sections = [
        (base, [c for c in drafting if c.sampling == base.sampling and _enough(base, c, rows)])
        for base in cells
        if base.entry.baseline
    ]
    with progress(sum(len(mine) for _, mine in sections), "costs", unit="decoder") as bar:
        for base, mine in sections:
            if not mine:
                continue
            section = _Section(config, told, model, rows, prompt, base)
            found = (
                section.by_pieces(mine, bar) if costs == "steps" else section.by_images(mine, bar)
            )
            out += found
    return out


def _enough(base: Cell, cell: Cell, rows: pd.DataFrame) -> bool:
    """Whether both timed so many images that a row means something; else a warning."""
    names = base.entry.name, cell.entry.name
    found = len(pairs(*(rows[rows.decoder == name] for name in names))[1])
    if found < FEWEST:
        log.warning("%s and %s both timed %d images, %d are needed", *names, found, FEWEST)
    return found >= FEWEST


@dataclass(frozen=True)
class _Section:
    """Decoders of one sampling, beside their baseline."""

    config: StudyConfig
    told: PredictConfig
    model: ImageModel
    rows: pd.DataFrame
    prompt: str
    base: Cell

    def by_pieces(self, cells: Sequence[Cell], bar: Any) -> list[Row]:
        """Costs from steps alone, measured once for each drafter."""
        out: list[Row] = []
        built: dict[str, Any] = {
            c.entry.name: build_decoder(self.model, c.entry.spec, c.sampling) for c in cells
        }
        text = self.model.text.encode([self.prompt])
        costs: dict[str, StepCosts] = {}
        for cell in cells:
            name, drafter = cell.entry.name, str(cell.entry.spec.drafter)
            bar.set_postfix_str(name, False)
            recorded = recorded_step(self._mine(cell))
            if math.isnan(recorded.accept):
                raise SpeedError(
                    f"the rows of {name} do not tell the parts of a step apart (it was one launch);"
                    " set predict.costs=images"
                )
            if drafter not in costs:
                same = [c for c in cells if str(c.entry.spec.drafter) == drafter]
                loops = [self._loops(c, built[c.entry.name]) for c in same]
                costs[drafter] = piece_by_piece(self.model, dict(ChainMap(*loops)), text)
            pieces, shape = costs[drafter], shape_of(built[name].tree)
            baseline = Baseline(pieces.prefill, pieces.ar)
            step = step_seconds(pieces, name, recorded.accept)
            out.append(self._row(cell, shape, baseline, step, recorded))
            if self.told.shorter and shape.chain:
                out += self._best_chain(cell, shape, baseline, pieces, recorded)
            bar.update()
        return out

    def _loops(self, cell: Cell, decoder: Any) -> dict[str, tuple[Any, int]]:
        """The decoder and, where it drafts a chain, the same with fewer levels, unless its loop
        refuses them; by name, with the codes that a step commits."""
        name, shape = cell.entry.name, shape_of(decoder.tree)
        committed = max(1, round(float(self._mine(cell).mal.mean())))
        found = {name: (decoder, committed)}
        if self.told.shorter and shape.chain:
            shop = Workshop(self.model, cell.sampling, cell.entry.spec.loop, decoder.drafter)
            for depth in range(1, shape.depth):
                made = attempt(partial(shop.decoder, Chain(depth=depth), decoder.rule))
                if not isinstance(made, Failure):
                    found[_cut(name, depth)] = made, min(committed, depth + 1)
        return found

    def by_images(self, cells: Sequence[Cell], bar: Any) -> list[Row]:
        """Costs from whole images."""
        seed, images = self.config.seed, self.told.images

        def timed(cell: Cell) -> tuple[Any, StepSeconds]:
            decoder: Any = build_decoder(self.model, cell.entry.spec, cell.sampling)
            return decoder, in_place(self.model, decoder, [self.prompt], seed, images)

        baseline = baseline_of(timed(self.base)[1])
        out: list[Row] = []
        for cell in cells:
            bar.set_postfix_str(cell.entry.name, False)
            decoder, step = timed(cell)
            recorded = recorded_step(self._mine(cell))
            out += [self._row(cell, shape_of(decoder.tree), baseline, step, recorded)]
            bar.update()
        return out

    def _timed(self, cell: Cell) -> pd.DataFrame:
        """A cell's rows, each image as often as it was timed."""
        return self.rows[self.rows.decoder == cell.entry.name]

    def _mine(self, cell: Cell) -> pd.DataFrame:
        """A cell's timed images, one row each."""
        return latency_rows(self._timed(cell))

    def _row(
        self,
        cell: Cell,
        shape: TreeShape,
        baseline: Baseline,
        step: StepSeconds,
        recorded: StepSeconds,
    ) -> Row:
        """The decoder's row."""
        reached = reach(self._mine(cell).accepted, shape.depth)
        made = predict(baseline, step, reached, self.model.target.length)
        found = paired_speedup(self._timed(self.base), self._timed(cell))
        assert found is not None, "`_enough` images"
        ar = self._ar(baseline)
        return Row(cell.entry.name, shape.name, made, found, step, recorded, ar)

    def _ar(self, baseline: Baseline) -> tuple[str, float, float]:
        return self.base.entry.name, baseline.step, recorded_step(self._mine(self.base)).step

    def _best_chain(
        self,
        cell: Cell,
        shape: TreeShape,
        baseline: Baseline,
        pieces: StepCosts,
        recorded: StepSeconds,
    ) -> list[Row]:
        """The chain of fewer levels that would be fastest: its acceptance is that of the recorded
        chain's first levels, its acceptance step is taken to cost the same."""
        name, reached = cell.entry.name, reach(self._mine(cell).accepted, shape.depth)
        ran, ar = Interval(math.nan, math.nan, math.nan), self._ar(baseline)
        found: list[Row] = []
        for depth in range(1, shape.depth):
            if _cut(name, depth) not in pieces.draft:
                continue
            step = step_seconds(pieces, _cut(name, depth), recorded.accept)
            made = predict(baseline, step, shallower(reached, depth), self.model.target.length)
            tree = f"chain(depth={depth}), not run"
            found.append(Row(name, tree, made, ran, step, recorded, ar))
        return [max(found, key=lambda row: row.prediction.speedup)] if found else []


def _cut(name: str, depth: int) -> str:
    """What the costs call a decoder's chain of fewer levels."""
    return f"{name}, {depth} levels"


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
        for name in ("step", *PARTS):
            line[f"predicted_{name}"] = getattr(row.step, name)
            line[f"recorded_{name}"] = getattr(row.recorded, name) if row.ran else math.nan
        line["baseline"], line["predicted_ar"], line["recorded_ar"] = row.ar
        out.append(line)
    return pd.DataFrame(out)
