"""What speed-up follows from the costs of a step and from how deep its drafts are accepted.

Why: a speed-up that is measured but not explained may be luck of the machine, and one that can be
predicted need not be measured for every tree. Nothing here touches a device: numbers in, numbers
out.

    codes a step  = 1 + sum_d P(accepted >= d)                     (the bonus or corrected code: 1)
    seconds a step = draft(tree) + forward(N + 1) + accept
    image          = prefill + steps(L - 1 codes) x seconds a step
    speed-up       = image of AR / image of the decoder            ~ MAL x t_AR / t_step

`steps` is exact under steps that are drawn independently from the recorded lengths: it knows that
an image's last step is cut by its end, and that a batch waits for its slowest row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bench.data.errors import BenchError
from decoders.api import Tree, completed, whole_steps

NEVER = 1e-12  # probability of an unfinished row below which the rest of the sum is left out


class SpeedError(BenchError):
    """A prediction that cannot be made: a step that cannot be timed, no acceptance that deep."""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a decoder (AR too), for a batch of images at once: what comes before the first
    step, and a step; of the step's parts those that are known (NaN: a step that is one launch has
    none)."""

    prefill: float
    step: float
    draft: float = math.nan
    forward: float = math.nan
    accept: float = math.nan


@dataclass(frozen=True)
class Prediction:
    """codes: a step, uncut; steps: an image (the slowest of a batch); seconds: an image (or a batch
    of them); speedup: over AR."""

    codes: float
    steps: float
    seconds: float
    speedup: float


def reach(images: Iterable[Sequence[int]], depth: int) -> tuple[float, ...]:
    """P(accepted >= d) for d = 1..depth, over the steps of all images but each one's last.

    images: accepted drafts by step, see `whole_steps`.
    Raises SpeedError without any step, or with one that accepted more than `depth`.
    """
    steps = np.concatenate([np.empty(0, dtype=np.int64), *map(whole_steps, images)])
    if not steps.size:
        raise SpeedError(
            "no steps to read acceptance from: images of one step, or a run that was published "
            "without its accepted lengths; name another run"
        )
    if steps.max() > depth:
        raise SpeedError(f"a step accepted {steps.max()} drafts in a tree of {depth} levels")
    return tuple(float((steps >= d).mean()) for d in range(1, depth + 1))


def shallower(reached: Sequence[float], depth: int) -> tuple[float, ...]:
    """Reach of a chain of `depth` from that of a deeper chain: its first levels. A draft's chance
    does not depend on what is drafted after it, so nothing is assumed. SpeedError if deeper."""
    if depth > len(reached):
        raise SpeedError(
            f"acceptance was recorded to depth {len(reached)}, the tree has {depth} levels; record "
            "a deeper chain"
        )
    return tuple(reached[:depth])


def chain_depth(tree: Any) -> int:
    """Levels of a built tree that is a chain in every step; 0 of any other."""
    fixed = completed(tree, Tree).paths is not None
    return int(tree.depth) if fixed and tree.branching == 1 else 0


def codes_a_step(reached: Sequence[float]) -> float:
    """1 + sum_d P(accepted >= d): MAL of an image without an end."""
    return 1.0 + sum(reached)


def expected_steps(length: int, reached: Sequence[float], batch: int = 1) -> float:
    """Mean steps until all of `batch` rows have committed `length` codes.

    Every step commits 1 + d codes with probability P(accepted = d), independently: E[max of B] =
    sum_n (1 - P(n steps suffice)^B).
    """
    if length <= 0:
        return 0.0
    bounds = (1.0, *reached, 0.0)
    pmf = np.array([a - b for a, b in pairwise(bounds)])  # P(accepted = d)
    short = np.zeros(length)  # P(so many codes are committed), of those that are not enough
    short[0] = 1.0
    steps = 0.0
    while (left := short.sum()) > NEVER:
        steps += 1 - (1 - min(float(left), 1.0)) ** batch
        short = np.concatenate([[0.0], np.convolve(short, pmf)])[:length]
    return steps


def predict(
    ar: StepSeconds, step: StepSeconds, reached: Sequence[float], length: int, batch: int = 1
) -> Prediction:
    """What a decoder with these costs and this acceptance does with images of `length` codes,
    `batch` at a time; costs are those of such a batch."""
    steps = expected_steps(length - 1, reached, batch)
    seconds = step.prefill + steps * step.step
    image = ar.prefill + (length - 1) * ar.step  # the prefill gives the first code
    return Prediction(codes_a_step(reached), steps, seconds, image / seconds)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost to quality, speed) points that no other is at least as good as in both
    and better in one, by rising cost. Of equal points the first one stays."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i))
    kept: list[int] = []
    for i in order:
        if not kept or points[i][1] > points[kept[-1]][1]:
            kept.append(i)
    return kept
