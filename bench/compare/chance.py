"""Is a difference between two decoders more than chance? Paired by image, with three answers.

Two decoders of one run are compared by their seconds in the same blocks; decoders of two runs by
their speed-ups, each over the AR of its own run, since an hour or a machine slows both
(`metrics.speedup`). Scores per image are compared by Student's t of the paired differences. FID is
compared with how AR's own FID differs from seed to seed: by chance alone two single runs differ by
more than t(k - 1, 1 - level / 2m) s sqrt(2) in a share `level` of comparisons of m decoders, s the
standard deviation over k seeds. CLIP and FID must have been measured in the same way, FID of the
same prompts. Over many decoders p-values are adjusted for false discoveries (Benjamini and Hochberg
1995).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from bench.judge.paired import image_rows, latency_rows, paired_speedup
from bench.records.load import judged, load
from bench.records.run_data import Entry, Role, RunData, Section
from metrics.speedup import Speedup
from metrics.stats import Interval, student_mean

POWER = 0.8  # the smallest difference is found in four of five runs
APART = "not told apart"
RATE, SPEEDUP = "images per second", "speed-up over AR"
MOST = 10.0  # as a difference that would have been found: beyond it, nothing would
RATIOS = (RATE, SPEEDUP)
SCORES = ("codes per forward", "CLIP")
FIGURES = (*RATIOS, *SCORES, "FID")
IMAGE = ["prompt_index", "seed", "prompt"]
MACHINE = ("cpu", "gpu", "threads", "backend", "device", "dtype")


@dataclass(frozen=True)
class Side:
    """One decoder of one run. judged: the scores of its pictures, {} where there are none."""

    run: RunData
    section: Section
    entry: Entry
    judged: Mapping[str, Any]

    @property
    def decoder(self) -> str:
        return self.entry.name

    @property
    def folder(self) -> str:
        return str(self.run.folder.resolve())

    @property
    def baseline(self) -> pd.DataFrame | None:
        """The rows of the run's AR at the same temperature, None where it has none."""
        base = self.section.baseline
        return None if base is None else base.records

    @property
    def is_baseline(self) -> bool:
        return self.entry is self.section.baseline

    @property
    def machine(self) -> list[list[str]]:
        """What times depend on."""
        return [sorted({str(value) for value in self.entry.records[name]}) for name in MACHINE]

    @property
    def unmeasured(self) -> str:
        """Why its times do not count, "" where they do."""
        return self.run.fairness[self.decoder].reason if self.run.unmeasured(self.entry) else ""

    @property
    def images(self) -> pd.DataFrame:
        """The pictures of the quality protocol, in the order in which they were scored."""
        rows = self.entry.ok
        return rows[(rows.protocol == "quality") & (rows.image != "")].sort_values("prompt_index")

    def measured(self, figure: str) -> dict[str, str]:
        """The lines of the protocol (`bench.judge.quality.Scores`) that FID, or CLIP, depends
        on."""
        lines = self.judged.get("protocol", {})
        if figure == "CLIP":
            return {k: v for k, v in lines.items() if k.startswith(("clip_", "crop"))}
        return {k: v for k, v in lines.items() if not k.startswith("clip_")}

    def scores(self) -> pd.DataFrame:
        """Figures per image, indexed by `IMAGE`: codes per forward, and CLIP score, NaN without
        one. Timed images where no pictures were drawn."""
        drawn = self.images
        each = self.judged.get("clip_each", ())
        clip: Any = each if len(drawn) and len(each) == len(drawn) else math.nan
        shown = drawn if len(drawn) else image_rows(latency_rows(self.entry.records))
        found = shown.set_index(IMAGE)[["mal"]].rename(columns={"mal": "codes per forward"})
        return found.assign(CLIP=clip)


def read_sides(folder: Path) -> dict[str, Side]:
    """The decoders of a finished run by name. Raises FolderError on a folder that is none."""
    run, figures = load(folder), judged(folder)
    return {
        entry.name: Side(run, section, entry, figures.get(entry.name, {}))
        for section in run.sections
        for entry in section.entries
        if entry.role is not Role.RESEED
    }


@dataclass(frozen=True)
class Finding:
    """One figure of two decoders. value, lo, hi: B over A for ratios (rates, so that above 1 B is
    faster), else B less A; p: two-sided, adjusted; None for FID. error: standard error of value, of
    its log for ratios, of so many degrees of freedom; None for FID. least: the smallest difference
    that would have been found in four of five runs; None where there are too few images to find
    any."""

    a: str
    b: str
    figure: str
    pairs: int
    value: float
    lo: float
    hi: float
    error: float | None = None
    freedom: float | None = None
    least: float | None = None
    p: float | None = None
    verdict: str = APART


