"""What a decoding step costs, what its matrix products alone would cost, and what its floor is.

Why: a speed-up is bounded by (codes a step) x (AR step) / (draft + forward + rest), so a missed
ratio is explained by these few numbers; and a baseline that is far above its own matrix products
would make every method look good. Everything is timed in turns, so that drift hits all alike, and
right after itself, so that what it reads is as near as it is within an image.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.measure.clock import Clock
from bench.measure.pieces import (
    Draft,
    Products,
    Steps,
    ar_steps,
    draft_state,
    native_products,
    products_state,
    repeated,
    verification,
    warmed,
)
from bench.measure.rates import NOISY, MachineRates
from bench.measure.roofline import Unknown, Work, drafter_net, target_net
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.execution.cpu.packing import Native

ROUNDS = 60
WARMUP = 8
BUDGET, LEAST = 20.0, 5  # seconds after which slow steps are repeated no further, rounds they have
UNASKED = Unknown("its work was not asked for")


@dataclass(frozen=True)
class StepCost:
    """Median milliseconds of one step at batch 1, and of its matrix products alone (NaN where the
    model's products are not known)."""

    name: str
    nodes: int  # codes a row in the forward
    step_ms: float
    products_ms: float
    attention_ms: float = math.nan  # the same with attention; NaN where it cannot be told apart
    spread: float = math.nan  # (90th - 10th percentile) / median of the step's repeats
    fast_ms: float = math.nan  # the 10th percentile: as a floor is made of best repeats
    work: Work | Unknown = UNASKED
    steps: int = 1  # that a call took: its repeats are calls, and of each the mean step counts

    @property
    def factor(self) -> float:
        """How far the step is above its matrix products."""
        return self.step_ms / self.products_ms

    @property
    def outside(self) -> float:
        """Share of the step outside its linear layers (attention's two products count as outside);
        below zero where the products alone take longer, on a busy machine say."""
        return 1 - self.products_ms / self.step_ms

    @property
    def beside(self) -> float:
        """Share of the step outside its matrix products, attention's two among them (and with them
        the softmax between, rotation and append)."""
        return 1 - self.attention_ms / self.step_ms

    @property
    def noisy(self) -> bool:
        """Whether the repeats lie so far apart that something else was running."""
        return self.spread > NOISY

    def floor_ms(self, rates: MachineRates | None) -> float:
        """Milliseconds that the step must take; NaN where no floor is known."""
        if rates is None or isinstance(self.work, Unknown):
            return math.nan
        return 1e3 * self.work.floor_seconds(rates)


@dataclass(frozen=True)
class Timed:
    """Something to time: a step, its products (None: not known), and what it needs."""

    name: str
    nodes: int
    step: Steps
    products: Steps | None
    work: Work | Unknown
    attention: Steps | None = None  # the products and attention


def step_costs(
    model: ImageModel,
    sampling: Sampling,
    text: TextFeatures,
    nodes: tuple[int, ...],
) -> list[StepCost]:
    """Costs of an AR step (1 node), of verifying trees of these sizes (roots counted), and of a
    drafter call.

    Half-way through an image; text is one encoded prompt. An AR step is forward, guidance,
    distribution and sample, a drafter call too; a verification is what the speculative loop charges
    to one: forward and guidance. All are run as the model's backend runs them (eager, compiled, as
    a graph, in the CPU kernel), and so are the matrix products alone; the caption network is not
    part of it.
    """
    target: Any = model.target
    copies, half, net = sampling.guidance_rows, target.length // 2, target_net(model)
    layers = getattr(target, "layers", None)
    runs = []
    for count in nodes:
        name = "AR step" if count == 1 else f"forward over {count - 1} nodes + root"
        seen = target.prefix + half + count
        work = net if isinstance(net, Unknown) else net.work(copies, count, seen)
        step = _steps(model, sampling, text, count)
        alone = _products(model, target, layers, copies, count, step.count)
        attended = _attended(model, target, copies, count, seen, step.count)
        runs.append(Timed(name, count, step, alone, work, attended))
    for name in list(model.drafters):
        step = Steps(1, repeated(model, Draft(sampling), draft_state(model, sampling, text, name)))
        own = model.drafters[name]  # loaded by now
        drafter = drafter_net(own, net)
        work = drafter if isinstance(drafter, Unknown) else drafter.work(copies)
        alone = _products(model, own, own, copies, 1)
        attended = _attended(model, own, copies, 1, target.prefix + half)
        runs.append(Timed(f"draft call ({name})", 1, step, alone, work, attended))
    taken = _interleaved(runs, Clock(model.device))
    return [
        StepCost(run.name, run.nodes, *figures, work=run.work, steps=run.step.count)
        for run, figures in zip(runs, taken, strict=True)
    ]


def _steps(model: ImageModel, sampling: Sampling, text: TextFeatures, count: int) -> Steps:
    """AR steps as `generate` takes them, or the verification of a root and count - 1 nodes."""
    if count == 1:
        return ar_steps(model, sampling, text)
    return Steps(1, verification(model, sampling, text, count - 1))


def _natives(model: ImageModel, net: Any) -> tuple[Native, Native] | None:
    native = getattr(model.execution, "native", lambda net: None)
    own, target = native(net), native(model.target)
    return None if own is None or target is None else (own, target)


def _products(
    model: ImageModel, net: Any, body: Any, rows: int, queries: int, times: int = 1
) -> Steps | None:
    """The products of a network's body and of the target's head on R rows of T queries, by what
    multiplies in a step, so many times a call in the CPU kernel; None for a plug-in whose layers
    are not where they are expected."""
    natives = _natives(model, net)
    if natives is not None:
        return Steps(times, native_products(*natives, rows, queries, times=times))
    nets = [body, getattr(model.target, "output", None)]
    if not all(isinstance(m, nn.Module) for m in nets):
        return None
    loop = Products(nn.ModuleList(nets))
    return Steps(1, repeated(model, loop, products_state(loop, rows * queries, model.device)))


def _attended(
    model: ImageModel, net: Any, rows: int, queries: int, seen: int, times: int = 1
) -> Steps | None:
    """The same with attention over `seen` slots; None outside the CPU kernel."""
    natives = _natives(model, net)
    if natives is None:
        return None
    return Steps(times, native_products(*natives, rows, queries, seen, times))


def _interleaved(runs: list[Timed], clock: Clock) -> list[tuple[float, float, float, float, float]]:
    """(median ms of the step, of its products, of those with attention, spread and 10th percentile
    of the step) of each, measured in turns; steps of a large model in fewer rounds."""
    taken: list[tuple[list[float], list[float], list[float]]] = [([], [], []) for _ in runs]
    began = time.perf_counter()
    with torch.inference_mode():
        for turn in range(ROUNDS + WARMUP):
            if turn == 1:  # steps are compiled in the first round
                began = time.perf_counter()
            spent = time.perf_counter() - began
            if spent > BUDGET and len(taken[0][0]) >= LEAST:
                break
            warm = turn >= WARMUP or (turn > 1 and spent > BUDGET / 4)
            for run, times in zip(runs, taken, strict=True):
                parts = (run.step, run.products, run.attention)
                for work, seconds in zip(parts, times, strict=True):
                    if work is None:
                        continue
                    warmed(work)
                    clock.synchronise()
                    begin = time.perf_counter()
                    work()
                    clock.synchronise()
                    if warm:
                        seconds.append((time.perf_counter() - begin) / work.count)
    return [(_median_ms(a), _median_ms(b), _median_ms(c), *_spread(a)) for a, b, c in taken]


def _median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds) if seconds else math.nan


def _spread(seconds: list[float]) -> tuple[float, float]:
    """((90th - 10th percentile) / median, milliseconds of the 10th)."""
    deciles = statistics.quantiles(seconds, n=10)
    return (deciles[-1] - deciles[0]) / statistics.median(seconds), 1e3 * deciles[0]
