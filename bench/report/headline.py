"""Writes the answer first: which decoder is the fastest, on what machine, and what is not sure.

Made from the figures of the tables, for each section.
"""

from __future__ import annotations

import math

from bench.analyse.contrast import beats_baseline, fastest, may_be_as_fast, ranked
from bench.analyse.floors import Bounds, bounds
from bench.analyse.paired import JOINED_BELOW_SECONDS
from bench.analyse.run import DIVISIONS, Entry, Role, Run, Section
from bench.errors import plural
from bench.measure.roofline import three_digits
from bench.report.table import interval, percent
from bench.report.tables import output_tv
from bench.version import short_commit
from metrics.speedup import FEWEST_BLOCKS
from metrics.stats import NOT_TOLD


def headline(run: Run) -> list[str]:
    """Writes what spoils the run, a few sentences per section, and one on the machine."""
    if run.all_failed:
        return ["Every decoder of this run failed; there is nothing to plot."]
    lines = []
    broken = [e for e in run.entries if e.word == "broken" and e.role is not Role.RESEED]
    if broken:
        names = [f"{e.name}{run.verdict(e).removeprefix(e.word)}" for e in broken]
        lines.append(f"Broken, for the reasons in the notes: {', '.join(names)}.")
    for load in run.lines("load"):
        if not load["counted"]:
            others = percent(load["share_median"], 0)
            lines.append(
                f"No speed: {load['disturbed']} of {load['timings']} timings were disturbed "
                f"(others took {others} of the cores). Run the study under "
                "another name= on a quiet machine, or with latency.busy=1."
            )
    for section in run.sections:
        prefix = f"{section.title}. " if len(run.sections) > 1 else ""
        lines += [prefix + line for line in _fastest(run, section)]
    lines += _replicates(run)
    return [*lines, _machine(run)] if lines else []


def _replicates(run: Run) -> list[str]:
    """Says which runs the figures are of, and which are not pooled."""
    inside = [p.relative_to(run.folder) if run.folder in p.parents else p for p in run.folders]
    lines, places = list[str](), ", ".join(map(str, inside))
    if run.folders:
        lines.append(f"Every figure is of {plural(len(run.folders), 'replicate')} ({places}).")
        commits = sorted({short_commit(f"{one}") for one in run.rows.git_commit.dropna()})
        if len(commits) > 1:
            lines.append(f"They are of different commits: {', '.join(commits)}.")
    if run.beside:
        names = ", ".join(place.name for place in run.beside)
        lines.append(
            f"The runs in {names} of this folder are on the same prompts, and are not pooled with "
            "this one: no figure is of them."
        )
    return lines


def headliners(run: Run, section: Section) -> list[Entry]:
    """Those of whom the first lines speak: AR, the fastest exact decoder, and the fastest relaxed
    one whose CLIP score is not worse than AR's; fewer, where there is none such."""
    counted = ranked(run, section)
    exact = [e for e in counted if e.exact]
    good = [e for e in counted if e.division == DIVISIONS[1] and section.not_worse(e)]
    return [e for e in (section.baseline, *exact[:1], *good[:1]) if e is not None]


def _fastest(run: Run, section: Section) -> list[str]:
    """Names the fastest of the decoders whose speed-up counts, and what is not sure."""
    counted = ranked(run, section)
    if not counted:
        return []
    exact, relaxed, unjudged = ([e for e in counted if e.division == name] for name in DIVISIONS)
    good = [e for e in relaxed if section.not_worse(e)]
    lines = [_sentence(run, section, exact, "exact decoder", len(exact))] if exact else []
    margin = f"CLIP score is not worse than AR's by more than {section.margin:g}"
    if good:
        kind = f"relaxed decoder whose {margin}"
        lines.append(_sentence(run, section, good, kind, len(relaxed)))
    elif any(section.quality(e) for e in relaxed):
        lines.append(f"No relaxed decoder is known whose {margin}.")
    if unjudged:
        kind = "decoder without a verdict"
        lines.append(_sentence(run, section, unjudged, kind, len(unjudged)))
    doubts = _doubts(
        section, counted, [e for e in section.decoders if e.failed or run.unmeasured(e)]
    )
    return [*lines, f"Not sure: {'; '.join(doubts)}."] if doubts else lines


