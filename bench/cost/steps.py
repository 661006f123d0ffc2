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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bench.cost.rates import NOISY, MachineRates
from bench.cost.work import Unknown, Work, drafter_net, target_net
from bench.measure.clock import Clock
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.pieces import Steps, ar_steps, attended, draft_call, products, verification

TABLE = "steps.csv"
ROUNDS = 60
WARMUP = 8
BUDGET, LEAST = 20.0, 5  # seconds after which slow steps are repeated no further, rounds they have
WARM = 0.01  # seconds of its like before a timed run: as in an image, caches and clock are set
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
        if count == 1:
            step = ar_steps(model, sampling, text)
        else:
            step = Steps(1, verification(model, sampling, text, count - 1))
        alone = products(model, target, layers, copies, count, step.count)
        all_products = attended(model, target, copies, count, seen, step.count)
        runs.append(Timed(name, count, step, alone, work, all_products))
    for name in list(model.drafters):
        step = Steps(1, draft_call(model, sampling, text, name))
        own = model.drafters[name]  # loaded by now
        drafter = drafter_net(own, net)
        work = drafter if isinstance(drafter, Unknown) else drafter.work(copies)
        alone = products(model, own, own, copies, 1)
        all_products = attended(model, own, copies, 1, target.prefix + half)
        runs.append(Timed(f"draft call ({name})", 1, step, alone, work, all_products))
    taken = _interleaved(runs, Clock(model.device))
    return [
        StepCost(run.name, run.nodes, *figures, work=run.work, steps=run.step.count)
        for run, figures in zip(runs, taken, strict=True)
    ]


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


def warmed(*works: Callable[[], Any]) -> None:
    """Runs the works in turn for WARM seconds, once at least. The clock waits for the device: a
    launch is done long before its work is."""
    began = time.perf_counter()
    while True:
        for work in works:
            work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if time.perf_counter() - began >= WARM:
            return


def _median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds) if seconds else math.nan


def _spread(seconds: list[float]) -> tuple[float, float]:
    """((90th - 10th percentile) / median, milliseconds of the 10th)."""
    deciles = statistics.quantiles(seconds, n=10)
    return (deciles[-1] - deciles[0]) / statistics.median(seconds), 1e3 * deciles[0]


def step_table(costs: list[StepCost], rates: MachineRates | None) -> pd.DataFrame:
    """steps.csv: one row a step; milliseconds, bytes, operations, shares of one.

    factor: how far a step is above its matrix products; outside_products: its share outside its
    linear layers, below zero where the products alone take longer, on a busy machine say;
    outside_products_and_attention: the same without attention's two products (and with them the
    softmax between, rotation and append).
    """
    rows = []
    for cost in costs:
        work, floor = cost.work, cost.floor_ms(rates)
        rows.append(
            {
                "step": cost.name,
                "codes": cost.nodes,
                "steps_a_call": cost.steps,
                "ms": cost.step_ms,
                "spread": cost.spread,
                "products_ms": cost.products_ms,
                "factor": cost.step_ms / cost.products_ms,
                "outside_products": 1 - cost.products_ms / cost.step_ms,
                "outside_products_and_attention": 1 - cost.attention_ms / cost.step_ms,
                "ar_steps": cost.step_ms / costs[0].step_ms,
                "bytes": work.bytes if isinstance(work, Work) else math.nan,
                "operations": work.operations if isinstance(work, Work) else math.nan,
                "floor_ms": floor,
                "over_floor": cost.step_ms / floor,
                "fast_ms": cost.fast_ms,
                "fast_over_floor": cost.fast_ms / floor,
                "note": str(work) if isinstance(work, Unknown) else "",
            }
        )
    table = pd.DataFrame(rows)
    for name in ("bytes_per_s", "large_bytes_per_s", "operations_per_s", "threads", "device"):
        table[name] = math.nan if rates is None else getattr(rates, name)
    return table
