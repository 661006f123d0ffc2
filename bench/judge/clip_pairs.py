"""CLIP scores less the baseline's on the same prompts: clip_pairs.csv.

Why: scores differ far more from prompt to prompt than from decoder to decoder. The interval of a
mean score holds what prompts do to it; that of a mean difference does not. Where the baseline was
run under other seeds too, the mean of its seeds stands for it, so that one lucky seed does not
count against every decoder; and each of its seeds is held against the others: what a seed does.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd

from bench.judge.reseeds import reseed_name
from metrics.stats import bootstrap_mean

TABLE = "clip_pairs.csv"
FIGURE = "clip_less_baseline"  # followed by _lo and _hi: its 95 % interval over prompts
COLUMNS = ["decoder", "baseline", "seeds", "images", FIGURE, f"{FIGURE}_lo", f"{FIGURE}_hi"]
Scored = Mapping[int, float]  # prompt index -> 100 cos


def clip_differences(
    baselines: Mapping[str, str | None], scores: Mapping[str, Sequence[Scored]]
) -> pd.DataFrame:
    """The mean difference of every decoder to its baseline (None: it has none), over the prompts
    that both decoded under all `seeds` of the baseline; without two such prompts there is no row.

    scores: those of a decoder, and behind them those of its reseeds.
    """
    lines = []
    for name, baseline in baselines.items():
        every = scores.get(baseline or "", ())
        for number, own in enumerate(scores.get(name, ())):
            others = [s for i, s in enumerate(every) if name != baseline or i != number]
            shared = sorted(set(own).intersection(*others)) if others else []
            if len(shared) < 2:
                continue
            label = reseed_name(name, number) if number else name
            less = [own[p] - statistics.fmean(other[p] for other in others) for p in shared]
            found = bootstrap_mean(less)
            line = (label, baseline, len(others), len(shared), found.value, found.lo, found.hi)
            lines.append(line)
    return pd.DataFrame(lines, columns=COLUMNS)


def with_differences(summary: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """The summary's rows with the difference and its interval; NaN where there is none."""
    figures = differences.set_index("decoder")[COLUMNS[4:]].astype(float)
    return summary.join(figures, on="decoder")
