"""The fairness gate: is the baseline that a speed-up refers to as good as it could be?

Why: a speed-up over a slow baseline says nothing about a method. A speed-up is *unfair* where the
baseline's step takes more than a stated factor of its floor (`bench.measure.floors`), or where
decoder and baseline ran on another backend, device, dtype, thread count, CPU or GPU. It is *not
measured* where the machine was busy, or where a step took less than its floor: no step can, so the
floor is wrong. Where no floor is known the verdict is *unknown*, and says why. A decoder of which a
piece ran operator by operator, where others run it compiled, is marked and stands in no ranking by
seconds; an estimate says what it would be worth. fairness.csv: one row per decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import FairnessConfig
from bench.config.words import pairs
from bench.data.files import write_text
from bench.judge.paired import busy, latency_rows

TABLE, ROOFLINE = "fairness.csv", "roofline.csv"
COLUMNS = ["decoder", "verdict", "reason", "factor", "mixed", "worth"]
SAME = ("backend", "device", "dtype", "threads", "cpu", "gpu")
FAIR, UNFAIR, UNKNOWN, UNMEASURED = "fair", "unfair", "unknown", "not measured"
# See `decoders.api.Trace.path`; the second in records from before the one road for all decoders.
FAST = "compiled", "kernel"
SLOW = "eager", "tensor"  # the second in records of schema 6 and older
PHASES = {"draft": "drafting", "forward": "target forward", "accept": "acceptance"}


@dataclass(frozen=True)
class Fairness:
    """The gate's word on a decoder's speed-up. factor: its baseline's step over the floor of that
    step, NaN where it is not known. mixed: which of its pieces ran operator by operator where
    others' run compiled, and their share of a step. worth: an estimate of what its
    speed-up would grow by if they, but the forward, cost what those of others do, NaN for none."""

    decoder: str
    verdict: str
    reason: str
    factor: float
    mixed: str = ""
    worth: float = math.nan


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
    timed = latency_rows(rows)
    names = rows.decoder.unique()
    found = [_judge(name, rows, timed, baselines, roofline, limits) for name in names]
    return [replace(one, **mixed(timed, one.decoder)) for one in found]


def mixed(timed: pd.DataFrame, decoder: str) -> dict[str, Any]:
    """`Fairness.mixed` and `worth` of a decoder of these timed rows; {} where all of its pieces ran
    as others do."""
    mine = timed[timed.decoder == decoder]
    slow = [phase for phase in PHASES if _ran(mine, phase, SLOW).any()]
    if not slow or not any(_ran(timed, phase, FAST).any() for phase in PHASES):
        return {}
    whole = sum(_cost(mine, phase) for phase in PHASES)
    said, less = [], whole
    for phase in slow:
        cost, others = _cost(mine, phase), timed[_ran(timed, phase, FAST)]
        said.append(f"its {PHASES[phase]} ran eagerly, {cost:.4g} of {whole:.4g} ms per step")
        if phase == "forward":
            continue  # its layers are those of the others, over more codes or fewer
        usual = [_cost(rows, phase) for _, rows in others.groupby("decoder")]
        less += (pd.Series(usual).median() if usual else math.nan) - cost
    return {"mixed": "; ".join(said), "worth": whole / less if 0 < less < whole else math.nan}


def _ran(rows: pd.DataFrame, phase: str, ways: Sequence[str]) -> pd.Series:
    """Of which rows a piece ran in one of these ways."""
    return rows.path.map(lambda path: pairs(str(path)).get(phase) in ways).astype(bool)


def _cost(rows: pd.DataFrame, phase: str) -> float:
    """Milliseconds of a piece per step."""
    return 1e3 * float(rows[f"seconds_{phase}"].sum()) / float(rows.nfe.sum())


def write_fairness(folder: Path, found: Sequence[Fairness]) -> None:
    """fairness.csv of a run folder."""
    table = pd.DataFrame([vars(f) for f in found], columns=COLUMNS)
    write_text(folder / TABLE, table.to_csv(index=False))


def judge_folder(
    folder: Path,
    rows: pd.DataFrame,
    baselines: Sequence[str],
    limits: FairnessConfig,
    *,
    keep: bool = True,
) -> list[Fairness]:
    """Judges a finished run of these rows again, under other limits say; writes fairness.csv where
    `keep` is set."""
    path = folder / ROOFLINE
    floors = pd.read_csv(path, keep_default_na=False, na_values=[""]) if path.is_file() else None
    found = judge(rows, baselines, floors, limits)
    if keep:
        write_fairness(folder, found)
    return found


def _judge(
    name: str,
    rows: pd.DataFrame,
    timed: pd.DataFrame,
    baselines: Sequence[str],
    roofline: pd.DataFrame | None,
    limits: FairnessConfig,
) -> Fairness:
    base = _baseline(name, rows, baselines)
    mine, theirs = timed[timed.decoder == name], timed[timed.decoder == base]
    if not base:
        return Fairness(name, UNKNOWN, "no baseline at its temperature and guidance", math.nan)
    for decoder, own in ((name, mine), (base, theirs)):
        why = busy(rows[rows.decoder == decoder]) or below_floor(decoder, roofline)
        if why:
            return Fairness(name, UNMEASURED, why, math.nan)
        if own.empty:
            return Fairness(name, UNKNOWN, f"no image of {decoder} was timed", math.nan)
    elsewhere = _elsewhere(name, mine, base, theirs)
    factor, step = _step(base, roofline)
    quick = (theirs.device == "cpu") & _ran(theirs, "forward", FAST)
    limit = min(limits.factor, limits.cpu) if quick.any() else limits.factor
    slow = factor > limit
    words = [*elsewhere, f"{step}, at most {limit:g} are fair" if slow else ""]
    if elsewhere or slow:
        return Fairness(name, UNFAIR, "; ".join(filter(None, words)), factor)
    return Fairness(name, UNKNOWN if math.isnan(factor) else FAIR, step, factor)


def below_floor(name: str, roofline: pd.DataFrame | None) -> str:
    """That a step of a decoder took less than the least that is possible; "" where none did."""
    lines = [] if roofline is None else roofline[roofline.decoder == name].to_dict("records")
    for part in ("step", "ar", "forward"):
        if lines and lines[0].get(f"{part}_over_floor", math.nan) < 1:
            over, floor = (lines[0][f"{part}_{figure}"] for figure in ("over_floor", "floor_ms"))
            what = "target forward" if part == "forward" else "step"
            return (
                f"a {what} of {name} takes {over * floor:.3g} ms, less than its floor of "
                f"{floor:.3g} ms, so "
                "the machine was busy when its rates were measured, or the decoder's clock is wrong"
            )
    return ""


def _baseline(name: str, rows: pd.DataFrame, baselines: Sequence[str]) -> str:
    """The baseline of a decoder, itself perhaps; "" where there is none."""
    first = rows.drop_duplicates("decoder")
    each = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    settings = dict(zip(first.decoder, each, strict=True))
    return next((b for b in baselines if settings.get(b) == settings[name]), "")


def _elsewhere(name: str, mine: pd.DataFrame, base: str, theirs: pd.DataFrame) -> list[str]:
    """Where the two ran differently, or one of them in several ways."""
    found = []
    for column in SAME:
        own, other = (sorted({str(v) for v in f[column]}) for f in (mine, theirs))
        if own != other or len(own) > 1:
            found.append(
                f"{column}: {name} ran on {', '.join(own) or 'none'}, {base} on "
                f"{', '.join(other) or 'none'}"
            )
    return found


def _step(base: str, roofline: pd.DataFrame | None) -> tuple[float, str]:
    """(time over floor of the baseline's step, what was measured in words)."""
    if roofline is None:
        return math.nan, "floors come at the end of a run, and there is no roofline.csv yet"
    line = roofline[roofline.decoder == base]
    if line.empty:
        return math.nan, f"no roofline of {base} was measured"
    first = line.iloc[0]
    factor = float(first["ar_over_floor"])
    if math.isnan(factor):
        note = first["note"] if isinstance(first["note"], str) else ""
        return math.nan, note or f"{base} was not timed step by step"
    return factor, (
        f"in a quiet moment a step of {base} takes {factor:.1f} times its floor of "
        f"{first['ar_floor_ms']:.3g} ms"
    )
