"""The verdicts on the decoders of a study, by the gate's checks and by the nodes that the run has
recorded.

Several decoders are judged at once, each in a process of one thread, where the cores allow it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.config.schema import DecoderVariant
from bench.console import progress
from bench.errors import Failure, attempt
from bench.gate.check import check_decoder
from bench.gate.laws import ROUNDED_TV
from bench.gate.small import RealModel
from bench.measure.device import available_cores
from bench.store.facts import EITHER, Verdict
from decoders.api import ImageModel
from decoders.compose import BrokenModule, is_synthetic, resolve
from decoders.interrupts import stop_if_interrupted

DECODERS_PER_PROCESS = 3  # at least: to start a process takes as long as a few checks
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def judge(
    variants: Sequence[DecoderVariant],
    model: ImageModel,
    rows: pd.DataFrame,
    gate: bool = True,
    before: Mapping[str, Verdict] | None = None,
    fell: Callable[[str, Verdict], None] = lambda name, verdict: None,
    check: Callable[..., Verdict] | None = None,
) -> dict[str, Verdict]:
    """The verdicts on the decoders of a study, by name. rows: of its run, none before it; gate:
    where False those on synthetic decoders alone; before: those that are there already; fell:
    called with each; check: in place of `check_decoder`."""
    verdicts, real = dict(before or {}), RealModel.of(model)
    every = [v for v in variants if gate or is_synthetic(v.entry.spec)]
    left = [variant for variant in every if variant.name not in verdicts]
    for name, verdict in verdicts.items():
        fell(name, verdict)
    with (
        progress(len(left), "exactness", unit="decoder") as bar,
        checked(left, real, check or check_decoder) as found,
    ):
        for variant, outcome in zip(left, found, strict=True):
            verdict = not_checked(outcome) if isinstance(outcome, Failure) else outcome
            verdict = replace(verdict, expected=variant.entry.expect or EITHER)
            verdicts[variant.name] = verdict
            fell(variant.name, verdict)
            bar.set_postfix_str(f"{variant.name}: {verdict.word}")
            bar.update()
            stop_if_interrupted()
    verdicts = {variant.name: verdicts[variant.name] for variant in every}
    return verdicts | bounds_exceeded(variants, rows)


def bounds_exceeded(every: Sequence[DecoderVariant], rows: pd.DataFrame) -> dict[str, Verdict]:
    """`broken` for each decoder whose rule bounds the output and is further away at a recorded node
    of the run itself."""
    broken = {}
    for variant in every if len(rows) else ():
        rule, part = variant.entry.spec.acceptance, rows[rows.decoder == variant.name]
        kind = attempt(partial(resolve, rule.target)) if rule else None
        part = part[part.status == "ok"]
        if variant.sampling.greedy or part.empty or not getattr(kind, "bounds_output", False):
            continue
        tv, declared = (
            np.concatenate(part[name].to_list()) for name in ("tv_output", "tv_declared_bound")
        )
        if not len(tv) or (excess := tv - declared).max() <= ROUNDED_TV:
            continue
        worst = int(excess.argmax())
        detail = (
            f"at {int((excess > ROUNDED_TV).sum())} of {len(tv)} recorded nodes of this run the "
            f"output is further from p than the rule declares: output TV {tv[worst]:.5f} where "
            f"{declared[worst]:.5f} is declared"
        )
        expected = variant.entry.expect or EITHER
        broken[variant.name] = Verdict("broken", detail, float(tv[worst]), expected)
    return broken


def not_checked(failure: Failure) -> Verdict:
    """The verdict on a decoder that raised something."""
    imports = failure.error.startswith(BrokenModule.__name__)  # it says what to mend
    where, mend = ("it", "then") if imports else ("on a small random model it", "mend that and")
    detail = f"{where} raised {failure.error}; {mend} check again, or run without verdicts"
    return Verdict("not checked", f"{detail} (gate=false)")


@contextmanager
def checked(
    every: Sequence[DecoderVariant], real: RealModel, check: Callable[..., Verdict] = check_decoder
) -> Iterator[Iterator[Verdict | Failure]]:
    """What `check` says of each decoder, in their order, from processes where those gain."""
    tasks = [(check, variant.entry.spec, variant.sampling, real) for variant in every]
    processes = min(available_cores(), len(tasks) // DECODERS_PER_PROCESS)
    if processes < 2:
        yield (_checked(task) for task in tasks)
        return
    spawn, others = multiprocessing.get_context("spawn"), {*multiprocessing.active_children()}
    pool = ProcessPoolExecutor(processes, spawn, end_with_parent)
    try:
        yield pool.map(_checked, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in {*multiprocessing.active_children()} - others:  # of an interrupted run
            process.terminate()


def end_with_parent() -> None:
    """Has Linux end this process with the one that started it, however that ends: nobody waits for
    its verdicts, and it would take a core from the next run's timings."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _checked(task: tuple[Any, ...]) -> Verdict | Failure:
    check, *of = task
    return attempt(lambda: check(*of))
