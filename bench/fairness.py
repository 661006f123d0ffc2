"""The fairness gate: is the baseline that a speed-up refers to as good as it could be?

Why: a speed-up over a slow baseline says nothing about a method. A speed-up is *unfair* where the
baseline's step takes more than a stated factor of its floor (`bench.measure.roofline`), or where
decoder and baseline ran on another backend, device, dtype, thread count, CPU or GPU. Where no floor
is known the verdict is *unknown*, and says why. fairness.csv: one row a decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.paired import every_latency_row
from bench.records import write_atomically

TABLE, ROOFLINE = "fairness.csv", "roofline.csv"
COLUMNS = ["decoder", "verdict", "reason", "factor"]
SAME = ("backend", "device", "dtype", "threads", "cpu", "gpu")
FAIR, UNFAIR, UNKNOWN = "fair", "unfair", "unknown"


@dataclass(frozen=True)
class Fairness:
    """The gate's word on a decoder's speed-up. factor: its baseline's step over the floor of that
    step, NaN where it is not known."""

    decoder: str
    verdict: str
    reason: str
    factor: float


def judge(
    rows: pd.DataFrame, baselines: Sequence[str], roofline: pd.DataFrame | None, limit: float
) -> list[Fairness]:
    """A verdict on every decoder of `rows` (records.parquet), in their order.

    baselines: decoders that speed-ups may refer to; the first of them at a decoder's temperature
    and guidance is its own. roofline: roofline.csv. limit: floors that a baseline's step may take.
    """
    timed = every_latency_row(rows)
    return [_judge(name, rows, timed, baselines, roofline, limit) for name in rows.decoder.unique()]


def write_fairness(folder: Path, found: Sequence[Fairness]) -> None:
    """fairness.csv of a run folder."""
    table = pd.DataFrame([vars(f) for f in found], columns=COLUMNS)
    text = table.to_csv(index=False).encode()
    write_atomically(folder / TABLE, lambda file: file.write(text))


def judge_folder(
    folder: Path,
    rows: pd.DataFrame,
    baselines: Sequence[str],
    limit: float,
    out: Path | None = None,
) -> list[Fairness]:
    """Judges a finished run of these rows again, under another limit say; writes fairness.csv, to
    the folder `out` where the run's own may not be written to."""
    path = folder / ROOFLINE
    floors = pd.read_csv(path, keep_default_na=False, na_values=[""]) if path.is_file() else None
    found = judge(rows, baselines, floors, limit)
    write_fairness(out or folder, found)
    return found


def _judge(
    name: str,
    rows: pd.DataFrame,
    timed: pd.DataFrame,
    baselines: Sequence[str],
    roofline: pd.DataFrame | None,
    limit: float,
) -> Fairness:
    base = _baseline(name, rows, baselines)
    mine, theirs = timed[timed.decoder == name], timed[timed.decoder == base]
    if not base:
        return Fairness(name, UNKNOWN, "no baseline at its temperature and guidance", math.nan)
    for decoder, own in ((name, mine), (base, theirs)):
        if own.empty:
            return Fairness(name, UNKNOWN, f"no image of {decoder} was timed", math.nan)
    elsewhere = _elsewhere(name, mine, base, theirs)
    factor, step = _step(base, roofline)
    slow = factor > limit
    words = [*elsewhere, f"{step}, at most {limit:g} are fair" if slow else ""]
    if elsewhere or slow:
        return Fairness(name, UNFAIR, "; ".join(filter(None, words)), factor)
    return Fairness(name, UNKNOWN if math.isnan(factor) else FAIR, step, factor)


def _baseline(name: str, rows: pd.DataFrame, baselines: Sequence[str]) -> str:
    """The baseline of a decoder, itself perhaps; "" where there is none."""
    first = rows.drop_duplicates("decoder")
    pairs = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    settings = dict(zip(first.decoder, pairs, strict=True))
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
        f"a step of {base} takes {first['ar_ms']:.3g} ms, {factor:.1f} times its floor of "
        f"{first['ar_floor_ms']:.3g} ms"
    )
