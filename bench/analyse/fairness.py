"""The roofline (step times over their floors) and the fairness verdict: is the baseline of a
speed-up as fast as it could be? A speed-up over a slow one says nothing about a method.
docs/results.md, "Floors and fair baselines", has the verdicts.

The floor of a step is that of its target forward (`bench.measure.roofline`): drafting and
acceptance have none. Milliseconds are medians over timed images; a time over its floor is of the
`QUIET_QUANTILE`. How it differs from block to block is the error of the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analyse.paired import QUIET_QUANTILE, busy, latency_rows, loaded
from bench.measure.roofline import MachineRates, TargetWork, three_digits
from decoders.api import Sampling

MOST_FLOORS, MOST_FLOORS_COMPILED_ON_CPU = 4.0, 2.5  # floors that a step of the baseline may take
FAIR, UNFAIR, FAIRNESS_UNKNOWN, UNMEASURED = "fair", "unfair", "unknown", "not measured"
Lines = Mapping[Any, Mapping[Any, Any]]  # of the roofline, by decoder
PHASES = {"draft": "drafting", "forward": "target forward", "accept": "acceptance"}
AR_BY_BLOCK = ["ar_over_floor_least", "ar_over_floor_greatest"]  # medians of blocks
OVER_FLOOR = ["step_over_floor", "forward_over_floor"]
ROOFLINE_COLUMNS = [
    "decoder", "codes", "step_ms", "step_ar_steps", "forward_ms", "forward_ar_steps",
    "forward_floor_ms", *OVER_FLOOR, *AR_BY_BLOCK, "draft_ms", "ar_bytes", "ar_operations",
    "bytes_per_s", "operations_per_s", "note",
]  # fmt: skip


@dataclass(frozen=True)
class Fairness:
    """The verdict on a decoder's speed-up. mixed: which of its parts ran operator by operator where
    others' ran compiled; such a decoder stands in no ranking by seconds."""

    decoder: str
    verdict: str
    reason: str
    mixed: str = ""


def roofline(
    rows: pd.DataFrame,
    baselines: Mapping[str, str | None],
    machine: MachineRates | None,
    work: TargetWork | None,
) -> pd.DataFrame:
    """What the steps and forwards of decoders took, in milliseconds, in steps of the baseline and
    over their floors, from the rows of a run; what is not known is left out. Where a backend runs a
    step as one graph only the whole step is known, which for AR is its forward. baselines: see
    `paired.baselines_of`; ar_over_floor_*, of the blocks' medians, are AR's alone."""
    every, lines = latency_rows(rows), dict[str, dict[str, Any]]()
    for name in baselines:
        timed = every[every.decoder == name]
        if timed.empty:
            continue
        guided = Sampling(cfg=float(timed.cfg.iloc[0])).guidance_rows
        codes = 1 + int(timed.tree_nodes.iloc[0])
        is_ar = bool((timed.drafter_calls == 0).all() and (timed.mal <= 1).all())
        columns = ("nfe", "drafter_calls", "seconds_draft", "seconds_forward")
        nfe, calls, draft, forward = (timed[n].where(timed[n] > 0) for n in columns)
        step = (timed.seconds_total - timed.seconds_prefill) / nfe
        each = step if is_ar and forward.isna().all() else forward / nfe
        line: dict[str, Any] = {"decoder": name, "codes": codes}
        line |= {"step_ms": 1e3 * step.median(), "forward_ms": 1e3 * each.median()}
        line["draft_ms"] = 1e3 * (draft / calls).median()
        if machine is not None and work is not None:
            size, operations = work.forward(guided)
            floor = machine.floor_ms(*work.forward(guided, codes))
            line["forward_floor_ms"] = floor
            for over, seconds in zip(OVER_FLOOR, (step, each), strict=True):
                line[over] = 1e3 * seconds.quantile(QUIET_QUANTILE) / floor
            if is_ar:
                blocks = 1e3 * each.groupby(timed.block).median() / floor
                line |= dict(zip(AR_BY_BLOCK, (blocks.min(), blocks.max()), strict=True))
            line |= {"bytes_per_s": machine.step_bytes_per_s, "ar_bytes": size}
            line |= {"operations_per_s": machine.operations_per_s, "ar_operations": operations}
        lines[name] = line
    for name, line in lines.items():
        ar_ms = lines.get(baselines[name] or "", {}).get("forward_ms", math.nan)
        line |= {f"{part}_ar_steps": line[f"{part}_ms"] / ar_ms for part in ("step", "forward")}
    note = "" if work is None else work.note
    return pd.DataFrame([*lines.values()], columns=ROOFLINE_COLUMNS).assign(note=note)


