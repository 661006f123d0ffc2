"""Writes the answer first: which decoder is the fastest, on what machine, and what is not sure.

Made from the figures of the tables, for each section. `in_display_order` puts its decoders into the
order of all tables and charts: AR, then exact decoders, then relaxed ones, each by its speed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bench.analyse.paired import latency_rows, paired_speedup, timings
from bench.analyse.run import Entry, Role, Run, Section
from bench.report.table import interval, number, percent
from bench.report.timing import ar_step_ms, bounds, forward_part
from metrics.speedup import FEWEST
from metrics.stats import NOT_TOLD, NOT_WORSE

DAGGER = "†"
GROUPS = ("exact decoders", "relaxed decoders", "not judged")


def group(entry: Entry) -> str:
    """Returns the one of `GROUPS` that a decoder is ranked in."""
    if entry.exact:
        return GROUPS[0]
    return GROUPS[1 if entry.text("exactness").startswith(("relaxed", "broken")) else 2]


def in_display_order(run: Run) -> Run:
    """Sorts the decoders of a run into the order in which they are shown."""

    def order(entry: Entry) -> tuple[bool, int, float]:
        speed = entry.number("speedup")
        fastest_first = math.inf if math.isnan(speed) else -speed
        return entry.failed, GROUPS.index(group(entry)), fastest_first

    sections = []
    for section in run.sections:
        rest = [e for e in section.entries if e.role is Role.DECODER]
        first = [e for e in section.entries if e.role is not Role.DECODER]
        sections.append(replace(section, entries=[*first, *sorted(rest, key=order)]))
    return replace(run, sections=sections)


def over_declared(entry: Entry) -> bool:
    """Whether the output TV of tested codes exceeds what the rule declares for them (on TV(p, p_A),
    not on the output)."""
    return entry.number("tv_tested") > entry.number("tv_declared_bound") + 1e-6


def output_tv(entry: Entry) -> str:
    """Formats `0.264 [0.255, 0.273] ≤ 0.279 †`: the mean per committed code, its interval and
    lemma R's bound; 0 for an exact decoder."""
    bound = entry.number("tv_output_bound")
    if entry.exact or not math.isfinite(bound):
        return number(entry.number("tv_output"), 3)
    mark = f" {DAGGER}" if over_declared(entry) else ""
    return f"{interval(entry.interval('tv_output'), 3)} ≤ {number(bound, 3)}{mark}"


def not_worse(section: Section, entry: Entry) -> bool:
    """Whether its images are as good as AR's: by its law, or by their CLIP scores within the
    margin."""
    quality = section.quality(entry)
    good = quality is not None and quality.verdict == NOT_WORSE and entry.word != "broken"
    return entry.exact or good


def quality(section: Section, entry: Entry) -> str:
    """Formats a table's cell. An exact decoder has AR's quality however its images came out."""
    return "AR's law" if entry.exact else str(section.quality(entry) or "not compared")


def headline(run: Run) -> list[str]:
    """Writes what spoils the run, a few sentences per section, and one on the machine."""
    if run.all_failed:
        return ["Every decoder of this run failed; there is nothing to plot."]
    lines = []
    broken = [e for e in run.entries if e.word == "broken" and e.role is not Role.RESEED]
    if broken:
        names = [f"{e.name}{run.verdict(e).removeprefix(e.word)}" for e in broken]
        lines.append(f"Broken, for the reasons in the notes: {', '.join(names)}.")
    timed = timings(run.rows)
    if len(timed) and latency_rows(timed).empty:
        others = percent((timed.cpu_others + timed.cpu_steal).median(), 0)
        lines.append(
            f"No speed: {int(timed.disturbed.sum())} of {len(timed)} timings were disturbed "
            f"(others took {others} of the cores). Run the study under another name= on a quiet "
            "machine, or with latency.busy=1."
        )
    for section in run.sections:
        prefix = f"{section.title}. " if len(run.sections) > 1 else ""
        lines += [prefix + line for line in _fastest(run, section)]
    return [*lines, _machine(run)] if lines else []


