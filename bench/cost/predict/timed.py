"""Seconds of a step here: in place, from whole images; or piece by piece, from steps alone.

In place (any batch): a decoder's own image, its time after the prefill over its steps. Piece by
piece (batch 1): an AR step, and the drafting and the verification of a decoder's own loop, as in
`decoders.pieces`. They are measured apart from any decoding, so that a prediction made of them
can be wrong: that is what makes it a test of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bench.cost.predict.recorded import PARTS
from bench.cost.predict.steps import in_turns
from bench.cost.speed import SpeedError, StepCosts, StepSeconds
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.run.outcome import Outcome, decode
from bench.run.session import codes_only
from decoders.api import Decoder, ImageModel, TextFeatures
from decoders.pieces import ar_steps, prefills, speculative_step

REPEATS, SETTLE, BUDGET = 40, 4, 5.0  # of a piece: repeats at most, first ones left out, seconds
Pieces = dict[tuple[str, str], Callable[[], Any]]  # by kind and loop, "" where all share it
FOLLOWS = {"ar": "ar", "draft": "forward", "forward": "draft"}  # what comes before a piece


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
    model: ImageModel, loops: Mapping[str, tuple[Any, int]], text: TextFeatures
) -> StepCosts:
    """Costs of loops of one drafter and one sampling, by their names; with each, how many codes the
    step before committed. text: one encoded prompt. Pieces run as the model's backend runs a step.
    SpeedError if a plug-in's loop does not let its pieces be timed."""
    pieces: Pieces = {}
    with torch.inference_mode():
        for name, (loop, committed) in loops.items():
            if not hasattr(loop, "standing"):
                raise SpeedError(
                    f"steps of {name} cannot be timed alone ({type(loop).__name__} has no "
                    "`standing`); set predict.costs=images"
                )
            made = speculative_step(loop, text, committed)
            pieces["draft", name], pieces["forward", name] = made
        ar = pieces["ar", ""] = ar_steps(model, loop.sampling, text)
        pieces["prefill", ""], pieces["begin", ""] = prefills(loop, text)
        turns = {(kind, loop): (piece, pieces.get((FOLLOWS.get(kind, ""), loop)))
                 for (kind, loop), piece in pieces.items()}  # fmt: skip
        every = in_turns(turns, Clock(model.device), REPEATS, SETTLE, BUDGET)
    # Lower quartiles: what else runs on a machine only adds time.
    taken = {key: float(np.quantile(times, 0.25)) for key, times in every.items()}
    draft, forward = ({n: taken[part, n] for n in loops} for part in ("draft", "forward"))
    step = taken["ar", ""] / ar.count
    return StepCosts(step, taken["prefill", ""], taken["begin", ""], draft, forward)
