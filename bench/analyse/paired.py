"""Which rows of a run count for what, and paired comparisons of a decoder with its baseline on the
same images: speed-up, CLIP score difference.

The summary, the report, `diff` and `compare` pair the same rows and come to the same interval. CLIP
scores differ far more from prompt to prompt than from decoder to decoder, so the mean difference
over prompts says more than two means. Where the baseline was run under other seeds too, their mean
stands for it, so that one lucky seed does not count against every decoder.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bench.measure.meter import taken
from bench.store.columns import BATCHED, LATENCY
from metrics.replicates import Replicated
from metrics.speedup import Speedup, Timings, speedup
from metrics.stats import student_mean

SETTING = ("temperature", "cfg")  # by which decoders of a run differ and do not compare
IMAGE = ["prompt_index", "seed"]
REPLICATE = "replicate"  # a column of pooled rows: of which replicate one is
JOINED_BELOW_SECONDS = 60  # from the start of a block to that of the next
MOST_LOAD_SHARE = 0.1  # of the cores, taken by others: what `loaded` allows
QUIET_QUANTILE = 0.1  # over timings: a quiet moment, not the best of a few
MOST_DISTURBED_SHARE = 1 / 3  # of a decoder's timings; of more the others are hardly quiet
CLIP_LESS = "clip_less_baseline"  # followed by _lo and _hi: its 95 % interval over prompts
CLIP_COLUMNS = [
    "decoder", "baseline", "seeds", CLIP_LESS, f"{CLIP_LESS}_lo", f"{CLIP_LESS}_hi",
    f"{CLIP_LESS}_sd", "clip_images",
]  # fmt: skip
Scored = Mapping[int, float]  # prompt index -> 100 cos


def baselines_of(
    decoders: Sequence[Mapping[str, Any]], rows: pd.DataFrame
) -> dict[str, str | None]:
    """The first baseline with a decoder's temperature and guidance, of every decoder with rows; in
    the study's order. None: it has none. decoders: of study.json."""
    of_rows = rows.drop_duplicates("decoder").set_index("decoder")
    known = [one for one in decoders if one["name"] in of_rows.index]
    setting = {one["name"]: tuple(of_rows.loc[one["name"], list(SETTING)]) for one in known}
    first = {setting[one["name"]]: one["name"] for one in reversed(known) if one["baseline"]}
    return {name: first.get(key) for name, key in setting.items()}


