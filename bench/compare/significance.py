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

import pandas as pd
from scipy.stats import false_discovery_control, ttest_1samp

from bench.analyse.analyse import load
from bench.analyse.paired import image_rows, latency_rows, paired_speedup
from bench.analyse.run import Entry, Role, Run, Section
from metrics.speedup import Speedup
from metrics.stats import Interval, student_mean

NOT_APART, EQUAL = "not told apart", "equal"
RATE, SPEEDUP = "images per second", "speed-up over AR"
RATIOS = (RATE, SPEEDUP)
SCORES = ("codes per forward", "CLIP")
FIGURES = (*RATIOS, *SCORES, "FID")
IMAGE = ["prompt_index", "seed", "prompt"]


@dataclass(frozen=True, eq=False)
class Side:
    """One decoder of one run."""

    run: Run
    section: Section
    entry: Entry

    @property
    def picture_scores(self) -> Mapping[str, Any]:
        """The scores of its pictures, {} where there are none."""
        return self.run.scores.get(self.entry.name, {})

    @property
    def folder(self) -> str:
        return str(self.run.folder.resolve())

    @property
    def unmeasured(self) -> str:
        """Why its times do not count, "" where they do."""
        return self.run.fairness[self.entry.name].reason if self.run.unmeasured(self.entry) else ""

    @property
    def images(self) -> pd.DataFrame:
        """The images of the quality protocol, in the order in which they were scored."""
        rows = self.entry.ok
        return rows[rows.protocol == "quality"].sort_values("prompt_index")

    def digests(self, column: str) -> dict[tuple[Any, ...], Any]:
        """Returns the `codes` or `image_hash` of every image that has them."""
        rows = self.entry.images[["protocol", *IMAGE, column]].itertuples(index=False, name=None)
        return {tuple(key): value.tobytes() if column == "codes" else value
                for *key, value in rows if len(value)}  # fmt: skip

    def protocol(self, figure: str) -> dict[str, str]:
        """Selects lines of the `protocol` of `Scores` that FID, or CLIP, depends on."""
        lines = self.picture_scores.get("protocol", {})
        if figure == "CLIP":
            return {k: v for k, v in lines.items() if k.startswith(("clip_", "crop"))}
        return {k: v for k, v in lines.items() if not k.startswith("clip_")}

    def scores(self) -> pd.DataFrame:
        """Tabulates figures per image, indexed by `IMAGE`: codes per forward, and CLIP score, NaN
        without one. Timed images where no pictures were drawn."""
        pictures = self.images[self.images.image != ""]
        each = self.picture_scores.get("clip_each", ())
        clip: Any = each if len(pictures) and len(each) == len(pictures) else math.nan
        rows = pictures if len(pictures) else image_rows(latency_rows(self.entry.rows))
        scores = rows.set_index(IMAGE)[["mal"]].rename(columns={"mal": "codes per forward"})
        return scores.assign(CLIP=clip)


def read_sides(folder: Path) -> dict[str, Side]:
    """Reads the decoders of a finished run by name. Raises FolderError on a folder that is none."""
    run = load(folder)
    return {
        entry.name: Side(run, section, entry)
        for section in run.sections
        for entry in section.entries
        if entry.role is not Role.RESEED
    }


@dataclass(frozen=True)
class Difference(Interval):
    """One figure of two decoders: B over A for ratios (rates, so that above 1 B is faster), else B
    less A. p: two-sided, adjusted; None for FID."""

    a: str
    b: str
    figure: str
    pairs: int
    p: float | None = None
    verdict: str = NOT_APART


def _difference(
    a: Side, b: Side, figure: str, pairs: int, value: Interval, p: float | None
) -> Difference:
    ends = (value.value, value.lo, value.hi)
    return Difference(*ends, a.entry.name, b.entry.name, figure, pairs, p)


def differences_of(sides: Sequence[tuple[Side, Side]], level: float) -> list[Difference]:
    """Compares all figures of all pairs of sides, at this level of false discoveries."""
    each = level / max(len(sides), 1)
    every = [d for a, b in sides for d in (*_speed(a, b), *_scores(a, b), *_fid(a, b, each))]
    out = []
    for figure in FIGURES:
        of_figure = [d for d in every if d.figure == figure]
        tested = [d.p for d in of_figure if d.p is not None]
        adjusted = iter(false_discovery_control(tested) if tested else [])
        for d in of_figure:
            if d.p is not None:
                p = float(next(adjusted))
                d = replace(d, p=p, verdict=_verdict(d, p < level))
            out.append(d)
    return out


def any_worse(every: Sequence[Difference]) -> bool:
    return any(d.verdict in ("slower", "worse") for d in every)


def _verdict(one: Difference, differs: bool) -> str:
    if one.value == float(one.figure in RATIOS):
        return EQUAL
    if not differs:
        return NOT_APART
    if one.figure in RATIOS:
        return "faster" if one.value > 1 else "slower"
    return "better" if (one.value > 0) == (one.figure != "FID") else "worse"


def _speed(a: Side, b: Side) -> list[Difference]:
    """Compares seconds of A over B's: within a run directly, else by their speed-ups over AR. []
    without an interval."""
    if a.unmeasured or b.unmeasured:
        return []
    figure, ratio = SPEEDUP, _ratio_of_speedups(a, b)
    if a.folder == b.folder:
        figure, ratio = RATE, paired_speedup(a.entry.rows, b.entry.rows)
    if ratio is None or math.isnan(ratio.p):
        return []
    return [_difference(a, b, figure, ratio.blocks, ratio.interval(), ratio.p)]


def _ratio_of_speedups(a: Side, b: Side) -> Speedup | None:
    """Divides the speed-up of B over its AR by that of A."""
    bases = a.section.baseline, b.section.baseline
    if bases[0] is None or bases[1] is None or a.entry is bases[0]:
        return None
    one = paired_speedup(bases[0].rows, a.entry.rows)
    other = paired_speedup(bases[1].rows, b.entry.rows)
    return None if one is None or other is None else other.over(one)


def _scores(a: Side, b: Side) -> list[Difference]:
    both = a.scores().add_suffix(" a").join(b.scores().add_suffix(" b"), how="inner")
    out = []
    for figure in SCORES:
        less = (both[f"{figure} b"] - both[f"{figure} a"]).dropna().to_numpy(float)
        in_two_ways = figure == "CLIP" and a.protocol("CLIP") != b.protocol("CLIP")
        if len(less) < 2 or in_two_ways:
            continue
        # Without scatter there is no t: a difference is sure, none is no difference.
        p = float(ttest_1samp(less, 0).pvalue) if less.std() else float(not less.any())
        out.append(_difference(a, b, figure, len(less), student_mean(less), p))
    return out


def _fid(a: Side, b: Side, level: float) -> list[Difference]:
    less = b.entry.number("fid") - a.entry.number("fid")
    reach = a.section.differs_by_chance("fid", level)
    if math.isnan(less) or math.isnan(reach) or a.protocol("FID") != b.protocol("FID"):
        return []
    if sorted(a.images.prompt) != sorted(b.images.prompt):  # FID depends on how many, and of what
        return []
    reach = reach if less else 0.0  # equal images: nothing is left to chance
    fid = _difference(a, b, "FID", 0, Interval(less, less - reach, less + reach), None)
    return [replace(fid, verdict=_verdict(fid, abs(less) > reach))]