def _sentence(run: Run, section: Section, entries: list[Entry], kind: str, division: int) -> str:
    """Names the fastest decoder of a kind and those that are not told apart from it. Says whether
    it is faster than AR, and what its forward costs. entries: of the kind, the fastest first;
    division: how many decoders it was chosen from."""
    entry = entries[0]
    speedup = fastest(entry, division)
    tv = "0" if entry.exact else output_tv(entry).replace(" ≤ ", ", at most ")
    start = f"Fastest {kind}: {entry.name}"
    if not beats_baseline(entry, division):
        chance = " beyond chance" * speedup.contains(1)
        start = f"No {kind} is faster than AR{chance}. The fastest: {entry.name}"
    if close := [other.name for other in may_be_as_fast(entries)]:
        start += f", or {' or '.join(close)} (not told apart). {entry.name}"
    speed = f"{interval(speedup, 2)} times as fast as AR"
    if math.isfinite(speedup.lo):
        count = len(run.folders)
        speed += f" in {plural(count, 'replicate')}" if count else " in this run"
        speed += f" (95 % for all {division} decoders together)" * (division > 1)
    parts = [start, speed, run.speed_mark(entry), f"output TV {tv}", entry.word]
    text = ", ".join(filter(None, parts)) + "."
    for line in run.lines("roofline", section):
        if line["decoder"] == entry.name and math.isfinite(cost := line["forward_ar_steps"]):
            codes = f" of {line['codes']:.0f} codes" * (line["codes"] > 1)
            text += f" Its forward{codes} costs {cost:.2f} AR steps."
    return text


def _doubts(section: Section, counted: list[Entry], uncounted: list[Entry]) -> list[str]:
    doubts = []
    judged = {e.name: section.quality(e) for e in counted if e.division == DIVISIONS[1]}
    unclear = {n: one for n, one in judged.items() if one is not None and one.verdict == NOT_TOLD}
    if unclear:
        names = ", ".join(unclear)
        doubts.append(
            f"too few images to tell whether the CLIP score of {names} is worse than the margin "
            "allows"
        )
    without = [e for e in counted if math.isnan(e.interval("speedup").lo)]
    blocks = min((e.number("speedup_blocks") for e in without), default=FEWEST_BLOCKS)
    if blocks < FEWEST_BLOCKS:
        doubts.append(
            f"speed-ups have no interval: {FEWEST_BLOCKS} blocks are needed that start "
            f"{JOINED_BELOW_SECONDS} s apart, found {blocks:g}"
        )
    if uncounted:
        doubts.append(f"no speed-up of {', '.join(e.name for e in uncounted)} counts")
    return doubts


def _machine(run: Run) -> str:
    """Says where the run was measured and what bounds an AR step: once where that is the same in
    all sections. A reader who does not know it takes speed-ups for a verdict on the methods, where
    they are one on the machine."""
    rows = run.rows
    where = rows.gpu.where(rows.gpu.fillna("") != "", rows.cpu).dropna().unique()
    types = "/".join(map(str, rows.dtype.dropna().unique()))
    threads = sorted({str(int(n)) for n in rows.threads.dropna()})
    count = "/".join(threads) + (" thread" if threads == ["1"] else " threads")
    text = f"Measured on {', '.join(where)} ({types}, {count}), batch 1"
    if run.machine is not None:
        text += f", {run.machine}"
    regimes: dict[str, str] = {}
    for section in run.sections:
        bound = bounds(run, section)
        if bound is not None:
            regimes.setdefault(regime(bound), section.title)
    lines = [*regimes] if len(regimes) == 1 else [f"{title}: {s}" for s, title in regimes.items()]
    return f"{text}. {' '.join(lines)}".strip()


def regime(bound: Bounds) -> str:
    """Says what bounds an AR step."""
    read, computed = (f"{three_digits(ms)} ms" for ms in (bound.reading, bound.computing))
    if bound.crossing > 1:
        return (
            f"AR is bound by memory here: a step needs at least {read} to read and {computed} to "
            f"compute. In a forward over {math.ceil(bound.crossing)} codes or more, computing "
            "takes longer than reading."
        )
    return (
        f"AR is bound by arithmetic here: a step needs at least {computed} to compute and {read} "
        "to read, so a forward over n codes costs about n AR steps."
    )
