"""Which rows of a run count, and a decoder's figures paired with its baseline's on the same images:
speed-ups and CLIP scores; with them the codes per forward, and the names of reseeds.

Why apart: the summary, the speed model and the comparison with published numbers pair the same rows
of the latency protocol, and must come to the same interval. CLIP scores differ far more from prompt
to prompt than from decoder to decoder: the interval of a mean score holds what prompts do to it,
that of a mean difference does not. Where the baseline was run under other seeds too, the mean of
its seeds stands for it, so that one lucky seed does not count against every decoder; and each of
its seeds is held against the others: what a seed does.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from functools import reduce

import pandas as pd

from metrics.latency import LogRatio, Timings, quiet_ratio
from metrics.stats import FEWEST_BLOCKS, Interval, bootstrap_mean, fastest_ratio, paired_ratio

IMAGE = ["prompt_index", "seed"]
ROUND = [*IMAGE, "repeat"]
MOST = 1 / 3  # of a decoder's timings: where more are disturbed, the others are hardly quiet
CLIP_PAIRS = "clip_pairs.csv"  # of a run folder
CLIP_LESS = "clip_less_baseline"  # followed by _lo and _hi: its 95 % interval over prompts
CLIP_FIGURES = [CLIP_LESS, f"{CLIP_LESS}_lo", f"{CLIP_LESS}_hi"]
CLIP_COLUMNS = ["decoder", "baseline", "seeds", "images", *CLIP_FIGURES]
Scored = Mapping[int, float]  # prompt index -> 100 cos
_RESEED = re.compile(r"(.*) \(reseed(?: (\d+))?\)")


def timings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of timed images that came out, each as often as it was timed, disturbed or not."""
    return rows[(rows.protocol == "latency") & (rows.status == "ok")]


