"""`python -m bench steps`: what a decoding step costs, its matrix products alone, and its floor.

Why: a speed-up is bounded by (codes a step) x (AR step) / (draft + forward + rest), so a missed
ratio is explained by these few numbers; and a baseline that is far above its own matrix products
would make every method look good. Everything is timed in turns, so that drift hits all alike, and
right after itself, so that what it reads is as near as it is within an image.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from bench.config.compose import compose_study
from bench.config.plugins import tree_sizes
from bench.console import say
from bench.cost.machine import measure_rates
from bench.cost.rates import NOISY, MachineRates
from bench.cost.work import Unknown, Work, drafter_net, step_bytes, target_net
from bench.data.files import ready_folder, write_text
from bench.measure.clock import Clock
from bench.report.table import Column, figures, filled, percent, terminal
from bench.run.session import opened
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.pieces import Steps, ar_steps, attended, draft_call, products, verification

TABLE = "steps.csv"
ROUNDS = 60
WARMUP = 8
BUDGET, LEAST = 20.0, 5  # seconds after which slow steps are repeated no further, rounds they have
WARM = 0.01  # seconds of its like before a timed run: as in an image, caches and clock are set
UNASKED = Unknown("its work was not asked for")
Turn = tuple[Callable[[], Any], Callable[[], Any] | None]  # a work, and what comes before it


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
    found: list[StepCost] = []
    works: dict[Any, Turn] = {}

    def add(name: str, codes: int, work: Work | Unknown, *parts: Steps | None) -> None:
        works.update({(name, at): (part, None) for at, part in enumerate(parts) if part})
        step = parts[0]
        assert step is not None
        found.append(StepCost(name, codes, math.nan, math.nan, work=work, steps=step.count))

    for count in nodes:
        name = "AR step" if count == 1 else f"forward over {count - 1} nodes + root"
        seen = target.prefix + half + count
        work = net if isinstance(net, Unknown) else net.work(copies, count, seen)
        if count == 1:
            step = ar_steps(model, sampling, text)
        else:
            step = Steps(1, verification(model, sampling, text, count - 1))
        alone = products(model, target, layers, copies, count, step.count)
        add(
            name, count, work, step, alone, attended(model, target, copies, count, seen, step.count)
        )
    for name in list(model.drafters):
        step = Steps(1, draft_call(model, sampling, text, name))
        own = model.drafters[name]  # loaded by now
        drafter = drafter_net(own, net)
        work = drafter if isinstance(drafter, Unknown) else drafter.work(copies)
        alone = products(model, own, own, copies, 1)
        with_attention = attended(model, own, copies, 1, target.prefix + half)
        add(f"draft call ({name})", 1, work, step, alone, with_attention)
    taken = in_turns(works, Clock(model.device), ROUNDS, WARMUP, BUDGET)
    return [_timed(cost, *(taken.get((cost.name, at), []) for at in range(3))) for cost in found]


def _timed(
    cost: StepCost, step: list[float], products: list[float], attention: list[float]
) -> StepCost:
    """With the median of the repeats of a step, of its products and of those with attention."""
    each = [seconds / cost.steps for seconds in step]
    deciles = statistics.quantiles(each, n=10)
    return replace(
        cost,
        step_ms=_median_ms(each),
        products_ms=_median_ms(products) / cost.steps,
        attention_ms=_median_ms(attention) / cost.steps,
        spread=(deciles[-1] - deciles[0]) / statistics.median(each),
        fast_ms=1e3 * deciles[0],
    )


def in_turns(
    works: Mapping[Any, Turn], clock: Clock, rounds: int, settle: int, budget: float
) -> dict[Any, list[float]]:
    """Seconds of every work's repeats, taken in turns so that drift hits all alike. Before one is
    timed, it runs some times behind what comes before it (None: itself): weights and caches are
    then as near to the processor as within an image. The first `settle` rounds are left out; where
    rounds are slow there are fewer, LEAST at least (steps are compiled in the first one)."""
    seconds: dict[Any, list[float]] = {key: [] for key in works}
    began = time.perf_counter()
    with torch.inference_mode():
        for turn in range(rounds + settle):
            if turn == 1:
                began = time.perf_counter()
            if turn > LEAST and time.perf_counter() - began > budget:
                settle = min(settle, 1)
                break
            for key, (work, before) in works.items():
                warmed(work, *([before] if before else []))
                with clock.time("work"):
                    work()
                seconds[key].append(clock.seconds["work"])
    return {key: times[settle:] for key, times in seconds.items()}


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


def _share(value: float) -> str:
    return percent(value, 0)


COLUMNS = (
    Column("step", "step (batch 1)"),
    Column("ms", "ms", figures(2)),
    Column("spread", "spread", _share),
    Column("products_ms", "products alone, ms", figures(2)),
    Column("factor", "factor", figures(2)),
    Column("outside_products", "outside products", _share),
    Column("outside_products_and_attention", "outside these and attention", _share),
    Column("ar_steps", "AR steps", figures(2)),
    Column("bytes", "MB", figures(1, 1e-6)),
    Column("operations", "Mflop", figures(1, 1e-6)),
    Column("floor_ms", "floor, ms", figures(3)),
    Column("over_floor", "over floor", figures(1)),
    Column("fast_over_floor", "fastest tenth over floor", figures(1)),
)


def cmd_steps(words: Sequence[str]) -> int:
    """What a decoding step costs here, its matrix products alone, and its floor.
    Times an AR step, verifications of the study's trees and a drafter call of its model. Writes
    steps.csv to run_dir.
    Settings: run_dir ...
        model=NAME    the model (`list model`)
        backend=NAME  where it runs
    Example: steps backend=cpu_torch
    """
    config = compose_study(words)
    ready_folder(Path(config.run_dir))
    own = opened(config, 1)
    model, made = own.model, own.made
    net, rates = target_net(model), None
    if not isinstance(net, Unknown):
        name = made.gpu or made.cpu
        rates = measure_rates(model.device, model.dtype, step_bytes(net, model), name)
    with torch.inference_mode():
        text = model.text.encode([own.prompts[0].text])
        nodes = (1, *(size + 1 for size in tree_sizes(config.decoders)))
        costs = step_costs(model, model.sampling, text, nodes)
    found = step_table(costs, rates)
    say(terminal(filled(COLUMNS, found.to_dict("records"))))
    for note in notes(costs, rates):
        say(note)
    path = write_text(Path(config.run_dir) / TABLE, found.to_csv(index=False))
    say(f"saved: {path}")
    return 0


def notes(costs: list[StepCost], rates: MachineRates | None) -> list[str]:
    """The machine, what has no floor, and a warning where it was not quiet."""
    lines = [] if rates is None else [str(rates)]
    lines += dict.fromkeys(f"{c.name}: {c.work}" for c in costs if isinstance(c.work, Unknown))
    noisy = [f"{c.name} {100 * c.spread:.0f} %" for c in costs if c.noisy]
    if rates is not None and rates.noisy:
        noisy.append(f"the machine's rates {100 * rates.spread:.0f} %")
    if noisy:
        lines.append(
            f"noisy machine: repeats lie more than {100 * NOISY:.0f} % of their median apart "
            f"({', '.join(noisy)}); something else runs here, measure again when it does not"
        )
    return lines
