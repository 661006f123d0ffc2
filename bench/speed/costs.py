"""Seconds of a step here: in place, from whole images; or piece by piece, from steps alone.

In place (any batch): a decoder's own image, its time after the prefill over its steps. Piece by
piece (batch 1): the pieces of `bench.measure.pieces` at a few sizes: AR step, verification, the
drafter's calls. They are measured apart from any decoding, so that a prediction made of them can be
wrong: that is what makes it a test of the model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.codes_only import codes_only
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.measure.pieces import Draft, Forward, State, drawn, forward_state, repeated, state
from bench.outcome import Outcome, decode
from bench.speed.model import Baseline, Curve, SpeedError, StepCosts, StepSeconds, TreeShape
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.cache import BLOCK
from decoders.distribution import code_logits

REPEATS, SETTLE, BUDGET = 40, 4, 5.0  # of a piece: repeats at most, first ones left out, seconds
LEAST = 5  # repeats however slow a piece is
FOLLOWS = ("ar", "expand")  # pieces that come several times in a row
GROWTH = (2, 3, 5, 9, 17, 33, 65, 129)  # codes a row at which curves are measured


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


PARTS = ("draft", "verify", "accept")


def baseline_of(step: StepSeconds) -> Baseline:
    """AR as measured in place."""
    return Baseline(step.prefill, step.step)


def piece_by_piece(
    model: ImageModel,
    drafter: Any,
    sampling: Sampling,
    text: TextFeatures,
    shapes: Sequence[TreeShape],
) -> StepCosts:
    """Curves that reach as far as the trees of `shapes` need; text: one encoded prompt. Pieces run
    as the model's backend runs a step."""
    nodes = sizes(max(s.nodes for s in shapes) + 1)
    widths = (1, *sizes(max((w for s in shapes for w in s.expands), default=1)))
    depths = sizes(max(s.depth for s in shapes) + 1)
    with torch.inference_mode():
        pieces = _pieces(model, drafter, sampling, text, nodes, widths, depths)
        taken = _in_turns(pieces, Clock(model.device))
    return StepCosts(
        ar=taken["ar", 1],
        verify=Curve("verification", nodes, tuple(taken["verify", n] for n in nodes)),
        advance=Curve("reading codes", depths, tuple(taken["advance", n] for n in depths)),
        draft=Curve("drafting", widths, tuple(taken["expand", w] for w in widths)),
        prefill=taken["prefill", 0],
        begin=taken["begin", 0],
    )


def sizes(largest: int) -> tuple[int, ...]:
    """Sizes of GROWTH below the largest, and the largest (at least 2)."""
    largest = max(largest, 2)
    return (*(n for n in GROWTH if n < largest), largest)


class Verify(Forward):
    """Target forward and guided logits: what a loop charges to verification. The distributions
    belong to acceptance."""

    def step(self, run: State) -> tuple[Tensor]:
        target, given = self.model.target, run.tensors
        hidden = target.forward_codes(
            given["codes"], given["grid"], given["slots"], given["mask"], run.cache
        )
        return (code_logits(target, hidden, self.sampling.cfg, given["grid"][:1] + 1),)


class Advance(Draft):
    """The drafter takes in committed codes; with the distribution of the root's children."""

    def step(self, run: State) -> tuple[Tensor]:
        given = run.tensors
        logits = run.session.advance(given["hidden"], given["codes"], given["count"], given["half"])
        return (drawn(logits[:, None], self.sampling, given["u"][:, :1]),)


Pieces = dict[tuple[str, int], Callable[[], Any]]


def _pieces(
    model: ImageModel,
    drafter: Any,
    sampling: Sampling,
    text: TextFeatures,
    nodes: Sequence[int],
    widths: Sequence[int],
    depths: Sequence[int],
) -> Pieces:
    """What is timed, by name and size, half-way through an image."""
    target, copies = model.target, sampling.guidance_rows
    cache = target.new_cache(copies, target.prefix)
    hidden = target.prefill(text, copies, cache)  # [R, P, D]

    def begin(most: int) -> Any:
        return drafter.begin(text, hidden, sampling, most, most)

    found: Pieces = {
        ("prefill", 0): lambda: target.prefill(text, copies, cache),
        ("begin", 0): lambda: begin(max(*widths, *depths)),
        ("ar", 1): repeated(model, Forward(model, sampling), _state(model, sampling, text, 1)),
    }
    for count in nodes:
        start = _state(model, sampling, text, count)
        found["verify", count] = repeated(model, Verify(model, sampling), start)
    for loop, name, counts in ((Advance, "advance", depths), (Draft, "expand", widths)):
        for count in counts:
            start = _draft_state(model, begin(count), hidden, count)
            found[name, count] = repeated(model, loop(sampling), start)
    return found


def _state(model: ImageModel, sampling: Sampling, text: TextFeatures, count: int) -> State:
    """`forward_state` with a cache as large as a loop's is half-way through an image, where it
    grows with the image."""
    start = forward_state(model, sampling, text, count)
    if model.execution is None or model.execution.grows:
        target = model.target
        half = target.prefix + target.length // 2 + count + BLOCK // 2
        capacity = min(half, start.cache.capacity)
        start.cache = target.new_cache(sampling.guidance_rows, capacity)
        start.tensors["mask"] = start.tensors["mask"][..., :capacity].contiguous()  # [R, T, S]
    return start


def _draft_state(model: ImageModel, session: Any, hidden: Tensor, count: int) -> State:
    """A session that has taken in a code, and `count` codes to take in or go on from; hidden
    [R, P, D]."""
    place = model.device
    one = torch.ones(1, dtype=torch.long, device=place)
    half = one * (model.target.length // 2)
    codes = torch.zeros(1, count, dtype=torch.long, device=place)
    last = hidden[:, -1:]  # [R, 1, D]
    session.advance(last, codes[:, :1], one, half)
    tensors = {
        "hidden": last.repeat(1, count, 1),  # [R, T, D]
        "codes": codes,
        "count": one * count,
        "half": half,
        "nodes": torch.arange(1, count + 1, device=place),
        "parents": torch.zeros_like(codes),
        "u": torch.full((1, count), 0.5, device=place),
    }
    return state(place, count, tensors, session=session)


def _in_turns(pieces: Pieces, clock: Clock) -> dict[tuple[str, int], float]:
    """Median seconds of every piece, taken in turns so that drift hits all alike; where a round is
    slow there are fewer. What follows its own kind in a decoding (FOLLOWS) is run once before it is
    timed: its weights are then as near to the processor as they would be."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in pieces}
    spent = 0.0
    for turn in range(SETTLE + REPEATS):
        for key, piece in pieces.items():
            if key[0] in FOLLOWS:
                piece()
            with clock.time("piece"):
                piece()
            seconds[key].append(clock.seconds["piece"])
            spent += clock.seconds["piece"] * (1 + (key[0] in FOLLOWS))
        if turn >= LEAST and spent > BUDGET:
            break
    settled = 1 if turn < SETTLE + LEAST else SETTLE
    return {key: statistics.median(times[settled:]) for key, times in seconds.items()}
