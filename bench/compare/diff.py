"""Two runs decoder by decoder, or two decoders of one run, by image.

Two decoders of one run are compared by their seconds in the same blocks; decoders of two runs by
their speed-ups, each over the AR of its own run, since an hour or a machine slows both; of
pooled replicates one by one, where both sides have them. Codes per forward, pooled, and scores of
images are compared by Student's t of the paired differences. FID is compared with how AR's own FID
differs from seed to seed (`metrics.stats.differs_by_chance`, at level / decoders). CLIP and FID
must have been measured in the same way, FID of the same prompts.

Over the m decoders of a figure p-values are adjusted for false discoveries at level q (Benjamini
and Hochberg 1995), and so are intervals: with R adjusted p-values below q, each misses the truth in
a share max(R, 1) q / m of cases (Benjamini and Yekutieli 2005). So an interval leaves out no effect
exactly where p < q.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from bench.analyse.analyse import load
from bench.analyse.contrast import contrast
from bench.analyse.paired import JOINED_BELOW_SECONDS, image_rows, paired_speedup
from bench.analyse.run import IMAGE_KEY, Entry, Run, Section
from bench.errors import ConfigError, plural
from bench.report.table import interval
from bench.store.facts import differences
from bench.version import short_commit
from metrics.replicates import over
from metrics.speedup import FEWEST_BLOCKS, Speedup
from metrics.stats import Interval, PairedDifference, differs_by_chance

NOT_APART, EQUAL = "not told apart", "equal"
RATIOS = ("images per second", "speed-up over AR")
SCORES = {"codes per forward": "mal", "CLIP": "clip"}  # and the figure that each is


def require_one_version(studies: Sequence[str]) -> None:
    """Raises ConfigError where `main@1` meets `main@2`."""
    names = {study.rpartition("@")[0] for study in studies}
    if len(names) == 1 < len({*studies}):
        raise ConfigError(
            f"expected runs of one version of a study, found {' and '.join(studies)}: its "
            "decoders, prompts or settings have changed, so their figures do not compare; run the "
            "older again"
        )


@dataclass(frozen=True, eq=False)
class Side:
    """One decoder of one run. unmeasured: why its times do not count; protocol: how CLIP was
    measured, and how FID."""

    run: Run
    section: Section
    entry: Entry
    unmeasured: str
    protocol: Mapping[str, Mapping[str, str]]

    @property
    def prompts(self) -> list[str]:
        """Of its quality images."""
        return sorted(self.entry.line.drawn.prompt)


def read_sides(folder: Path) -> dict[str, Side]:
    """Reads the decoders of a finished run by name. Raises FolderError on a folder that is none."""
    run, sides = load(folder), dict[str, Side]()
    for section in run.sections:
        for entry in section.decoders:
            reason = run.fairness[entry.name].reason if run.unmeasured(entry) else ""
            lines = entry.line.scores.protocol.items()
            clip = {k: v for k, v in lines if k.startswith(("clip_", "crop"))}
            fid = {k: v for k, v in lines if not k.startswith("clip_")}
            sides[entry.name] = Side(run, section, entry, reason, {"CLIP": clip, "FID": fid})
    return sides


def speed_of(a: Side, b: Side) -> tuple[str, Speedup] | str:
    """B's speed over A's and which of `RATIOS` it is, or why there is none; "" for AR of two runs,
    whose speed-up is 1."""
    for where, side in (("A", a), ("B", b)):
        if side.unmeasured:
            return f"times in {where} do not count, as {side.unmeasured}"
    base_a, base_b = a.section.baseline, b.section.baseline
    speedup, in_one_run = None, a.run.folder.resolve() == b.run.folder.resolve()
    if in_one_run:
        speedup = paired_speedup(a.entry.rows, b.entry.rows)
    elif base_a is None or base_b is None:
        return f"there is no AR of its sampling in {'A' if base_a is None else 'B'}"
    elif a.entry is base_a:
        return ""
    else:
        one, other = a.entry.line.speedup, b.entry.line.speedup
        speedup = over(other, one) if one and other else None
    if speedup is None:
        return "no block has timings that count of both" + " it and AR" * (not in_one_run)
    if math.isnan(speedup.p):
        return (
            f"expected {FEWEST_BLOCKS} blocks that start {JOINED_BELOW_SECONDS} s apart "
            f"(latency.blocks, latency.spacing), found {speedup.blocks}; run it again with more"
        )
    return RATIOS[not in_one_run], speedup


def differences_of(
    pairs: Sequence[tuple[Side, Side]], level: float
) -> tuple[pd.DataFrame, list[str]]:
    """Compares all figures of all pairs, at this level of false discoveries, and says why speeds
    are not compared. value, lo, hi: B over A for ratios (rates, so that above 1 B is faster), else
    B less A; pairs: images, of ratios blocks; p: two-sided, NaN for FID; p, lo and hi adjusted."""
    lines, without = list[dict[str, Any]](), dict[str, list[str]]()
    tested = dict[str, list[tuple[dict[str, Any], Speedup | PairedDifference]]]()  # by figure

    def add(figure: str, found: Speedup | PairedDifference | Interval) -> None:
        line = {"a": a.entry.name, "b": b.entry.name, "figure": figure, "pairs": 0, "p": math.nan}
        lines.append(line)
        if isinstance(found, Interval):
            line |= vars(found)
        else:
            tested.setdefault(figure, []).append((line, found))

    for a, b in pairs:
        speed = speed_of(a, b)
        if isinstance(speed, str):
            without.setdefault(speed, []).append(b.entry.name)
        else:
            add(*speed)

        in_one_way = {name: a.protocol[name] == b.protocol[name] for name in ("CLIP", "FID")}
        for figure, name in SCORES.items():
            less = contrast(name, a.entry, b.entry)
            if less is not None and in_one_way.get(figure, True):
                add(figure, less)

        fid = b.entry.number("fid") - a.entry.number("fid")
        reach = differs_by_chance(a.section.seeds("fid"), level / len(pairs))
        # FID depends on how many images there are, and of what.
        if in_one_way["FID"] and a.prompts == b.prompts and not math.isnan(fid + reach):
            reach = reach if fid else 0.0  # equal images: nothing is left to chance
            add("FID", Interval(fid, fid - reach, fid + reach))

    for some in tested.values():
        adjusted = false_discovery_control([found.p for _, found in some])
        share = level * max((adjusted < level).sum(), 1) / len(some)
        for (line, found), p in zip(some, adjusted, strict=True):
            line |= {"pairs": found.count, "p": p, **vars(found.interval(share))}

    table = pd.DataFrame(lines, columns=["a", "b", "figure", "pairs", "p", "value", "lo", "hi"])
    order = [*RATIOS, *SCORES, "FID"].index
    table = table.sort_values("figure", key=lambda names: names.map(order), kind="stable")
    ratio, is_fid = table.figure.isin(RATIOS), table.figure == "FID"
    differs = (table.p < level) | is_fid & ((table.lo > 0) | (table.hi < 0))
    good = (table.value > ratio) != is_fid
    names = np.where(ratio, np.where(good, "faster", "slower"), np.where(good, "better", "worse"))
    kinds = [table.value == ratio, ~differs]
    if (ar := without.pop("", [])) and len(ar) == len(pairs):
        without["speed-ups are over AR, and no other decoder is in both"] = ar
    unpaired = [f"no speed of {', '.join(of)} was compared: {why}" for why, of in without.items()]
    return table.assign(verdict=np.select(kinds, [EQUAL, NOT_APART], names)), unpaired


def changes_of(
    pairs: Sequence[tuple[Side, Side]], rows: Sequence[Any], unpaired: Sequence[str]
) -> list[str]:
    """Says what differs beyond chance and by how much, why speeds are not compared, whether the
    images are equal, and of each run: folder, machine, code and gate verdicts."""
    lines = [
        f"{d.b} is {d.verdict} {'in B' if d.a == d.b else f'than {d.a}'}: {interval(d, 3)} "
        f"({'ratio' if d.figure in RATIOS else 'difference'} of {d.figure})"
        for d in rows
        if d.verdict not in (NOT_APART, EQUAL)
    ] or ["no figure differs beyond chance"] * bool(rows)
    lines += unpaired
    key = ["protocol", *IMAGE_KEY]
    images = [[image_rows(side.entry.rows).set_index(key) for side in pair] for pair in pairs]
    # A committed run has left the codes out, to be small; its pictures have digests.
    whole = any(all(one.codes.map(len).any() for one in pair) for pair in images)
    what, column = ("codes", "codes") if whole else ("pictures", "image_hash")
    count, sizes, differing = 0, [0, 0], []
    for (_, side), pair in zip(pairs, images, strict=True):
        a, b = (one[column][one[column].map(len) > 0].map(tuple) for one in pair)
        sizes = [sizes[0] + len(a), sizes[1] + len(b)]
        a, b = a.align(b, join="inner")
        count += len(a)
        if unequal := int((a != b).sum()):
            differing.append(f"{side.entry.name} ({unequal} of {len(a)} images)")
    if 0 < count < max(sizes):
        lines.append(
            f"all but speed is of the {plural(count, 'image')} that both made: A has {sizes[0]:,}, "
            f"B {sizes[1]:,}"
        )
    equal = f"equal in {what} ({plural(len(pairs), 'decoder')}, {plural(count, 'image')})"
    differ = f"differ in {what}: {', '.join(differing) or 'they share no image'}"
    runs = [*zip("AB", zip(*pairs, strict=True), strict=False)]
    if any(a.entry.name != b.entry.name for a, b in pairs):
        runs = [("A and B", pairs[0])]  # two decoders of one run, whose codes differ by themselves
    else:
        lines.append(f"A and B {differ}" if differing or not count else f"A and B are {equal}")
    for name, sides in runs:
        run = sides[0].run
        first = run.rows.iloc[0]
        commits = sorted({short_commit(commit, 12) for commit in run.rows.git_commit})
        torch = run.identity.get("machine", {}).get("torch", "not recorded")
        lines.append(
            f"{name}: {run.folder}, on {first.gpu or first.cpu or first.device}, "
            f"{plural(int(first.threads), 'thread')}, PyTorch {torch}, commit "
            + (", ".join(commits) or "unknown")
            + (" (changed)" if run.rows.git_dirty.any() else "")
            + ("" if run.machine is None else f", {run.machine}")
        )
        verdicts = dict[str, list[str]]()
        for side in sides:
            verdicts.setdefault(side.entry.word or "not judged", []).append(side.entry.name)
        lines += [f"   {verdict}: {', '.join(of)}" for verdict, of in verdicts.items()]
    return lines


def notes_of(
    places: Sequence[Path], runs: Sequence[dict[str, Side]], pairs: Sequence[tuple[Side, Side]]
) -> list[str]:
    """Says what differs between two runs, which quality is not compared, and what failed."""
    where, apart, lines = ("in A", "in B"), dict[str, list[str]](), []
    for place, run, other in zip(places, runs, reversed(runs), strict=True):
        if names := sorted(run.keys() - other.keys()):
            lines.append(f"only in {place}: {', '.join(names)}")
    configs = [next(iter(sides.values())).run.identity.get("config", {}) for sides in runs]
    if text := differences(configs[0], configs[-1], where):
        lines.append(f"settings differ: {text}")
    for a, b in pairs:
        for figure in ("CLIP", "FID"):
            if text := differences(a.protocol[figure], b.protocol[figure], where):
                why = f"{figure} was measured in two ways, {text}"
                apart.setdefault(why, []).append(b.entry.name)
    lines += [f"not compared: {why} ({', '.join(names)})" for why, names in apart.items()]
    for side in (side for pair in pairs for side in pair):
        name, count = f"{side.entry.name} in {side.run.folder.resolve()}", len(side.entry.errors)
        lines += [f"{name}: {count} of {len(side.entry.rows)} rows failed"] * bool(count)
    return lines