def findings(sides: Sequence[tuple[Side, Side]], level: float) -> list[Finding]:
    """All figures of all pairs of sides, with verdicts at this level of false discoveries."""
    each = level / max(len(sides), 1)
    found = [f for a, b in sides for f in (*_speed(a, b), *_scores(a, b), *_fid(a, b, each))]
    out = []
    for figure in FIGURES:
        mine = [f for f in found if f.figure == figure]
        tested = [f.p for f in mine if f.p is not None]
        adjusted = iter(false_discovery_control(tested) if tested else [])
        for f in mine:
            if f.p is not None:
                p, least = float(next(adjusted)), _least(f, level / len(tested))
                f = replace(f, p=p, least=least, verdict=_word(f, p < level))
            out.append(f)
    return out


def _least(found: Finding, level: float) -> float | None:
    """The smallest difference that a test at this level finds in four of five runs. level: that of
    all over the number of decoders, which is what one is asked where no other differs."""
    if found.error is None or not found.freedom:
        return None
    reach = student.ppf(1 - level / 2, found.freedom) + student.ppf(POWER, found.freedom)
    with np.errstate(over="ignore"):
        least = np.expm1(reach * found.error) if found.figure in RATIOS else reach * found.error
    return float(least) if least < MOST or found.figure not in RATIOS else None


def worse(found: Sequence[Finding]) -> bool:
    return any(f.verdict in ("slower", "worse") for f in found)


def _word(found: Finding, differs: bool) -> str:
    if not differs:
        return APART
    if found.figure in RATIOS:
        return "faster" if found.value > 1 else "slower"
    more_is_better = found.figure != "FID"
    return "better" if (found.value > 0) == more_is_better else "worse"


def _found(a: Side, b: Side, figure: str, pairs: int, value: Interval) -> Finding:
    return Finding(a.decoder, b.decoder, figure, pairs, value.value, value.lo, value.hi)


def _speed(a: Side, b: Side) -> list[Finding]:
    """Seconds of A over B's: within a run directly, else by their speed-ups over AR. None without
    an interval."""
    if a.unmeasured or b.unmeasured:
        return []
    if a.folder == b.folder:
        figure, ratio = RATE, paired_speedup(a.entry.records, b.entry.records)
    else:
        figure, ratio = SPEEDUP, _of_two_runs(a, b)
    if ratio is None or math.isnan(ratio.p):
        return []
    error, freedom = ratio.error
    found = _found(a, b, figure, ratio.blocks, ratio.interval())
    return [replace(found, error=error, freedom=freedom, p=ratio.p)]


def _of_two_runs(a: Side, b: Side) -> Speedup | None:
    if a.baseline is None or b.baseline is None or a.is_baseline:
        return None
    one, other = (paired_speedup(s.baseline, s.entry.records) for s in (a, b))  # type: ignore[arg-type]
    return None if one is None or other is None else other.over(one)


def _scores(a: Side, b: Side) -> list[Finding]:
    both = a.scores().add_suffix(" a").join(b.scores().add_suffix(" b"), how="inner")
    out = []
    for figure in SCORES:
        less = (both[f"{figure} b"] - both[f"{figure} a"]).dropna().to_numpy(float)
        in_two_ways = figure == "CLIP" and a.measured("CLIP") != b.measured("CLIP")
        if len(less) < 2 or in_two_ways:
            continue
        found = _found(a, b, figure, len(less), student_mean(less))
        error, freedom = float(less.std(ddof=1)) / math.sqrt(len(less)), len(less) - 1
        same = float(not less.any())  # p where no difference scatters
        p = 2 * float(student.sf(abs(less.mean()) / error, freedom)) if error else same
        out.append(replace(found, error=error, freedom=freedom, p=p))
    return out


def _drawn(side: Side) -> list[str]:
    """The prompts that FID is of."""
    rows = side.entry.ok
    return sorted(rows[rows["protocol"] == "quality"]["prompt"])


def _fid(a: Side, b: Side, level: float) -> list[Finding]:
    less = b.entry.number("fid") - a.entry.number("fid")
    reach = a.section.differs_by_chance("fid", level)
    if math.isnan(less) or math.isnan(reach) or a.measured("FID") != b.measured("FID"):
        return []
    if _drawn(a) != _drawn(b):  # FID depends on how many images there are, and of what
        return []
    found = _found(a, b, "FID", 0, Interval(less, less - reach, less + reach))
    return [replace(found, least=reach, verdict=_word(found, abs(less) > reach))]