def judge(
    rows: pd.DataFrame, baselines: Mapping[str, str | None], roofline: pd.DataFrame
) -> list[Fairness]:
    """A verdict on every decoder, from the rows of a run and its roofline. baselines: see
    `paired.baselines_of`."""
    lines = roofline.set_index("decoder").to_dict("index")
    timed = latency_rows(rows)
    return [
        Fairness(name, *_verdict(name, base, rows, lines), mixed(timed, name))
        for name, base in baselines.items()
    ]


def _verdict(name: str, base: str | None, rows: pd.DataFrame, lines: Lines) -> tuple[str, str]:
    """Verdict and reason of a decoder with this baseline."""
    if base is None:
        return FAIRNESS_UNKNOWN, "no baseline at its temperature and guidance"
    for decoder in (name, base):
        its_rows = rows[rows.decoder == decoder]
        if why := busy(its_rows) or below_floor(decoder, lines):
            return UNMEASURED, why
        if (steps := latency_rows(its_rows)).empty:
            return FAIRNESS_UNKNOWN, f"no image of {decoder} was timed"
    line = lines.get(base, {})
    names = "forward_over_floor", "forward_floor_ms", *AR_BY_BLOCK
    over, floor, least, greatest = (float(line.get(name, math.nan)) for name in names)
    if math.isnan(least):
        return FAIRNESS_UNKNOWN, line.get("note") or f"{base} was not timed step by step"
    if why := loaded(steps):
        return FAIRNESS_UNKNOWN, why
    quick = (steps.device == "cpu").all() and _ran(steps, "forward", "compiled")
    limit = MOST_FLOORS_COMPILED_ON_CPU if quick else MOST_FLOORS
    times = f"{over:.1f} times its floor of {three_digits(floor)} ms"
    if least < greatest:
        times += f" (from block to block {least:.1f} to {greatest:.1f})"
    reason = f"in a quiet moment a step of {base} takes {times}"
    return (UNFAIR, f"{reason}, at most {limit:g} are fair") if over > limit else (FAIR, reason)


def below_floor(name: str, lines: Lines) -> str:
    """A sentence where a step of a decoder took less than its floor, which no step can; else ""."""
    below = [over for over in map(lines.get(name, {}).get, OVER_FLOOR) if over and over < 1]
    if not below:
        return ""
    return (
        f"a step of {name} takes {min(below):.2g} times its floor: the machine was busy when its "
        "rates were measured, the clock is wrong, or a step reads less than its floor counts"
    )


def mixed(timed: pd.DataFrame, decoder: str) -> str:
    """`Fairness.mixed` of a decoder of these timed rows; "" where its parts ran as others' do."""
    mine = timed[timed.decoder == decoder]
    slow = [name for phase, name in PHASES.items() if _ran(mine, phase, "eager")]
    if not slow or not any(_ran(timed, phase, "compiled") for phase in PHASES):
        return ""
    return f"its {' and '.join(slow)} ran eagerly, where others' ran compiled"


def _ran(rows: pd.DataFrame, phase: str, way: str) -> bool:
    """Whether a phase ran in this way in any of these images (`decoders.api.Trace.path`)."""
    return bool(rows.path.str.contains(f"{phase}={way}", regex=False).any())
