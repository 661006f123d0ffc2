"""What each decoder's steps take beside their floors (roofline.csv), and whether the baseline that
a speed-up refers to is as good as it could be (fairness.csv).

Why: a speed-up over a slow baseline says nothing about a method. It is *unfair* where the
baseline's step takes more than a stated factor of its floor (`bench.measure.floors`). It is *not
measured* where the machine was busy, or where a step took less than its floor: no step can, so the
floor is wrong. Where no floor is known the verdict is *unknown*, and says why. A decoder of which a
piece ran operator by operator, where others run it compiled, is marked and stands in no ranking by
seconds. All rows of a run are of one machine and one backend (`bench.records.study`).

The floor of a step is that of its target forward: drafting and acceptance have none. Times are of
timed images. Milliseconds are medians; a time over its floor is of the 10 % quantile, as a quiet
moment has it and not the best of a few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.config.schema import DecoderVariant, FairnessConfig
from bench.config.words import pairs
from bench.data.files import write_text
from bench.judge.paired import busy, latency_rows

if TYPE_CHECKING:
    from bench.measure.floors import TargetCost
    from bench.measure.rates import MachineRates
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
    NaN where it is not known; mixed: which of its pieces ran operator by operator where others' ran
    compiled."""

    decoder: str
    verdict: str
    reason: str
    factor: float
    mixed: str = ""


def roofline(
    folder: Path, model: ImageModel, every: Sequence[DecoderVariant], rows: pd.DataFrame
) -> pd.DataFrame | None:
    """Writes roofline.csv (and machine.json where a floor is known); returns the table. A step that
    takes less than its floor says that the floor is wrong: then the machine is measured again.

    rows: records.parquet. None, and nothing written, where no image was timed.
    """
    from bench.measure.floors import target_cost, watch_of

    timed = latency_rows(rows)
    if timed.empty:
        return None
    cost, first = target_cost(model), timed.iloc[0]
    watch = watch_of(folder, model, str(first["gpu"] or first["cpu"]))

    def table(rates: MachineRates | None) -> pd.DataFrame:
        each = [(one, timed[timed.decoder == one.name]) for one in every]
        lines = [_line(one, mine, cost, rates) for one, mine in each if len(mine)]
        return pd.DataFrame(lines, columns=ROOFLINE_COLUMNS)

    found = table(None if watch is None else watch.best() or watch.measure())
    if watch is not None and any(below_floor(name, found) for name in found.decoder):
        found = table(watch.measure())
    write_text(folder / ROOFLINE, found.to_csv(index=False))
    return found


def _line(
    one: DecoderVariant, mine: pd.DataFrame, cost: TargetCost | str, rates: MachineRates | None
) -> dict[str, Any]:
    """A decoder's line, from its timed images. Where a backend runs a step as one graph the whole
    step is known alone, which for AR is the AR step."""
    rows, codes = one.sampling.guidance_rows, 1 + int(mine.tree_nodes.iloc[0])
    note = cost if isinstance(cost, str) else cost.note
    line: dict[str, Any] = dict.fromkeys(ROOFLINE_COLUMNS, NAN)
    line |= {"decoder": one.name, "codes": codes, "images": len(mine), "note": note}
    alone = bool((mine.drafter_calls == 0).all() and (mine.mal <= 1).all())  # AR steps
    forwards = mine.nfe.where(mine.nfe > 0)
    step = (mine.seconds_total - mine.seconds_prefill) / forwards
    forward = mine.seconds_forward.where(mine.seconds_forward > 0) / forwards
    times = {"step": step, "ar" if alone else "forward": forward}
    if alone and forward.isna().all():
        times["ar"] = step
    for part, seconds in times.items():
        line[f"{part}_ms"] = 1e3 * seconds.median()
    if not alone:
        phases = mine.seconds_draft + mine.seconds_forward + mine.seconds_accept
        share = mine.seconds_accept / phases.where(phases > 0)
        line["accept_share"] = share.median() if (mine.seconds_accept > 0).any() else NAN
        if forward.notna().any():
            calls = mine.drafter_calls.where(mine.drafter_calls > 0)
            line["draft_ms"] = 1e3 * (mine.seconds_draft / calls).median()
    if rates is None or isinstance(cost, str):
        return line
    works = {"ar": cost.work(rows)} | ({} if alone else {"forward": cost.work(rows, codes)})
    floors = {part: work.floor_ms(rates) for part, work in works.items()}
    floors["step"] = floors["ar" if alone else "forward"]
    for part, floor in floors.items():
        quiet = 1e3 * times[part].quantile(QUIET) if part in times else NAN
        line |= {f"{part}_floor_ms": floor, f"{part}_over_floor": quiet / floor}
    line |= {"ar_bytes": works["ar"].bytes, "ar_operations": works["ar"].operations}
    speeds = {"bytes_per_s": rates.step_bytes_per_s, "operations_per_s": rates.operations_per_s}
    return line | speeds