def every_latency_row(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of `timings` that count: not the disturbed ones, and none of a decoder of which more
    than `MOST` are."""
    timed = timings(rows)
    share = timed.groupby("decoder")["disturbed"].transform("mean")
    return timed[~timed["disturbed"].astype(bool) & (share <= MOST)]


def busy(rows: pd.DataFrame) -> str:
    """Why no time of a decoder counts, where others were on the machine; else ""."""
    from bench.measure.busy import words

    timed = timings(rows)
    if timed.empty or len(every_latency_row(timed)):
        return ""
    found = timed[timed["disturbed"]]
    return f"the machine was busy ({words(float((found.cpu_others + found.cpu_steal).mean()))})"


def image_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each image of a decoder that came out, prompt by prompt: of one that was timed
    several times the fastest, since all decode the same codes and what else runs on a machine only
    ever adds time. Without those that were timed in batches."""
    alone = rows[(rows.status == "ok") & (rows.protocol != "batched")]
    rising = alone.sort_values("seconds_total", kind="stable")
    return rising.drop_duplicates([*IMAGE, "protocol", "decoder"]).sort_values(IMAGE, kind="stable")


def latency_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The timed images among `image_rows`."""
    return image_rows(every_latency_row(rows))


def rounds(baseline: pd.DataFrame, decoder: pd.DataFrame) -> pd.DataFrame:
    """The images that both decoded, each as often as both came out in the same round: columns of
    the baseline end in _0, of the decoder in _1. The fastest of three times is less than the
    fastest of one, so a round that one of them lacks says nothing of the other."""
    theirs, ours = every_latency_row(baseline), every_latency_row(decoder)
    return theirs.merge(ours, on=ROUND, suffixes=("_0", "_1")).sort_values(ROUND)


def pairs(baseline: pd.DataFrame, decoder: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The images of `rounds`, of each decoder one row an image, in the same order: the fastest."""
    both = rounds(baseline, decoder)[ROUND]
    return latency_rows(baseline.merge(both)), latency_rows(decoder.merge(both))


def mal_interval(rows: pd.DataFrame) -> Interval | None:
    """Codes per target forward, pooled over a decoder's images, with its 95 % bootstrap interval
    over them; None below two. The same images as the summary's `mal`: quality ones, else timed."""
    images = image_rows(rows)
    drawn = images[images.protocol == "quality"]
    used = drawn if len(drawn) else images
    used = used[used.nfe > 0]
    if len(used) < 2:
        return None
    forwards = used.nfe.to_numpy(float)
    return paired_ratio(used.mal.to_numpy(float) * forwards, forwards)


def repeats(rows: pd.DataFrame) -> int:
    """How often an image was timed, at most."""
    return int(rows["repeat"].max()) + 1 if len(rows) else 0


def counted(rows: pd.DataFrame) -> str:
    """What a count of rows counts."""
    return "timings" if repeats(rows) > 1 else "images"


def paired_speedup(baseline: pd.DataFrame, decoder: pd.DataFrame) -> Interval | None:
    """Seconds of the baseline over the decoder's, prefill and decoding, on the images of `pairs`;
    None below 2 of them. The interval is over moments of the machine where the study was timed in
    several: over blocks, or, where every image was timed in several rounds and its fastest time
    counts, over images and the moments in which they were timed."""
    both = rounds(baseline, decoder)
    if len(both[IMAGE].drop_duplicates()) < 2:
        return None
    if repeats(decoder) == 1:
        return paired_ratio(both.seconds_total_0, both.seconds_total_1, blocks=both.block_1)
    seconds = ["seconds_total_0", "seconds_total_1"]
    by_image = both.pivot(index=IMAGE, columns="repeat", values=[*seconds, "block_1"])
    top, bottom = (by_image[name] for name in seconds)  # [images, rounds] each
    return fastest_ratio(top, bottom, by_image["block_1"].fillna(-1))


def quiet(
    tops: Sequence[tuple[str, pd.DataFrame]], bottoms: Sequence[tuple[str, pd.DataFrame]]
) -> tuple[LogRatio, int] | None:
    """`metrics.latency.quiet_ratio` of decoders, each given as its run and its rows, on the images
    that all of them decoded, and how many those are; None below 2. Of a run, all rounds count that
    its decoders share. Moments are its blocks where there are enough to resample, else rounds of
    single images."""
    runs = [run for run, _ in (*tops, *bottoms)]
    timed = [every_latency_row(rows).set_index(ROUND) for _, rows in (*tops, *bottoms)]
    for at, run in enumerate(runs):
        for other in (rows for rows, its in zip(timed, runs, strict=True) if its == run):
            timed[at] = timed[at][timed[at].index.isin(other.index)]
    timed = [rows.reset_index("repeat") for rows in timed]
    images = reduce(lambda a, b: a.intersection(b), (rows.index.unique() for rows in timed))
    if len(images) < 2:
        return None
    timed = [rows[rows.index.isin(images)] for rows in timed]
    blocks = min(rows["block"].nunique() for rows in timed) >= FEWEST_BLOCKS
    rounds = max(repeats(rows) for rows in timed)
    sides = []
    for run, rows in zip(runs, timed, strict=True):
        prompt = images.get_indexer(rows.index)
        moment = rows["block"] if blocks else prompt * rounds + rows["repeat"]
        columns = (rows[c].to_numpy(float) for c in ("seconds_prefill", "seconds_total", "nfe"))
        sides.append(Timings(run, prompt, moment.to_numpy(int), *columns))
    return quiet_ratio(sides[: len(tops)], sides[len(tops) :]), len(images)


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
    return pd.DataFrame(lines, columns=CLIP_COLUMNS)


def with_differences(summary: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """The summary's rows with the difference and its interval; NaN where there is none."""
    figures = differences.set_index("decoder")[CLIP_FIGURES].astype(float)
    return summary.join(figures, on="decoder")


def reseed_name(baseline: str, number: int) -> str:
    """How summary.csv names a baseline under its n-th other seed, n from 1."""
    return f"{baseline} (reseed{'' if number == 1 else f' {number}'})"


def reseed_of(name: str) -> tuple[str, int] | None:
    """(baseline, n) of such a name; None for a decoder's."""
    found = _RESEED.fullmatch(name)
    return (found[1], int(found[2] or 1)) if found else None