def _fastest(run: Run, section: Section) -> list[str]:
    """Names the fastest of the decoders whose speed-up counts, and what is not sure."""
    timed = [e for e in section.decoders if e.role is Role.DECODER and not e.failed]
    counted = [e for e in timed if not (run.unmeasured(e) or run.eager(e))]
    counted = [e for e in counted if not math.isnan(e.number("speedup"))]
    counted.sort(key=lambda e: -e.number("speedup"))
    if not counted:
        return []
    exact, relaxed, unjudged = ([e for e in counted if group(e) == name] for name in GROUPS)
    good = [e for e in relaxed if not_worse(section, e)]
    lines = [_sentence(run, section, exact[0], "exact decoder")] if exact else []
    margin = f"CLIP score is not worse than AR's by more than {section.margin:g}"
    if good:
        lines.append(_sentence(run, section, good[0], f"relaxed decoder whose {margin}"))
    elif any(section.quality(e) for e in relaxed):
        lines.append(f"No relaxed decoder is known whose {margin}.")
    if unjudged:
        lines.append(_sentence(run, section, unjudged[0], "decoder without a verdict"))
    doubts = _doubts(run, section, [*exact[:1], *good[:1]], counted)
    return [*lines, f"Not sure: {'; '.join(doubts)}."] if doubts else lines


def _sentence(run: Run, section: Section, entry: Entry, kind: str) -> str:
    """Names the fastest decoder of a kind, and says whether it is faster than AR, and what its
    forward costs."""
    tv = "0" if entry.exact else output_tv(entry).replace(" ≤ ", ", at most ")
    speedup = entry.interval("speedup")
    start = f"Fastest {kind}: {entry.name}"
    if speedup.contains(1) or speedup.value <= 1:
        chance = " beyond chance" * speedup.contains(1)
        start = f"No {kind} is faster than AR{chance}. The fastest: {entry.name}"
    speed = f"{interval(speedup, 2)} times as fast as AR"
    parts = [start, speed, run.speed_mark(entry), f"output TV {tv}", entry.word]
    text = ", ".join(filter(None, parts)) + "."
    if (line := run.roofline.get(entry.name)) is not None:
        cost = line[f"{forward_part(line)}_ms"] / ar_step_ms(run, section)
        if math.isfinite(cost):
            text += f" Its forward of {line['codes']:.0f} codes costs {cost:.2f} AR steps."
    return text


def _doubts(run: Run, section: Section, best: list[Entry], counted: list[Entry]) -> list[str]:
    doubts = []
    for first in {e.name: e for e in best}.values():
        close = []
        for rival in counted:
            if rival is first or not not_worse(section, rival) or rival.exact < first.exact:
                continue
            ratio = paired_speedup(first.rows, rival.rows)  # by their times in the same blocks
            if ratio is not None and ratio.interval().hi >= 1:
                close.append(rival.name)
        if close:
            doubts.append(f"{', '.join(close)} may be as fast as {first.name}")
    judged = {e.name: section.quality(e) for e in counted if group(e) == GROUPS[1]}
    unclear = [name for name, one in judged.items() if one is not None and one.verdict == NOT_TOLD]
    if unclear:
        names = ", ".join(unclear)
        doubts.append(f"too few images to tell whether the CLIP score of {names} is worse")
    blocks = min((e.number("speedup_blocks") for e in counted), default=FEWEST)
    if blocks < FEWEST:
        doubts.append(
            f"speed-ups have no interval: {FEWEST} blocks are needed, {blocks:g} were timed"
        )
    uncounted = [e.name for e in section.decoders if e.failed or run.unmeasured(e)]
    if uncounted:
        doubts.append(f"no speed-up of {', '.join(uncounted)} counts")
    return doubts


def _machine(run: Run) -> str:
    """Says where the run was measured and what bounds an AR step: once where that is the same in
    all sections. A reader who does not know it takes speed-ups for a verdict on the methods, where
    they are one on the machine."""
    rows = run.rows
    where = rows.gpu.where(rows.gpu.fillna("") != "", rows.cpu).dropna().unique()
    types = "/".join(map(str, rows.dtype.dropna().unique()))
    threads = sorted({str(int(n)) for n in rows.threads.dropna()})
    text = f"Measured on {', '.join(where)} ({types}, {'/'.join(threads)} threads), batch 1"
    if run.machine is not None:
        text += f", {run.machine}"
    regimes: dict[str, str] = {}
    for section in run.sections:
        bound = bounds(run, section)
        if bound is not None:
            regimes.setdefault(str(bound), section.title)
    lines = [*regimes] if len(regimes) == 1 else [f"{title}: {s}" for s, title in regimes.items()]
    return f"{text}. {' '.join(lines)}".strip()
