"""CLIP scores less the baseline's on the same prompts and seeds: clip_pairs.csv.

Why: scores differ far more from prompt to prompt than from decoder to decoder. The interval of a
mean score holds what prompts do to it; that of a mean difference does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from metrics.stats import bootstrap_mean

TABLE = "clip_pairs.csv"
FIGURE = "clip_less_baseline"  # followed by _lo and _hi: its 95 % interval over prompts
COLUMNS = ["decoder", "baseline", "images", FIGURE, f"{FIGURE}_lo", f"{FIGURE}_hi"]
Scored = Mapping[tuple[int, int], float]  # (prompt index, seed) -> 100 cos


def clip_differences(
    baselines: Mapping[str, str | None], scores: Mapping[str, Scored]
) -> pd.DataFrame:
    """The mean difference of every decoder to its baseline (None: it has none), over the images
    that both decoded; decoders without two such images, and baselines themselves, have no row."""
    lines = []
    for name, baseline in baselines.items():
        ours, theirs = scores.get(name, {}), scores.get(baseline or "", {})
        shared = sorted(ours.keys() & theirs.keys())
        if name == baseline or len(shared) < 2:
            continue
        found = bootstrap_mean([ours[image] - theirs[image] for image in shared])
        lines.append((name, baseline, len(shared), found.value, found.lo, found.hi))
    return pd.DataFrame(lines, columns=COLUMNS)


def with_differences(summary: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """The summary's rows with the difference and its interval; NaN where there is none."""
    figures = differences.set_index("decoder")[COLUMNS[3:]].astype(float)
    return summary.join(figures, on="decoder")
