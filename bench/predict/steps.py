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
from pathlib import Path
from typing import Any

import numpy as np
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
Line = dict[str, Any]
Turn = tuple[Callable[[], Any], Callable[[], Any] | None]  # a work, and what comes before it


def step_costs(
    model: ImageModel,
    sampling: Sampling,
    text: TextFeatures,
    nodes: tuple[int, ...],
) -> list[Line]:
    """Costs of an AR step (1 node), of verifying trees of these sizes (roots counted), and of a
    drafter call: lines of steps.csv, but for what the machine's rates say.

    Half-way through an image; text is one encoded prompt. An AR step is forward, guidance,
    distribution and sample, a drafter call too; a verification is what the speculative loop charges
    to one: forward and guidance. All are run as the model's backend runs them (eager, compiled, as
    a graph, in the CPU kernel), and so are the matrix products alone; the caption network is not
    part of it.
    """
    target: Any = model.target
    copies, half, net = sampling.guidance_rows, target.length // 2, target_net(model)
    # Each with codes a row, its work, and what is timed: it, its products, these with attention.
    found: dict[str, tuple[int, Work | Unknown, list[Steps | None]]] = {}
    for count in nodes:
        seen = target.prefix + half + count
        if count == 1:
            step = ar_steps(model, sampling, text)
        else:
            step = Steps(1, verification(model, sampling, text, count - 1))
        layers = getattr(target, "layers", None)
        alone = products(model, target, layers, copies, count, step.count)
        both = attended(model, target, copies, count, seen, step.count)
        work = net if isinstance(net, Unknown) else net.work(copies, count, seen)
        name = "AR step" if count == 1 else f"forward over {count - 1} nodes + root"
        found[name] = count, work, [step, alone, both]
    for name in list(model.drafters):
        step = Steps(1, draft_call(model, sampling, text, name))
        own = model.drafters[name]  # loaded by now
        drafter = drafter_net(own, net)
        work = drafter if isinstance(drafter, Unknown) else drafter.work(copies)
        alone = products(model, own, own, copies, 1)
        both = attended(model, own, copies, 1, target.prefix + half)
        found[f"draft call ({name})"] = 1, work, [step, alone, both]
    works: dict[Any, Turn] = {
        (name, at): (part, None)
        for name, (_, _, parts) in found.items()
        for at, part in enumerate(parts)
        if part
    }
    taken = in_turns(works, Clock(model.device), ROUNDS, WARMUP, BUDGET)
    return [
        _line(name, codes, work, parts[0], [taken.get((name, at), []) for at in range(3)])
        for name, (codes, work, parts) in found.items()
    ]


def _line(
    name: str, codes: int, work: Work | Unknown, step: Steps | None, times: Sequence[list[float]]
) -> Line:
    """times: seconds of the repeats of a call, of its products, and of these with attention."""
    steps = 1 if step is None else step.count
    each = [seconds / steps for seconds in times[0]]
    deciles = statistics.quantiles(each, n=10)
    ms, products, attention = (
        1e3 * statistics.median(own) / steps if own else math.nan for own in times
    )
    known = work if isinstance(work, Work) else Work(math.nan, math.nan)
    return {
        "step": name,
        "codes": codes,
        "steps_a_call": steps,
        "ms": ms,
        "fast_ms": 1e3 * deciles[0],
        "spread": (deciles[-1] - deciles[0]) / statistics.median(each),
        "products_ms": products,
        "attention_ms": attention,
        "bytes": known.bytes,
        "operations": known.operations,
        "note": "" if known is work else str(work),
    }


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


def step_table(costs: Sequence[Line], rates: MachineRates | None) -> pd.DataFrame:
    """steps.csv: one row a step; milliseconds, bytes, operations, shares of one.

    spread: (90th - 10th percentile) / median of the repeats; fast_ms: the 10th percentile, as a
    floor is made of best repeats. factor: how far a step is above its matrix products;
    outside_products: its share outside its linear layers, below zero where the products alone take
    longer, on a busy machine say; outside_products_and_attention: the same without attention's two
    products (and with them the softmax between, rotation and append).
    """
    table = pd.DataFrame(costs)
    floors = [math.nan if rates is None else Work(*need).floor_seconds(rates)
              for need in zip(table.bytes, table.operations, strict=True)]  # fmt: skip
    table = table.assign(
        factor=table.ms / table.products_ms,
        outside_products=1 - table.products_ms / table.ms,
        outside_products_and_attention=1 - table.attention_ms / table.ms,
        ar_steps=table.ms / table.ms[0],
        floor_ms=1e3 * np.array(floors),
    )
    table["over_floor"] = table.ms / table.floor_ms
    table["fast_over_floor"] = table.fast_ms / table.floor_ms
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


def notes(costs: Sequence[Line], rates: MachineRates | None) -> list[str]:
    """The machine, what has no floor, and a warning where it was not quiet."""
    lines = [] if rates is None else [str(rates)]
    lines += dict.fromkeys(f"{c['step']}: {c['note']}" for c in costs if c["note"])
    spreads = {c["step"]: c["spread"] for c in costs}
    spreads |= {} if rates is None else {"the machine's rates": rates.spread}
    noisy = [f"{name} {100 * spread:.0f} %" for name, spread in spreads.items() if spread > NOISY]
    if noisy:
        lines.append(
            f"noisy machine: repeats lie more than {100 * NOISY:.0f} % of their median apart "
            f"({', '.join(noisy)}); something else runs here, measure again when it does not"
        )
    return lines
