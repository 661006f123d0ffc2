"""Times of single images by what was decoded, and speed-ups paired over them.

Why apart: the summary, the speed model and the comparison with published numbers pair the same rows
of the latency protocol, and must come to the same interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from metrics.stats import Interval

Key = tuple[int, int]  # prompt index, seed


@dataclass(frozen=True)
class Timed:
    """Timed images: seconds of prefill and decoding, and the latency block of each."""

    seconds: Mapping[Key, float] = field(default_factory=dict)
    blocks: Mapping[Key, int] = field(default_factory=dict)

    def shared(self, other: Timed) -> int:
        """How many images both decoded."""
        return len(self.seconds.keys() & other.seconds.keys())


def every_latency_row(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of timed images that came out, each as often as it was timed."""
    return rows[(rows.protocol == "latency") & (rows.status == "ok")]


def image_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each image of a decoder that came out, prompt by prompt: of one that was timed
    several times the fastest, since all decode the same codes and what else runs on a machine only
    ever adds time."""
    image = ["prompt_index", "seed", "protocol", "decoder"]
    rising = rows[rows.status == "ok"].sort_values("seconds_total", kind="stable")
    return rising.drop_duplicates(image).sort_values(image[:2], kind="stable")


def latency_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The timed images among `image_rows`."""
    return image_rows(every_latency_row(rows))


def repeats(rows: pd.DataFrame) -> int:
    """How often an image was timed, at most."""
    return int(rows["repeat"].max()) + 1 if len(rows) else 0


def counted(rows: pd.DataFrame) -> str:
    """What a count of rows counts."""
    return "timings" if repeats(rows) > 1 else "images"


def timed(rows: pd.DataFrame) -> Timed:
    """The timed images among a decoder's rows. An image that was timed several times belongs to no
    block: the fastest of several moments is not the like of its neighbours' moments."""
    used = latency_rows(rows)
    keys = list(zip(used.prompt_index.astype(int), used.seed.astype(int), strict=True))
    seconds = dict(zip(keys, used.seconds_total.astype(float), strict=True))
    blocks = [0] * len(keys) if repeats(rows) > 1 else used.block.astype(int)
    return Timed(seconds, dict(zip(keys, blocks, strict=True)))


def paired_speedup(baseline: Timed, decoder: Timed) -> Interval:
    """Seconds of the baseline over the decoder's, with the interval over moments of the machine
    where the study was timed in several. Raises MetricError below 2 shared images."""
    from metrics.latency import speedup

    return speedup(dict(baseline.seconds), dict(decoder.seconds), blocks=dict(decoder.blocks))


def quiet(baseline: pd.DataFrame, decoder: pd.DataFrame) -> Interval | None:
    """The speed-up of a quiet machine (`metrics.latency.quiet_speedup`) from the rows of both; None
    below 2 shared images."""
    from metrics.latency import Steps, quiet_speedup

    keys = ["prompt_index", "seed"]
    columns = [*keys, "seconds_prefill", "seconds_total", "nfe"]
    theirs, ours = latency_rows(baseline)[columns], latency_rows(decoder)[columns]
    both = theirs.merge(ours, on=keys, suffixes=("_0", "_1"))
    if len(both) < 2:
        return None
    steps = [
        Steps(*(both[f"{c}_{i}"].to_numpy(float) for c in columns[len(keys) :])) for i in (0, 1)
    ]
    return quiet_speedup(steps[0], steps[1])
