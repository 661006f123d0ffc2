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
from bench.cost.predict.recorded import Recorded, Row, recorded_of
from bench.cost.predict.timed import in_place, piece_by_piece
from bench.cost.speed import (
    SpeedError,
    StepCosts,
    StepSeconds,
    TreeShape,
    predict,
    shallower,
    step_seconds,
)
from bench.data.errors import ConfigError, unknown
from bench.judge.speedup import pairs
from bench.run.outcome import Failure, attempt
from decoders import pieces as timing
from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.kinds import Count, require

log = logging.getLogger(__name__)
COSTS = ("auto", "steps", "images")
FEWEST = 2  # images that a decoder and its baseline both timed


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
        eager = model.execution is None or model.execution.name == "eager"
        costs = "steps" if eager else "images"
    found = {one.decoder: one for one in recorded_of(rows, config.baselines)}
    run = [_Decoder(cell, found[cell.entry.name]) for cell in cells if cell.entry.name in found]
    drafting = [one for one in run if one.cell.entry.spec.tree is not None]
    sections = [
        (base, [o for o in drafting if o.cell.sampling == base.cell.sampling])
        for base in run
        if base.cell.entry.baseline
    ]
    sections = [(b, [o for o in mine if _enough(b.name, o.name, rows)]) for b, mine in sections]
    out: list[Row] = []
    with progress(sum(len(mine) for _, mine in sections), "costs", unit="decoder") as bar:
        for base, mine in sections:
            section = _Section(config, settings, model, prompt, base)
            if mine:
                work = section.by_pieces if costs == "steps" else section.by_images
                out += work(mine, bar)
    return out


def _enough(base: str, name: str, rows: pd.DataFrame) -> bool:
    """Whether both timed so many images that a row means something; else a warning."""
    count = len(pairs(*(rows[rows.decoder == one] for one in (base, name)))[1])
    if count < FEWEST:
        log.warning("%s and %s both timed %d images, %d are needed", base, name, count, FEWEST)
    return count >= FEWEST


@dataclass(frozen=True)
class _Decoder:
    """A cell of the study, and what its run has of it."""

    cell: Cell
    recorded: Recorded

    @property
    def name(self) -> str:
        return self.cell.entry.name

    @property
    def drafter(self) -> str:
        return str(self.cell.entry.spec.drafter)

    @property
    def committed(self) -> int:
        """Codes that a step commits."""
        return max(1, round(self.recorded.mal))


@dataclass(frozen=True)
class _Section:
    """Decoders of one sampling and their baseline."""

    config: StudyConfig
    settings: PredictConfig
    model: ImageModel
    prompt: str
    base: _Decoder

    def by_pieces(self, decoders: Sequence[_Decoder], bar: Any) -> list[Row]:
        """Costs from steps alone, measured once for each drafter."""
        out: list[Row] = []
        built = {one.name: self._built(one) for one in decoders}
        text = self.model.text.encode([self.prompt])
        costs: dict[str, StepCosts] = {}
        for one in decoders:
            bar.set_postfix_str(one.name, False)
            accept = one.recorded.step.accept
            if math.isnan(accept):
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
            out.append(self._row(one, ar, step_seconds(pieces, one.name, accept)))
            # The chain of fewer levels that would be fastest: its acceptance is that of the
            # recorded chain's first levels, its acceptance step is taken to cost the same.
            shorter = [
                self._row(one, ar, step_seconds(pieces, name, accept), depth)
                for depth, name in ((d, _cut(one.name, d)) for d in range(1, shape.depth))
                if name in pieces.draft
            ]
            out += sorted(shorter, key=lambda row: -row.prediction.speedup)[:1]
            bar.update()
        return out

    def by_images(self, decoders: Sequence[_Decoder], bar: Any) -> list[Row]:
        """Costs from whole images."""
        ar = self._in_place(self.base)
        out: list[Row] = []
        for one in decoders:
            bar.set_postfix_str(one.name, False)
            out.append(self._row(one, ar, self._in_place(one)))
            bar.update()
        return out

    def _built(self, one: _Decoder) -> Any:
        return build_decoder(self.model, one.cell.entry.spec, one.cell.sampling)

    def _in_place(self, one: _Decoder) -> StepSeconds:
        images = self.settings.images
        return in_place(self.model, self._built(one), [self.prompt], self.config.seed, images)

    def _loops(self, one: _Decoder, decoder: Any) -> dict[str, tuple[Any, int]]:
        """The decoder and, where it drafts a chain, the same with fewer levels, unless its loop
        refuses them; by name, with the codes that a step commits."""
        shape = TreeShape.of(decoder.tree)
        found = {one.name: (decoder, one.committed)}
        if self.settings.shorter and shape.chain:
            loop = one.cell.entry.spec.loop
            for depth in range(1, shape.depth):
                made = attempt(partial(timing.shallower, decoder, loop, depth))
                if not isinstance(made, Failure):
                    found[_cut(one.name, depth)] = made, min(one.committed, depth + 1)
        return found

    def _row(self, one: _Decoder, ar: StepSeconds, step: StepSeconds, depth: int = 0) -> Row:
        """depth: of a shorter chain than the decoder's."""
        reached = one.recorded.reached
        made = predict(
            ar, step, shallower(reached, depth) if depth else reached, self.model.target.length
        )
        tree = f"chain(depth={depth}), not run" if depth else ""
        now, then = ar.step, self.base.recorded.step.step
        return Row(one.recorded, made, step, self.base.name, now, then, tree)


def _cut(name: str, depth: int) -> str:
    """What the costs call a decoder's chain of fewer levels."""
    return f"{name}, {depth} levels"
