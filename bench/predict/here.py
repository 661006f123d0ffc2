"""Predicted and measured: how well the speed model explains the rows of a run.

Acceptance is what the run recorded. Costs are measured now, apart from the run, on its machine. In
place (any batch): a decoder's own image, its time after the prefill over its steps. Piece by piece
(batch 1): an AR step, and the drafting and the verification of a decoder's own loop, as in
`decoders.pieces`; a prediction made of them can be wrong, which makes it a test of the model. What
the pieces leave out, the acceptance step, is the run's own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from bench.config.schedule import Cell
from bench.config.schema import StudyConfig
from bench.console import progress
from bench.cost.speed import SpeedError, StepSeconds, chain_depth, predict, shallower
from bench.data.errors import ConfigError, Failure, attempt
from bench.judge.paired import pairs
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.predict.recorded import PARTS, Recorded, Row, recorded_of
from bench.predict.steps import in_turns
from bench.run.outcome import Outcome, decode
from bench.run.session import codes_only
from decoders import pieces as timing
from decoders.api import Decoder, ImageModel, TextFeatures
from decoders.compose import build_decoder
from decoders.kinds import Count, require

log = logging.getLogger(__name__)
Costs = Literal["auto", "steps", "images"]
FEWEST = 2  # images that a decoder and its baseline both timed
REPEATS, SETTLE, BUDGET = 40, 4, 5.0  # of a piece: repeats at most, first ones left out, seconds
FOLLOWS = {"ar": "ar", "draft": "forward", "forward": "draft"}  # what comes before a piece
Loops = dict[tuple[str, int], tuple[Any, int]]  # (name, depth) -> a loop, codes that a step commits
Timed = tuple["_Decoder", StepSeconds, dict[int, StepSeconds]]  # AR's step, the decoder's by depth


@dataclass(frozen=True)
class PredictConfig:
    """`predict.*`."""

    costs: Costs = "auto"  # NAME steps (single ones), images (whole), or auto: steps where eager
    images: Count = 2  # timed images per decoder for predict.costs=images
    shorter: bool = True  # also what shorter chains would do

    def __post_init__(self) -> None:
        require(self, "predict.", ConfigError)


@dataclass(frozen=True)
class _Decoder:
    """A cell of the study, and what its run has of it."""

    cell: Cell
    recorded: Recorded

    @property
    def name(self) -> str:
        return self.cell.entry.name

    def built(self, model: ImageModel) -> Any:
        return build_decoder(model, self.cell.entry.spec, self.cell.sampling)


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
    eager = model.execution is None or model.execution.name == "eager"
    alone = settings.costs == "steps" or (settings.costs == "auto" and eager)
    found = {one.decoder: one for one in recorded_of(rows, config.baselines)}
    run = [_Decoder(cell, found[cell.entry.name]) for cell in cells if cell.entry.name in found]
    sections = []
    for base in (one for one in run if one.cell.entry.baseline):
        same = [o for o in run if o.cell.entry.spec.tree and o.cell.sampling == base.cell.sampling]
        sections.append((base, [one for one in same if _enough(base.name, one.name, rows)]))
    out: list[Row] = []
    with progress(sum(len(mine) for _, mine in sections), "costs", unit="decoder") as bar:
        for base, mine in (section for section in sections if section[1]):
            if alone:
                costs = _by_pieces(model, prompt, settings.shorter, mine, bar)
            else:
                image = partial(in_place, model, prompts=[prompt], seed=config.seed)
                costs = _by_images(model, partial(image, images=settings.images), base, mine, bar)
            for one, ar, steps in costs:
                own, *shorter = (_row(base, one, ar, *item, model) for item in steps.items())
                out += [own, *sorted(shorter, key=lambda row: -row.prediction.speedup)[:1]]
                bar.update()
    return out


def _enough(base: str, name: str, rows: pd.DataFrame) -> bool:
    """Whether both timed so many images that a row means something; else a warning."""
    count = len(pairs(*(rows[rows.decoder == one] for one in (base, name)))[1])
    if count < FEWEST:
        log.warning("%s and %s both timed %d images, %d are needed", base, name, count, FEWEST)
    return count >= FEWEST


def _row(
    base: _Decoder, one: _Decoder, ar: StepSeconds, depth: int, step: StepSeconds, model: ImageModel
) -> Row:
    """depth: 0, or of a shorter chain than the decoder's. Its acceptance is that of the recorded
    chain's first levels."""
    reached = one.recorded.reached
    reached = shallower(reached, depth or len(reached))
    made = predict(ar, step, reached, model.target.length)
    tree = f"chain(depth={depth}), not run" if depth else ""
    return Row(one.recorded, made, step, base.name, ar.step, base.recorded.step.step, tree)


def _by_images(
    model: ImageModel, timed: Any, base: _Decoder, decoders: Sequence[_Decoder], bar: Any
) -> Iterator[Timed]:
    """Costs from whole images."""
    ar = timed(base.built(model))
    for one in decoders:
        bar.set_postfix_str(one.name, False)
        yield one, ar, {0: timed(one.built(model))}


