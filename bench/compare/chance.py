"""Is a difference between two decoders more than chance? Paired by image, with three answers.

Times are taken as on a quiet machine (`metrics.latency.quiet_ratio`): neighbours slow what waits
for memory, above all AR, more than the rest. Two runs are compared by their speed-ups, each over
the AR of its own run, so that what the hour or the machine does to both drops out; and by their
images per second, which vary less, where one machine made both and those of AR do not differ.
Scores per image are compared by a paired bootstrap and a permutation test of the signs; FID against
the band of AR's own reseeds, where both drew the same prompts. CLIP and FID must have been measured
in the same way. Over many decoders p-values are adjusted for false discoveries (Benjamini and
Hochberg 1995).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control, permutation_test
from scipy.stats import t as student

from bench.judge.paired import every_latency_row, image_rows, quiet
from bench.records.kept import images_digest, judged
from bench.records.load import load
from bench.records.run_data import Entry, Role, RunData, Section
from metrics.latency import LogRatio
from metrics.stats import Interval, bootstrap_mean

POWER = 0.8  # the smallest difference is found in four of five runs
DRAWS = 9999
HOUR = 0.05  # AR's seconds of two runs differ below this p
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
    """One decoder of one run. judged: what was judged of its pictures (`bench.records.kept`), {}
    where nothing was."""

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
        lines = self.judged["value"]["scores"].get("protocol", {}) if self.judged else {}
        if figure == "CLIP":
            return {k: v for k, v in lines.items() if k.startswith(("clip_", "crop"))}
        return {k: v for k, v in lines.items() if not k.startswith("clip_")}

    def scores(self) -> pd.DataFrame:
        """Figures per image, indexed by `IMAGE`: codes per forward, and CLIP score as it was judged
        of these very pictures, else NaN. Timed images where no pictures were drawn."""
        drawn = self.images
        clip: Any = math.nan
        if len(drawn) and self.judged and self.judged["of"] == images_digest(drawn):
            each = self.judged["value"]["scores"]["clip_each"]
            clip = each if len(each) == len(drawn) else math.nan
        shown = drawn if len(drawn) else image_rows(every_latency_row(self.entry.records))
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
    freedom: int | None = None
    least: float | None = None
    p: float | None = None
    verdict: str = APART


def findings(sides: Sequence[tuple[Side, Side]], level: float) -> list[Finding]:
    """All figures of all pairs of sides, with verdicts at this level of false discoveries."""
    found = [f for a, b in sides for f in (*_speed(a, b), *_scores(a, b), *_fid(a, b))]
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
    if found.figure in SCORES and 2 ** (1 - found.pairs) >= level:  # all signs alike is not enough
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
    if a.unmeasured or b.unmeasured:
        return []
    mine, other = (a.folder, a.entry.records), (b.folder, b.entry.records)
    if a.folder == b.folder:
        return _ratio(a, b, RATE, quiet([mine], [other]))
    seconds = quiet([mine], [other]) if a.machine == b.machine else None
    if a.baseline is None or b.baseline is None or a.is_baseline:
        return _ratio(a, b, RATE, seconds)
    own, theirs = (a.folder, a.baseline), (b.folder, b.baseline)
    hour = quiet([own], [theirs])
    same = hour is not None and hour[0].p >= HOUR
    return [
        *_ratio(a, b, RATE, seconds if same else None),
        *_ratio(a, b, SPEEDUP, quiet([mine, theirs], [other, own])),
    ]


def _ratio(a: Side, b: Side, figure: str, made: tuple[LogRatio, int] | None) -> list[Finding]:
    if made is None:
        return []
    ratio, count = made
    found = _found(a, b, figure, count, ratio.interval())
    return [replace(found, error=ratio.error, freedom=ratio.freedom, p=ratio.p)]


def _scores(a: Side, b: Side) -> list[Finding]:
    both = a.scores().add_suffix(" a").join(b.scores().add_suffix(" b"), how="inner")
    out = []
    for figure in SCORES:
        less = (both[f"{figure} b"] - both[f"{figure} a"]).dropna().to_numpy(float)
        in_two_ways = figure == "CLIP" and a.measured("CLIP") != b.measured("CLIP")
        if len(less) < 2 or in_two_ways:
            continue
        found = _found(a, b, figure, len(less), bootstrap_mean(less))
        error = float(less.std(ddof=1)) / math.sqrt(len(less))
        out.append(replace(found, error=error, freedom=len(less) - 1, p=_sign_test(less)))
    return out


def _sign_test(less: np.ndarray) -> float:
    if not less.any():
        return 1.0
    tested = permutation_test(
        (less,), np.mean, permutation_type="samples", n_resamples=DRAWS, rng=0, vectorized=True
    )
    return float(tested.pvalue)


def _drawn(side: Side) -> list[str]:
    """The prompts that FID is of."""
    rows = side.entry.ok
    return sorted(rows[rows["protocol"] == "quality"]["prompt"])


def _fid(a: Side, b: Side) -> list[Finding]:
    less = b.entry.number("fid") - a.entry.number("fid")
    reach = a.section.reseeded("fid").half_width  # where AR's lies under other seeds
    if math.isnan(less) or math.isnan(reach) or a.measured("FID") != b.measured("FID"):
        return []
    if _drawn(a) != _drawn(b):  # FID depends on how many images there are, and of what
        return []
    found = _found(a, b, "FID", 0, Interval(less, less - reach, less + reach))
    return [replace(found, least=reach, verdict=_word(found, abs(less) > reach))]
