"""A run's figures in parts: acceptance by draft depth, figures by category of prompt, and how many
codes target and drafter spread their mass over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.paired import (
    drawn,
    images_once,
    mal_interval,
    paired_speedup,
    pictures,
    timings,
)
from bench.analyse.run import Entry, Role, Run
from metrics.ambiguity import RANKS
from metrics.ambiguity import SUMMARY_RANKS as TOP
from metrics.stats import NO_INTERVAL as UNKNOWN
from metrics.stats import Interval, student_mean, student_ratio
from metrics.traces import steps_by_depth

DEEPEST = 12  # depths that are shown
ENDS = ("", "_lo", "_hi")


def by_depth(run: Run) -> pd.DataFrame:
    """Tabulates acceptance by decoder and draft depth d. steps: those that accepted depth d - 1;
    accepted: the share of them that accepted depth d too; pairs: recorded ones at that depth;
    alpha: what the exact rule would accept of the first child there, mean. Intervals are over
    images."""
    lines = []
    for entry in (e for section in run.sections for e in section.decoders):
        images = images_once(entry.rows)
        levels = min(int(images["tree_depth"].max()) if len(images) else 0, DEEPEST)
        steps = steps_by_depth(images["accepted"], levels)  # [images, levels + 1]
        nodes, alphas = _alpha_sums(images, levels)  # [images, levels] each
        for depth in range(1, levels + 1):
            line = {"decoder": entry.name, "depth": depth, "steps": int(steps[:, depth - 1].sum())}
            line |= _ends("accepted", _share(steps[:, depth], steps[:, depth - 1]))
            line["pairs"] = int(nodes[:, depth - 1].sum())
            lines.append(line | _ends("alpha", _share(alphas[:, depth - 1], nodes[:, depth - 1])))
    return pd.DataFrame(lines)


def _alpha_sums(images: pd.DataFrame, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns by image and depth how many pairs were recorded and the sum of their alpha."""
    counts, sums = np.zeros((2, len(images), levels))
    for at, (depth, alpha) in enumerate(zip(images.alpha_depth, images.alpha, strict=True)):
        index = np.asarray(depth, int) - 1
        inside = index < levels
        np.add.at(counts[at], index[inside], 1)
        np.add.at(sums[at], index[inside], np.asarray(alpha, float)[inside])
    return counts, sums


def _share(parts: np.ndarray, wholes: np.ndarray) -> Interval:
    """Returns the ratio of the sums over images, with an interval over those that count."""
    counted = wholes > 0
    if not counted.any():
        return UNKNOWN
    share = student_ratio(parts[counted], wholes[counted])
    return Interval(share.value, max(share.lo, 0.0), min(share.hi, 1.0))


def by_category(run: Run) -> pd.DataFrame:
    """Tabulates decoders by category of prompt: images, codes per forward, speed-up, CLIP score.
    Speed-ups pair the blocks in which prompts of the category were timed. Empty where the prompts
    have fewer than two categories."""
    names = [name for name in run.rows.category.dropna().unique() if name]
    if len(names) < 2:
        return pd.DataFrame()
    lines = []
    for section in run.sections:
        for entry in section.decoders:
            clip = _clip_by_prompt(run, entry)
            for name in names:
                rows = entry.rows[entry.rows.category == name]
                scores = [s for prompt, s in clip.items() if prompt in {*rows.prompt_index}]
                speed, mal = UNKNOWN, mal_interval(rows)
                if section.baseline and entry.role is Role.DECODER and not run.unmeasured(entry):
                    base = section.baseline.rows
                    ratio = paired_speedup(base[base.category == name], rows)
                    speed = speed if ratio is None else ratio.interval()
                lines.append(
                    {"decoder": entry.name, "category": name}
                    | {"timed": len(timings(rows)), "images": len(drawn(rows))}
                    | _ends("mal", UNKNOWN if mal is None else mal)
                    | _ends("speedup", speed)
                    | _ends("clip", student_mean(scores) if scores else UNKNOWN)
                )
    return pd.DataFrame(lines)


def _clip_by_prompt(run: Run, entry: Entry) -> dict[int, float]:
    """Returns the CLIP scores of a decoder's pictures by the index of their prompt."""
    scores = run.scores.get(entry.name, {}).get("clip_each") or ()
    indices = pictures(drawn(entry.rows)).prompt_index.astype(int)
    return dict(zip(indices, scores, strict=True)) if len(scores) else {}


def ambiguity_of(images: pd.DataFrame) -> dict[str, Interval]:
    """Returns the figures of recorded pairs by column of the summary: mass of the likeliest codes
    and entropy of target and drafter, alpha. Means over pairs, intervals over images."""
    pairs = images.alpha.map(len).to_numpy(float)
    figures = {"alpha": _share(images.alpha.map(np.sum).to_numpy(float), pairs)}
    for of in ("target", "drafter"):
        curve = dict(zip(RANKS, mass_curve(images, of), strict=True))
        figures |= {f"{of}_top_{n}": curve[n] for n in TOP}
        entropy = images[f"{of}_entropy"].to_numpy(float)
        known = np.isfinite(entropy)
        figures[f"{of}_entropy"] = UNKNOWN
        if known.any():
            figures[f"{of}_entropy"] = student_ratio((entropy * pairs)[known], pairs[known])
    return figures


def mass_curve(images: pd.DataFrame, of: str) -> Iterator[Interval]:
    """Yields the mass of the likeliest codes at recorded pairs, for each of `RANKS`. of: "target"
    or "drafter"."""
    known: Any = images[images[f"{of}_mass"].map(len) == len(RANKS)]
    pairs = known.alpha.map(len).to_numpy(float)
    for at in range(len(RANKS)):
        mass = np.array([each[at] for each in known[f"{of}_mass"]])
        yield _share(mass * pairs, pairs)


def _ends(name: str, figure: Interval) -> dict[str, float]:
    return {name + end: value for end, value in zip(ENDS, vars(figure).values(), strict=True)}