def _by_pieces(
    model: ImageModel, prompt: str, shorter: bool, decoders: Sequence[_Decoder], bar: Any
) -> Iterator[Timed]:
    """Costs from steps alone, measured once for each drafter; a shorter chain's acceptance step is
    taken to cost the same."""
    text = model.text.encode([prompt])
    loops: dict[str, Loops] = {}
    for one in decoders:
        loops.setdefault(str(one.cell.entry.spec.drafter), {}).update(_loops(one, model, shorter))
    costs: dict[str, tuple[StepSeconds, dict[tuple[str, int], StepSeconds]]] = {}
    for one in decoders:
        bar.set_postfix_str(one.name, False)
        drafter, accept = str(one.cell.entry.spec.drafter), one.recorded.step.accept
        if math.isnan(accept):
            raise SpeedError(
                f"the rows of {one.name} do not tell the parts of a step apart (it was one "
                "launch); set predict.costs=images"
            )
        if drafter not in costs:
            costs[drafter] = piece_by_piece(model, loops[drafter], text)
        ar, steps = costs[drafter]
        mine = {depth: step for (name, depth), step in steps.items() if name == one.name}
        yield one, ar, {d: replace(s, step=s.step + accept, accept=accept) for d, s in mine.items()}


def _loops(one: _Decoder, model: ImageModel, shorter: bool) -> Loops:
    """The decoder (depth 0) and, where it drafts a chain, the same with fewer levels, unless its
    loop refuses them; with the codes that a step commits."""
    decoder, committed = one.built(model), max(1, round(one.recorded.mal))
    found: Loops = {(one.name, 0): (decoder, committed)}
    for depth in range(1, chain_depth(decoder.tree) if shorter else 0):
        loop = one.cell.entry.spec.loop
        made = attempt(partial(timing.shallower, decoder, loop, depth))
        if not isinstance(made, Failure):
            found[one.name, depth] = made, min(committed, depth + 1)
    return found


def in_place(
    model: ImageModel, decoder: Decoder, prompts: Sequence[str], seed: int, images: int
) -> StepSeconds:
    """A decoder's prefill and step from `images` decodings of the prompts (one batch), the fastest
    of them: the first one may warm up, and others of this machine only ever slow one down."""
    clock, meter, model = Clock(model.device), MemoryMeter(model.device), codes_only(model)
    found = [
        _step(decode(model, decoder, list(prompts), seed, clock=clock, meter=meter))
        for _ in range(images)
    ]
    return min(found, key=lambda step: step.step)


def _step(outcome: Outcome) -> StepSeconds:
    trace = outcome.generation.trace
    steps = int(trace.target_calls.max())
    if steps < 1:
        raise SpeedError("an image of a single code has no step to time")
    prefill = trace.seconds.get("prefill", math.nan)
    parts = {name: trace.seconds.get(name, math.nan) / steps for name in PARTS}
    return StepSeconds(prefill, (outcome.seconds_total - prefill) / steps, **parts)


def piece_by_piece(
    model: ImageModel, loops: Loops, text: TextFeatures
) -> tuple[StepSeconds, dict[tuple[str, int], StepSeconds]]:
    """AR's step, and those of loops of one drafter and one sampling up to their forwards, the
    acceptance step left out. text: one encoded prompt. Pieces run as the model's backend runs a
    step. SpeedError if a plug-in's loop does not let its pieces be timed."""
    pieces: dict[tuple[str, Any], Any] = {}  # by kind and loop, None where all share it
    with torch.inference_mode():
        for key, (loop, committed) in loops.items():
            if not hasattr(loop, "standing"):
                raise SpeedError(
                    f"steps of {key[0]} cannot be timed alone ({type(loop).__name__} has no "
                    "`standing`); set predict.costs=images"
                )
            made = timing.speculative_step(loop, text, committed)
            pieces["draft", key], pieces["forward", key] = made
        ar = pieces["ar", None] = timing.ar_steps(model, loop.sampling, text)
        pieces["prefill", None], pieces["begin", None] = timing.prefills(loop, text)
        turns = {(kind, loop): (piece, pieces.get((FOLLOWS.get(kind, ""), loop)))
                 for (kind, loop), piece in pieces.items()}  # fmt: skip
        every = in_turns(turns, Clock(model.device), REPEATS, SETTLE, BUDGET)
    # Lower quartiles: what else runs on a machine only adds time.
    taken = {key: float(np.quantile(times, 0.25)) for key, times in every.items()}
    prefill, begin = taken["prefill", None], taken["begin", None]
    parts = {key: (taken["draft", key], taken["forward", key]) for key in loops}
    alone = StepSeconds(prefill, taken["ar", None] / ar.count)
    return alone, {key: StepSeconds(prefill + begin, d + f, d, f) for key, (d, f) in parts.items()}
