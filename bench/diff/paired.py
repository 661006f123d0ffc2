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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import false_discovery_control, permutation_test
from scipy.stats import t as student

from bench.diff.side import Side
from bench.judge.paired import quiet
from metrics.latency import LogRatio
from metrics.stats import Interval, bootstrap_mean

POWER = 0.8  # the smallest difference is found in four of five runs
DRAWS = 9999
HOUR = 0.05  # AR's seconds of two runs differ below this p
APART = "not told apart"
RATE = "images per second"
MOST = 10.0  # as a difference that would have been found: beyond it, nothing would
RATIOS = (RATE, "speed-up over AR")
SCORES = ("codes per forward", "CLIP")
FIGURES = (*RATIOS, *SCORES, "FID")


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
    error: float | None
    freedom: int | None
    least: float | None
    p: float | None
    verdict: str


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


def _word(found: Finding, told: bool) -> str:
    if not told:
        return APART
    if found.figure in RATIOS:
        return "faster" if found.value > 1 else "slower"
    more_is_better = found.figure != "FID"
    return "better" if (found.value > 0) == more_is_better else "worse"


def _speed(a: Side, b: Side) -> list[Finding]:
    if a.unmeasured or b.unmeasured:
        return []
    mine, other = (a.run, a.rows), (b.run, b.rows)
    if a.run == b.run:
        return _ratio(a, b, RATE, quiet([mine], [other]))
    seconds = quiet([mine], [other]) if a.machine == b.machine else None
    if a.baseline is None or b.baseline is None or a.is_baseline:
        return _ratio(a, b, RATE, seconds)
    own, theirs = (a.run, a.baseline), (b.run, b.baseline)
    hour = quiet([own], [theirs])
    same = hour is not None and hour[0].p >= HOUR
    return [
        *_ratio(a, b, RATE, seconds if same else None),
        *_ratio(a, b, "speed-up over AR", quiet([mine, theirs], [other, own])),
    ]


def _ratio(a: Side, b: Side, figure: str, made: tuple[LogRatio, int] | None) -> list[Finding]:
    if made is None:
        return []
    ratio, count = made
    return [_made(a, b, figure, count, ratio.interval(), ratio.error, ratio.freedom, ratio.p)]


def _scores(a: Side, b: Side) -> list[Finding]:
    both = a.scores().add_suffix(" a").join(b.scores().add_suffix(" b"), how="inner")
    out = []
    for figure in SCORES:
        if figure == "CLIP" and a.measured("CLIP") != b.measured("CLIP"):
            continue
        less = (both[f"{figure} b"] - both[f"{figure} a"]).dropna().to_numpy(float)
        if len(less) < 2:
            continue
        found = bootstrap_mean(less)
        error = float(less.std(ddof=1)) / math.sqrt(len(less))
        freedom, p = len(less) - 1, _sign_test(less)
        out.append(_made(a, b, figure, len(less), found, error, freedom, p))
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
    rows = side.rows
    return sorted(rows[(rows["protocol"] == "quality") & (rows["status"] == "ok")]["prompt"])


def _fid(a: Side, b: Side) -> list[Finding]:
    if math.isnan(a.fid) or math.isnan(b.fid) or a.band is None:
        return []
    if a.measured("FID") != b.measured("FID"):
        return []
    if _drawn(a) != _drawn(b):  # FID depends on how many images there are, and of what
        return []
    less, reach = b.fid - a.fid, a.band.half_width
    found = _made(a, b, "FID", 0, Interval(less, less - reach, less + reach), None, None, None)
    return [replace(found, least=reach, verdict=_word(found, abs(less) > reach))]


def _made(
    a: Side,
    b: Side,
    figure: str,
    pairs: int,
    found: Interval,
    error: float | None,
    freedom: int | None,
    p: float | None,
) -> Finding:
    names, value = (a.decoder, b.decoder), (found.value, found.lo, found.hi)
    return Finding(*names, figure, pairs, *value, error, freedom, None, p, APART)