def by_replicate(rows: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The rows of each replicate, by its number; all under 0 where rows are of one run."""
    if REPLICATE not in rows:
        return {0: rows}
    numbers = rows[REPLICATE]
    return {int(number): rows[numbers == number] for number in sorted(numbers.unique())}


def rows_by_line(name: str, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each line of the summary about a decoder: of its own, and of those under each
    other seed, `<name> (reseed 2)`."""
    mine = rows[rows["decoder"] == name]
    reseeds = mine[mine["protocol"] == "reseed"]
    runs = reseeds.groupby(REPLICATE) if REPLICATE in reseeds else reseeds
    seeds = enumerate(reseeds.groupby(runs["seed"].rank(method="dense")), 1)
    others = {reseed_name(name, number): part for number, (_, part) in seeds}
    return {name: mine.drop(reseeds.index), **others}


def reseed_name(baseline: str, number: int) -> str:
    """How the summary names a baseline under its n-th other seed, n from 1. No decoder is called
    so: a name has no spaces."""
    return f"{baseline} (reseed{'' if number == 1 else f' {number}'})"


def timings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of timed images that came out, disturbed or not."""
    return rows[(rows.protocol == "latency") & (rows.status == "ok")]


def latency_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The timings that count. Disturbed ones do not, and none of a decoder of whose timings more
    than `MOST_DISTURBED_SHARE` is disturbed."""
    timed = timings(rows)
    keys = [name for name in ("decoder", REPLICATE) if name in timed]
    share = timed.groupby(keys)["disturbed"].transform("mean")
    return timed[~timed["disturbed"].astype(bool) & (share <= MOST_DISTURBED_SHARE)]


def busy(rows: pd.DataFrame) -> str:
    """Why no time of a decoder counts, where others were on the machine; else ""."""
    timed = timings(rows)
    if timed.empty or len(latency_rows(timed)):
        return ""
    rows = timed[timed["disturbed"]]
    return f"the machine was busy ({taken(float((rows.cpu_others + rows.cpu_steal).mean()))})"


def loaded(timed: pd.DataFrame) -> str:
    """Why even the quietest of these timings on a processor say little; else ""."""
    share = float((timed.cpu_others + timed.cpu_steal).quantile(QUIET_QUANTILE))
    if not (timed.device == "cpu").all() or share <= MOST_LOAD_SHARE:
        return ""
    return f"the machine was busy all the time ({taken(share)})"


def drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The quality images of a line of the summary that came out, prompt by prompt."""
    good = rows[rows.protocol.isin(("quality", "reseed")) & (rows.status == "ok")]
    return good.sort_values("prompt_index")


def pictures(images: pd.DataFrame) -> pd.DataFrame:
    """Those of which a picture is kept."""
    return images[images.image != ""]


def image_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each image of a decoder that came out, prompt by prompt: in older runs an image
    may be timed twice, with the same codes. Without those that were timed in batches."""
    alone = rows[(rows.status == "ok") & (rows.protocol != "batched")]
    return alone.drop_duplicates([*IMAGE, "protocol", "decoder"]).sort_values(IMAGE, kind="stable")


def images_once(rows: pd.DataFrame) -> pd.DataFrame:
    """`image_rows` of the quality protocol; those that were timed, which are the same images again,
    where there is none."""
    images = image_rows(rows)
    quality = images[images.protocol == "quality"]
    return quality if len(quality) else images


def join_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Joins blocks that start less than `JOINED_BELOW_SECONDS` after another, before anything is
    computed: they are of one moment of the machine, and would count it several times. Blocks are
    numbered anew, in the order of time, replicate by replicate. rows: of a run, all decoders."""
    joined = rows.copy(deep=False)
    timed = rows[rows.protocol.isin((LATENCY, BATCHED))]
    last = dict[Any, int]()
    runs = by_replicate(timed).values()
    for key, mine in (one for run in runs for one in run.groupby(["protocol", "batch"])):
        started = pd.to_datetime(mine.groupby("block").started_at.min(), utc=True)
        number, begin, numbers = last.get(key, -1), None, dict[Any, int]()
        for block, start in started.sort_values(kind="stable").items():
            if begin is None or (start - begin).total_seconds() >= JOINED_BELOW_SECONDS:
                number, begin = number + 1, start
            numbers[block] = number
        last[key] = number
        joined.loc[mine.index, "block"] = mine.block.map(numbers)
    return joined


def paired_speedup(baseline: pd.DataFrame, decoder: pd.DataFrame) -> Speedup | None:
    """Seconds of the baseline over the decoder's, from their rows in one run, or in each of its
    replicates; None where they were not timed in the same blocks, or timings of one do not
    count."""
    if REPLICATE not in decoder:
        return _of_one_run(baseline, decoder)
    first, second = by_replicate(baseline), by_replicate(decoder)
    every = {k: _of_one_run(first[k], part) for k, part in second.items() if k in first}
    known = {k: one for k, one in every.items() if one is not None}
    return Replicated(known) if known else None


def _of_one_run(baseline: pd.DataFrame, decoder: pd.DataFrame) -> Speedup | None:
    """The forwards are of all of its images."""
    sides = []
    for rows in (baseline, decoder):
        timed = latency_rows(rows)
        timed = timed[timed.nfe > 0]
        if timed.empty:
            return None
        prefill = timed.seconds_prefill.fillna(0).to_numpy(float)
        images = rows[(rows.status == "ok") & rows.protocol.isin(("latency", "quality"))]
        forwards: Any = images.groupby("prompt_index").nfe.mean()
        sides.append(
            Timings(
                timed.block.to_numpy(int),
                prefill,
                timed.seconds_total.to_numpy(float) - prefill,
                timed.nfe.to_numpy(float),
                {int(prompt): float(mean) for prompt, mean in forwards.items()},
            )
        )
    return speedup(*sides)


def clip_differences(
    baselines: Mapping[str, str | None], scores: Mapping[str, Sequence[Scored]]
) -> pd.DataFrame:
    """The mean difference of every decoder to its baseline (None: it has none), over the prompts
    that both decoded under all `seeds` of the baseline; without two such prompts there is no row.
    scores: those of a decoder, and behind them those of its reseeds."""
    lines = []
    for name, baseline in baselines.items():
        every = scores.get(baseline or "", ())
        for number, seed_scores in enumerate(scores.get(name, ())):
            others = [s for i, s in enumerate(every) if name != baseline or i != number]
            shared = sorted(set(seed_scores).intersection(*others)) if others else []
            if len(shared) < 2:
                continue
            label = reseed_name(name, number) if number else name
            less = [seed_scores[p] - statistics.fmean(other[p] for other in others) for p in shared]
            mean, sd = student_mean(less), statistics.stdev(less)
            figures = mean.value, mean.lo, mean.hi, sd, len(less)
            lines.append((label, baseline, len(others), *figures))
    return pd.DataFrame(lines, columns=CLIP_COLUMNS)