def judge(
    rows: pd.DataFrame,
    baselines: Sequence[str],
    roofline: pd.DataFrame | None,
    limits: FairnessConfig,
) -> list[Fairness]:
    """A verdict on every decoder of `rows` (records.parquet), in their order.

    baselines: decoders that speed-ups may refer to; the first of them at a decoder's temperature
    and guidance is its own. roofline: roofline.csv. limits: floors that a baseline's step may take.
    """
    timed, found = latency_rows(rows), list[Fairness]()
    first = rows.drop_duplicates("decoder")
    each = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    settings = dict(zip(first.decoder, each, strict=True))
    for name, own in settings.items():
        base = next((b for b in baselines if settings.get(b) == own), "")
        verdict = _verdict(name, base, rows, timed, roofline, limits)
        found.append(Fairness(name, *verdict, mixed(timed, name)))
    return found


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
    theirs = timed[timed.decoder == base]
    quick = (theirs.device == "cpu") & _ran(theirs, "forward", COMPILED)
    limit = min(limits.factor, limits.cpu) if quick.any() else limits.factor
    reason = (
        f"in a quiet moment a step of {base} takes {factor:.1f} times its floor of "
        f"{line['ar_floor_ms']:.3g} ms"
    )
    if factor > limit:
        return UNFAIR, f"{reason}, at most {limit:g} are fair", factor
    return FAIR, reason, factor


def below_floor(name: str, roofline: pd.DataFrame | None) -> str:
    """That a step of a decoder took less than the least that is possible; "" where none did."""
    lines = [] if roofline is None else roofline[roofline.decoder == name].to_dict("records")
    for part in PARTS:
        if lines and lines[0].get(f"{part}_over_floor", NAN) < 1:
            over, floor = (lines[0][f"{part}_{figure}"] for figure in ("over_floor", "floor_ms"))
            what = "target forward" if part == "forward" else "step"
            return (
                f"a {what} of {name} takes {over * floor:.3g} ms, less than its floor of "
                f"{floor:.3g} ms, so the machine was busy when its rates were measured, the "
                "decoder's clock is wrong, or a step does not read all that its floor counts"
            )
    return ""


def mixed(timed: pd.DataFrame, decoder: str) -> str:
    """`Fairness.mixed` of a decoder of these timed rows; "" where all of its pieces ran as others
    do."""
    mine = timed[timed.decoder == decoder]
    slow = [words for phase, words in PHASES.items() if _ran(mine, phase, EAGER).any()]
    if not slow or not any(_ran(timed, phase, COMPILED).any() for phase in PHASES):
        return ""
    return f"its {' and '.join(slow)} ran eagerly, where others' ran compiled"


def _ran(rows: pd.DataFrame, phase: str, way: str) -> pd.Series:
    """The rows in which a piece ran in this way."""
    return rows.path.map(lambda path: pairs(str(path)).get(phase) == way).astype(bool)


def write_fairness(folder: Path, found: Sequence[Fairness]) -> None:
    """fairness.csv of a run folder."""
    names = [*Fairness.__dataclass_fields__]
    table = pd.DataFrame([vars(f) for f in found], columns=names)
    write_text(folder / TABLE, table.to_csv(index=False))
