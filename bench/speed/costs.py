"""Seconds of a step here: in place, from whole images; or piece by piece, from steps alone.

In place (any batch): a decoder's own image, its time after the prefill over its steps. Piece by
piece (batch 1): AR step, verification and the drafter's calls at a few sizes, as in
`bench.measure.pieces`, and what growing each tree takes beside them. They are measured apart from
any decoding, so that a prediction made of them can be wrong: that is what makes it a test of the
model.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.codes_only import codes_only
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.measure.pieces import Forward, State, ar_step, forward_state, repeated, state
from bench.outcome import Outcome, decode
from bench.speed.model import Baseline, Curve, SpeedError, StepCosts, StepSeconds
from bench.speed.parts import shape_of
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.backends.execution import Piece
from decoders.cache import BLOCK
from decoders.distribution import code_logits
from decoders.drafters.session import Tree
from decoders.noise import Noise

REPEATS, SETTLE, BUDGET = 40, 4, 5.0  # of a piece: repeats at most, first ones left out, seconds
LEAST = 5  # repeats however slow a piece is
FOLLOWS = {"ar": "ar", "expand": "expand", "advance": "verify"}  # what comes before a piece
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
    trees: Sequence[Tree],
) -> StepCosts:
    """Curves that reach as far as the built `trees` need; text: one encoded prompt. Pieces run as
    the model's backend runs a step."""
    shapes = [shape_of(tree) for tree in trees]
    nodes = sizes(max(s.nodes for s in shapes) + 1)
    widths = (1, *sizes(max((w for s in shapes for w in s.expands), default=1)))
    depths = sizes(max(s.depth for s in shapes) + 1)
    with torch.inference_mode():
        pieces = _pieces(model, drafter, sampling, text, nodes, widths, depths)
        for at, tree in enumerate(trees):
            pieces["grow", at] = repeated(
                model, Grow(tree=tree, sampling=sampling), _grow_state(model)
            )
        taken = _in_turns(pieces, Clock(model.device))
    return StepCosts(
        ar=taken["ar", 1],
        verify=Curve("verification", nodes, tuple(taken["verify", n] for n in nodes)),
        advance=Curve("reading codes", depths, tuple(taken["advance", n] for n in depths)),
        draft=Curve("drafting", widths, tuple(taken["expand", w] for w in widths)),
        grow={shape.name: taken["grow", at] for at, shape in enumerate(shapes)},
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


@dataclass
class Call:
    """A drafter's call, its logits not yet drawn from: that is the tree's work."""

    prepared: dict[Any, Any] = field(default_factory=dict)

    def pieces(self) -> list[Piece]:
        return [("draft", self.step)]

    def step(self, run: State) -> tuple[Tensor]:
        given = run.tensors
        return (run.session.expand(given["codes"], given["nodes"], given["parents"], 1),)


class Advance(Call):
    """The drafter takes in committed codes."""

    def step(self, run: State) -> tuple[Tensor]:
        given = run.tensors
        advance = run.session.advance
        return (advance(given["hidden"], given["codes"], given["count"], given["half"]),)


@dataclass
class Grow(Call):
    """Growing a tree with a drafter that costs nothing: drawing, ranking, ancestry."""

    tree: Any = None
    sampling: Any = None

    def step(self, run: State) -> tuple[Any, ...]:
        given = run.tensors
        noise = Noise(given["uniform"])
        return (self.tree.grow(run.session, given["logits"], self.sampling, noise, given["half"]),)


@dataclass
class Silent:
    """A draft session that answers at once, the same to everything."""

    root_code: Tensor  # [B]
    logits: Tensor  # [B, V]
    calls: int = 0

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        return self.logits

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        return self.logits[:, None].expand(-1, codes.shape[1], -1)  # [B, w, V]


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
        ("ar", 1): ar_step(model, sampling, text, _capacity(model, 1)),
    }
    for count in nodes:
        start = _state(model, sampling, text, count)
        found["verify", count] = repeated(model, Verify(model, sampling), start)
    for loop, name, counts in ((Advance, "advance", depths), (Call, "expand", widths)):
        for count in counts:
            start = _draft_state(model, begin(count), hidden, count)
            found[name, count] = repeated(model, loop(), start)
    return found


def _state(model: ImageModel, sampling: Sampling, text: TextFeatures, count: int) -> State:
    """`forward_state` with a cache as large as a loop's is half-way through an image, where it
    grows with the image."""
    start = forward_state(model, sampling, text, count)
    capacity = min(_capacity(model, count), start.cache.capacity)
    if capacity < start.cache.capacity:
        start.cache = model.target.new_cache(sampling.guidance_rows, capacity)
        start.tensors["mask"] = start.tensors["mask"][..., :capacity].contiguous()  # [R, T, S]
    return start


def _capacity(model: ImageModel, count: int) -> int:
    """Slots of a loop's cache half-way through an image, in steps of `count` codes a row."""
    target = model.target
    if model.execution is None or model.execution.grows:
        return int(target.prefix + target.length // 2 + count + BLOCK // 2)
    return int(target.prefix + target.length + count)


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
    }
    return state(place, count, tensors, session=session)


def _grow_state(model: ImageModel) -> State:
    """Half-way through an image, with logits of a random drafter."""
    target, place = model.target, model.device
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, target.vocab_size, generator=generator).to(place)  # [1, V]
    half = torch.full((1,), target.length // 2, device=place)
    uniform = Noise.for_prompts(0, ["growing"], target.length).uniform.to(place)
    tensors = {"logits": logits, "half": half, "uniform": uniform}
    return state(place, 1, tensors, session=Silent(torch.zeros_like(half), logits))


def _in_turns(pieces: Pieces, clock: Clock) -> dict[tuple[str, int], float]:
    """Median seconds of every piece, taken in turns so that drift hits all alike; where a round is
    slow there are fewer. Before a piece is timed, what comes before it in a decoding (FOLLOWS) runs
    once: its weights are then as near to, or as far from, the processor as they would be."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in pieces}
    first = {key[0]: key for key in reversed(pieces)}  # the smallest size of each kind
    began = time.perf_counter()
    for turn in range(SETTLE + REPEATS):
        for key, piece in pieces.items():
            before = FOLLOWS.get(key[0])
            if before is not None:
                pieces[key if before == key[0] else first[before]]()
            with clock.time("piece"):
                piece()
            seconds[key].append(clock.seconds["piece"])
        if turn >= LEAST and time.perf_counter() - began > BUDGET:
            break
    settled = 1 if turn < SETTLE + LEAST else SETTLE
    return {key: statistics.median(times[settled:]) for key, times in seconds.items()}
