"""How far each decoder's steps are above their floors (roofline.csv), and whether the baseline of a
speed-up is as fast as it could be (fairness.csv).

Why: a speed-up over a slow baseline says nothing about a method. It is *unfair* where the
baseline's step takes more than a stated factor of its floor (`bench.measure.roofline`). It is *not
measured* where the machine was busy, or where a step took less than its floor: no step can, so the
floor is wrong. Where no floor is known the verdict is *unknown*, and says why. A decoder of which a
part ran operator by operator, where others run it compiled, is marked and stands in no ranking by
seconds. All rows of a run are of one machine and one backend (`bench.records.study`).

The floor of a step is that of its target forward: drafting and acceptance have none. Milliseconds
are medians over timed images; a time over its floor is of the 10 % quantile, which is a quiet
moment and not the best of a few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.config.schema import DecoderVariant, FairnessConfig
from bench.config.words import pairs
from bench.data.files import write_text
from bench.judge.paired import busy, latency_rows
from bench.measure.machine_rates import MACHINE, MachineRates, read_rates

if TYPE_CHECKING:
    from bench.measure.roofline import TargetCost
    from decoders.api import ImageModel

NAN = math.nan
QUIET = 0.1  # quantile over timings
TABLE, ROOFLINE = "fairness.csv", "roofline.csv"
FAIR, UNFAIR, UNKNOWN, UNMEASURED = "fair", "unfair", "unknown", "not measured"
COMPILED, EAGER = "compiled", "eager"  # see `decoders.api.Trace.path`
PHASES = {"draft": "drafting", "forward": "target forward", "accept": "acceptance"}
PARTS = ("step", "ar", "forward")
ROOFLINE_COLUMNS = [
    "decoder", "codes", "images",
    *(f"{part}_{figure}" for part in PARTS for figure in ("ms", "floor_ms", "over_floor")),
    "draft_ms", "accept_share", "ar_bytes", "ar_operations", "bytes_per_s", "operations_per_s",
    "note",
]  # fmt: skip


@dataclass(frozen=True)
class Fairness:
    """The verdict on a decoder's speed-up. factor: its baseline's step over the floor of that step,
    NaN where it is not known; mixed: which of its parts ran operator by operator where others' ran
    compiled."""

    decoder: str
    verdict: str
    reason: str
    factor: float
    mixed: str = ""


def roofline(
    folder: Path, model: ImageModel, variants: Sequence[DecoderVariant], rows: pd.DataFrame
) -> pd.DataFrame | None:
    """Writes roofline.csv (and machine.json where a floor is known); returns the table. Where a
    step takes less than its floor the rates are too low: then the machine is measured again.

    rows: records.parquet. None, and nothing written, where no image was timed.
    """
    from bench.measure.roofline import measure_machine, target_cost

    timed = latency_rows(rows)
    if timed.empty:
        return None
    cost, machine = target_cost(model), str(timed.gpu.iloc[0] or timed.cpu.iloc[0])
    measure = partial(measure_machine, folder, model, machine)

    def table_with(rates: MachineRates | None) -> pd.DataFrame:
        parts = [(one, timed[timed.decoder == one.name]) for one in variants]
        lines = [_line(one, part, cost, rates) for one, part in parts if len(part)]
        return pd.DataFrame(lines, columns=ROOFLINE_COLUMNS)

    table = table_with(read_rates(folder / MACHINE) or measure())
    if any(below_floor(name, table) for name in table.decoder):
        table = table_with(measure())
    write_text(folder / ROOFLINE, table.to_csv(index=False))
    return table


def _line(
    variant: DecoderVariant, timed: pd.DataFrame, cost: TargetCost | str, rates: MachineRates | None
) -> dict[str, Any]:
    """A decoder's line, from its timed images; what is not known is left out. Where a backend runs
    a step as one graph only the whole step is known, which for AR is its forward."""
    rows, codes = variant.sampling.guidance_rows, 1 + int(timed.tree_nodes.iloc[0])
    is_ar = bool((timed.drafter_calls == 0).all() and (timed.mal <= 1).all())
    part = "ar" if is_ar else "forward"
    names = ("nfe", "drafter_calls", "seconds_draft", "seconds_forward", "seconds_accept")
    nfe, calls, draft, forward, accept = (timed[n].where(timed[n] > 0) for n in names)
    times = {"step": (timed.seconds_total - timed.seconds_prefill) / nfe, part: forward / nfe}
    line: dict[str, Any] = {"decoder": variant.name, "codes": codes, "images": len(timed)}
    if is_ar:
        times["ar"] = times["step"] if forward.isna().all() else times["ar"]
    else:
        phases = timed.seconds_draft + timed.seconds_forward + timed.seconds_accept
        line["draft_ms"] = 1e3 * (draft / calls).median()
        line["accept_share"] = (accept / phases).median()
    line |= {f"{name}_ms": 1e3 * seconds.median() for name, seconds in times.items()}
    if isinstance(cost, str) or rates is None:
        return line | {"note": cost if isinstance(cost, str) else cost.note}
    floors = {part: cost.floor_ms(rates, rows, codes), "ar": cost.floor_ms(rates, rows)}
    for name, floor in (floors | {"step": floors[part]}).items():
        line[f"{name}_floor_ms"] = floor
        if name in times:
            line[f"{name}_over_floor"] = 1e3 * times[name].quantile(QUIET) / floor
    size, operations = cost.work(rows)
    line |= {"ar_bytes": size, "ar_operations": operations, "note": cost.note}
    speeds = {"bytes_per_s": rates.step_bytes_per_s, "operations_per_s": rates.operations_per_s}
    return line | speeds


def judge(
    rows: pd.DataFrame,
    baselines: Sequence[str],
    roofline: pd.DataFrame | None,
    limits: FairnessConfig,
) -> list[Fairness]:
    """A verdict on every decoder of `rows` (records.parquet), in their order.

    baselines: decoders that speed-ups may refer to; a decoder's is the first of them with its
    temperature and guidance. roofline: roofline.csv. limits: floors that a baseline's step may
    take.
    """
    timed, first = latency_rows(rows), rows.drop_duplicates("decoder")
    each = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    settings = dict(zip(first.decoder, each, strict=True))
    verdicts = []
    for name, setting in settings.items():
        base = next((b for b in baselines if settings.get(b) == setting), "")
        verdict = _verdict(name, base, rows, timed, roofline, limits)
        verdicts.append(Fairness(name, *verdict, mixed(timed, name)))
    return verdicts


def _verdict(
    name: str,
    base: str,
    rows: pd.DataFrame,
    timed: pd.DataFrame,
    roofline: pd.DataFrame | None,
    limits: FairnessConfig,
) -> tuple[str, str, float]:
    """Verdict, reason and factor of a decoder with this baseline."""
    if not base:
        return UNKNOWN, "no baseline at its temperature and guidance", NAN
    for decoder in (name, base):
        why = busy(rows[rows.decoder == decoder]) or below_floor(decoder, roofline)
        if why:
            return UNMEASURED, why, NAN
        if not (timed.decoder == decoder).any():
            return UNKNOWN, f"no image of {decoder} was timed", NAN
    if roofline is None:
        return UNKNOWN, "floors come at the end of a run, and there is no roofline.csv yet", NAN
    line = next(iter(roofline[roofline.decoder == base].to_dict("records")), {"note": ""})
    factor = float(line.get("ar_over_floor", NAN))
    if math.isnan(factor):
        note = line["note"] if isinstance(line["note"], str) else ""
        return UNKNOWN, note or f"{base} was not timed step by step", NAN
    steps = timed[timed.decoder == base]
    quick = (steps.device == "cpu").all() and ("forward", COMPILED) in _ways(steps)
    limit = min(limits.factor, limits.cpu) if quick else limits.factor
    reason = (
        f"in a quiet moment a step of {base} takes {factor:.1f} times its floor of "
        f"{line['ar_floor_ms']:.3g} ms"
    )
    if factor > limit:
        return UNFAIR, f"{reason}, at most {limit:g} are fair", factor
    return FAIR, reason, factor


def below_floor(name: str, roofline: pd.DataFrame | None) -> str:
    """A sentence where a step of a decoder took less than its floor, which no step can; else ""."""
    lines = [] if roofline is None else roofline[roofline.decoder == name].to_dict("records")
    for line, part in product(lines, PARTS):
        if (over := line.get(f"{part}_over_floor", NAN)) < 1:
            floor = line[f"{part}_floor_ms"]
            what = "target forward" if part == "forward" else "step"
            return (
                f"a {what} of {name} takes {over * floor:.3g} ms, less than its floor of "
                f"{floor:.3g} ms, so the machine was busy when its rates were measured, the "
                "decoder's clock is wrong, or a step does not read all that its floor counts"
            )
    return ""


def mixed(timed: pd.DataFrame, decoder: str) -> str:
    """`Fairness.mixed` of a decoder of these timed rows; "" where all of its parts ran as others
    do."""
    ways, anybody = _ways(timed[timed.decoder == decoder]), _ways(timed)
    slow = [words for phase, words in PHASES.items() if (phase, EAGER) in ways]
    if not slow or not any((phase, COMPILED) in anybody for phase in PHASES):
        return ""
    return f"its {' and '.join(slow)} ran eagerly, where others' ran compiled"


def _ways(rows: pd.DataFrame) -> set[tuple[str, str]]:
    """The ways in which phases ran: (phase, COMPILED or EAGER)."""
    return {way for path in rows.path.unique() for way in pairs(str(path)).items()}


def write_fairness(folder: Path, verdicts: Sequence[Fairness]) -> None:
    """fairness.csv of a run folder."""
    table = pd.DataFrame(list(verdicts), columns=[*Fairness.__dataclass_fields__])
    write_text(folder / TABLE, table.to_csv(index=False))
