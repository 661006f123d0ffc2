"""`python -m bench diff A B`: two runs decoder by decoder, or two decoders of one run, paired by
image. Exit status 1 where something of B is slower or worse than A, so that CI can stop on it.

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

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from scipy.stats import false_discovery_control, ttest_1samp

from bench.analyse.analyse import load
from bench.analyse.paired import image_rows, latency_rows, paired_speedup
from bench.analyse.run_data import Entry, RunData, Section
from bench.config.words import folders, settings
from bench.console import say
from bench.data.errors import ConfigError, unknown
from bench.data.files import prepare_file, write_text
from bench.report.table import Column, interval, table_of, terminal
from bench.store.study import differences
from decoders.kinds import Within
from metrics.stats import Interval, student_mean

NOT_APART, EQUAL = "not told apart", "equal"
RATIOS = ("images per second", "speed-up over AR")
SCORES = ("codes per forward", "CLIP")
FIGURES = (*RATIOS, *SCORES, "FID")
IMAGE = ["prompt_index", "seed", "prompt"]
USAGE = "write `diff A B` for two run folders, or `diff A decoders=x,y` for two decoders of one"


@dataclass(frozen=True)
class DiffSettings:
    """The settings of `cmd_diff`."""

    decoders: str | None = None
    level: Annotated[float, Within(0, 1, below=True)] = 0.05
    out: Path | None = None


def cmd_diff(words: Sequence[str]) -> int:
    """Two runs, or two decoders of one, paired by image: diff RUN_A [RUN_B].
    On the images that both made. First what differs, then machines, commits, verdicts, and every
    figure: better, worse, equal or not told apart. Exit status 1 where B is slower or worse than A.

    settings:
      decoders=A,B  two decoders of one run folder
      level=X       share of false discoveries to allow (default: 0.05)
      out=FILE      the same as JSON

    example:
      python -m bench diff results/runs/main results/runs/main_again
    """
    places, words = folders(words)
    options = settings(DiffSettings, words)
    wanted = 1 if options.decoders else 2
    if len(places) != wanted:
        raise ConfigError(f"expected {wanted} run folders, found {len(places)}; {USAGE}")
    if options.out:
        prepare_file(options.out)
    runs = [read_sides(folder) for folder in places]
    if options.decoders is None:
        pairs = [(side, runs[1][name]) for name, side in runs[0].items() if name in runs[1]]
    else:
        names = [name.strip() for name in options.decoders.strip("[]").split(",")]
        if len(names) != 2:
            raise ConfigError(f"decoders= takes two names, found {len(names)}: {names!r}")
        if missing := [name for name in names if name not in runs[0]]:
            raise ConfigError(unknown("decoder of this run", missing[0], runs[0]))
        pairs = [(runs[0][names[0]], runs[0][names[1]])]
    found, notes = differences_of(pairs, options.level), notes_of(places, runs, pairs)
    every = [*found.itertuples(index=False)]
    table = terminal(table_of(COLUMNS, every)) if every else "the two have no figure in common"
    say("\n".join([*describe_changes(pairs, every), *describe_runs(pairs), table, *notes]))
    if options.out:
        lines = found.astype(object).where(found.notna(), None).to_dict("records")
        write_text(options.out, json.dumps({"findings": lines, "notes": notes}, indent=1))
    return int(found.verdict.isin(["slower", "worse"]).any())


@dataclass(frozen=True, eq=False)
class Side:
    """One decoder of one run. unmeasured: why its times do not count, "" where they do; pictures:
    the images of the quality protocol, in the order in which they were scored."""

    run: RunData
    section: Section
    entry: Entry
    unmeasured: str
    pictures: pd.DataFrame
    scored: Mapping[str, Any]

    def protocol(self, figure: str) -> dict[str, str]:
        """Selects lines of the `protocol` of `Scores` that FID, or CLIP, depends on."""
        start = ("clip_", "crop") if figure == "CLIP" else "clip_"
        lines = self.scored.get("protocol", {}).items()
        return {k: v for k, v in lines if k.startswith(start) == (figure == "CLIP")}

    def scores(self) -> pd.DataFrame:
        """Tabulates figures per image, indexed by `IMAGE`: codes per forward, and CLIP score, NaN
        without one. Timed images where no pictures were drawn."""
        drawn, each = self.pictures[self.pictures.image != ""], self.scored.get("clip_each", ())
        rows = drawn if len(drawn) else image_rows(latency_rows(self.entry.records))
        scores = rows.set_index(IMAGE)[["mal"]].set_axis(["codes per forward"], axis=1)
        return scores.assign(CLIP=each if len(each) == len(drawn) > 0 else math.nan)


def read_sides(folder: Path) -> dict[str, Side]:
    """Reads the decoders of a finished run by name. Raises FolderError on a folder that is none."""
    run, sides = load(folder), {}
    for section in run.sections:
        for entry in section.decoders:
            reason = run.fairness[entry.name].reason if run.unmeasured(entry) else ""
            drawn = entry.ok[entry.ok.protocol == "quality"].sort_values("prompt_index")
            scored = run.scores.get(entry.name, {})
            sides[entry.name] = Side(run, section, entry, reason, drawn, scored)
    return sides


def differences_of(pairs: Sequence[tuple[Side, Side]], level: float) -> pd.DataFrame:
    """Compares all figures of all pairs, at this level of false discoveries. value, lo, hi: B over
    A for ratios (rates, so that above 1 B is faster), else B less A; pairs: images, of ratios
    blocks; p: two-sided, adjusted, NaN for FID."""
    lines = []

    def add(figure: str, count: int, p: float, value: Interval) -> None:
        names = {"a": a.entry.name, "b": b.entry.name}
        lines.append({**names, "figure": figure, "pairs": count, "p": p, **vars(value)})

    for a, b in pairs:
        figure, ratio = RATIOS[0], None
        base_a, base_b = a.section.baseline, b.section.baseline
        if a.run.folder.resolve() == b.run.folder.resolve():
            ratio = paired_speedup(a.entry.records, b.entry.records)
        elif base_a and base_b and a.entry is not base_a:
            figure = RATIOS[1]
            one = paired_speedup(base_a.records, a.entry.records)
            other = paired_speedup(base_b.records, b.entry.records)
            ratio = other.over(one) if one and other else None
        if ratio and not (a.unmeasured or b.unmeasured or math.isnan(ratio.p)):
            add(figure, ratio.blocks, ratio.p, ratio.interval())

        both = a.scores().add_suffix(" a").join(b.scores().add_suffix(" b"), how="inner")
        for figure in SCORES:
            less = (both[f"{figure} b"] - both[f"{figure} a"]).dropna().to_numpy(float)
            in_two_ways = figure == "CLIP" and a.protocol("CLIP") != b.protocol("CLIP")
            if len(less) > 1 and not in_two_ways:
                # Without scatter there is no t: a difference is sure, none is no difference.
                p = float(ttest_1samp(less, 0).pvalue) if less.std() else float(not less.any())
                add(figure, len(less), p, student_mean(less))

        fid = b.entry.number("fid") - a.entry.number("fid")
        reach = a.section.differs_by_chance("fid", level / len(pairs))
        # FID depends on how many images there are, and of what.
        alike = sorted(a.pictures.prompt) == sorted(b.pictures.prompt)
        if alike and a.protocol("FID") == b.protocol("FID") and not math.isnan(fid + reach):
            reach = reach if fid else 0.0  # equal images: nothing is left to chance
            add("FID", 0, math.nan, Interval(fid, fid - reach, fid + reach))

    table = pd.DataFrame(lines, columns=["a", "b", "figure", "pairs", "p", "value", "lo", "hi"])
    table = table.sort_values("figure", key=lambda s: s.map(FIGURES.index), kind="stable")
    tested = table[table.p.notna()].groupby("figure").p
    table["p"] = tested.transform(lambda p: false_discovery_control(p.to_numpy(float)))
    return table.assign(verdict=[_verdict(one, level) for one in table.itertuples()])


def _verdict(one: Any, level: float) -> str:
    ratio, is_fid = one.figure in RATIOS, one.figure == "FID"
    if one.value == float(ratio):
        return EQUAL
    if not (one.lo > 0 or one.hi < 0 if is_fid else one.p < level):
        return NOT_APART
    if ratio:
        return "faster" if one.value > 1 else "slower"
    return "better" if (one.value > 0) != is_fid else "worse"


COLUMNS = (
    Column("decoder", lambda f: f.a if f.a == f.b else f"{f.a} -> {f.b}"),
    Column("figure", lambda f: f.figure),
    Column("B / A, or B - A", lambda f: interval(f, 3)),
    Column("images (of speed: blocks)", lambda f: f"{f.pairs or ''}"),
    Column("p", lambda f: "" if f.p != f.p else f"{f.p:.3f}" if f.p >= 0.001 else "< 0.001"),
    Column("B is", lambda f: f.verdict),
)


def describe_changes(pairs: Sequence[tuple[Side, Side]], every: Sequence[Any]) -> list[str]:
    """Says what differs beyond chance and by how much, and whether the images are equal."""
    lines = [
        f"{d.b} is {d.verdict} {'in B' if d.a == d.b else f'than {d.a}'}: {interval(d, 3)} "
        f"({'ratio' if d.figure in RATIOS else 'difference'} of {d.figure})"
        for d in every
        if d.verdict not in (NOT_APART, EQUAL)
    ] or ["no figure differs beyond chance"] * bool(every)
    lines += ["no speed was compared"] * all(d.figure not in RATIOS for d in every)
    images = [[s.entry.images.set_index(["protocol", *IMAGE]) for s in pair] for pair in pairs]
    # A committed run has left the codes out, to be small; its pictures have digests.
    whole = any(all(rows.codes.map(len).any() for rows in pair) for pair in images)
    what, column = ("codes", "codes") if whole else ("pictures", "image_hash")
    count, differing = 0, []
    for (_, side), pair in zip(pairs, images, strict=True):
        a, b = (rows[column][rows[column].map(len) > 0].map(tuple) for rows in pair)
        a, b = a.align(b, join="inner")
        count += len(a)
        if unequal := int((a != b).sum()):
            differing.append(f"{side.entry.name} ({unequal} of {len(a)} images)")
    if count and not differing:
        return [*lines, f"A and B are equal in {what} ({len(pairs)} decoders, {count} images)"]
    return [*lines, f"A and B differ in {what}: {', '.join(differing) or 'they share no image'}"]


def describe_runs(pairs: Sequence[tuple[Side, Side]]) -> list[str]:
    """Describes each run: folder, machine, code and gate verdicts."""
    runs = [*zip("AB", zip(*pairs, strict=True), strict=False)]
    if any(a.entry.name != b.entry.name for a, b in pairs):
        runs = [("A and B", pairs[0])]  # two decoders of one run
    lines = []
    for name, sides in runs:
        run = sides[0].run
        first, commits = run.records.iloc[0], sorted({c[:12] for c in run.records.git_commit})
        torch = run.identity.get("machine", {}).get("torch", "not recorded")
        lines.append(
            f"{name}: {run.folder}, on {first.gpu or first.cpu or first.device}, "
            f"{first.threads} threads, PyTorch {torch}, commit {', '.join(commits) or 'unknown'}"
            + (" (changed)" if run.records.git_dirty.any() else "")
            + ("" if run.machine is None else f", {run.machine}")
        )
        verdicts = defaultdict[str, list[str]](list)
        for side in sides:
            verdicts[side.entry.word or "not judged"].append(side.entry.name)
        lines += [f"   {verdict}: {', '.join(of)}" for verdict, of in verdicts.items()]
    return lines


def notes_of(
    places: Sequence[Path], runs: Sequence[dict[str, Side]], pairs: Sequence[tuple[Side, Side]]
) -> list[str]:
    """Says what differs between two runs, what is therefore not compared, and what failed."""
    words, apart, lines = ("in A", "in B"), defaultdict[str, list[str]](list), []
    for place, run, other in zip(places, runs, reversed(runs), strict=True):
        if names := sorted(run.keys() - other.keys()):
            lines.append(f"only in {place}: {', '.join(names)}")
    configs = [next(iter(sides.values())).run.identity.get("config", {}) for sides in runs]
    if text := differences(configs[0], configs[-1], words):
        lines.append(f"settings differ: {text}")
    for a, b in pairs:
        for figure in ("CLIP", "FID"):
            if text := differences(a.protocol(figure), b.protocol(figure), words):
                apart[f"{figure} was measured in two ways, {text}"].append(b.entry.name)
    lines += [f"not compared: {why} ({', '.join(names)})" for why, names in apart.items()]
    untimed, failed = list[str](), list[str]()
    for side in (side for pair in pairs for side in pair):
        where, count = f"{side.entry.name} in {side.run.folder.resolve()}", side.entry.failures
        untimed += [f"not compared: times of {where}: {side.unmeasured}"] * bool(side.unmeasured)
        failed += [f"{where}: {count} of {len(side.entry.records)} rows failed"] * bool(count)
    return [*lines, *dict.fromkeys(untimed), *failed]
