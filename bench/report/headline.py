"""Writes the answer first: which decoder is the fastest, on what machine, and what is not sure.

Made from the figures of the tables, for each section. `in_display_order` puts its decoders into the
order of all tables and charts: AR, then exact decoders, then relaxed ones, each by its speed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bench.analyse.paired import latency_rows, paired_speedup, timings
from bench.analyse.run_data import Entry, Role, RunData, Section, forward_part
from bench.report.roofline import ar_step_ms, bounds
from bench.report.table import interval, number, percent
from metrics.speedup import FEWEST
from metrics.stats import NOT_TOLD, NOT_WORSE

DAGGER = "†"
GROUPS = ("exact decoders", "relaxed decoders", "not judged")


def group(entry: Entry) -> str:
    """Returns the one of `GROUPS` that a decoder is ranked in."""
    verdict = entry.text("exactness")
    if entry.exact:
        return GROUPS[0]
    return GROUPS[1 if verdict.startswith(("relaxed", "broken")) else 2]


def in_display_order(run: RunData) -> RunData:
    """Sorts the decoders of a run into the order in which they are shown."""

    def place(entry: Entry) -> tuple[bool, int, float]:
        speed = entry.number("speedup")
        order = GROUPS.index(group(entry))
        return entry.failed, order, math.inf if math.isnan(speed) else -speed

    sections = []
    for section in run.sections:
        rest = [e for e in section.entries if e.role is Role.DECODER]
        first = [e for e in section.entries if e.role is not Role.DECODER]
        sections.append(replace(section, entries=[*first, *sorted(rest, key=place)]))
    return replace(run, sections=sections)


def over_declared(entry: Entry) -> bool:
    """Whether the output TV of tested codes exceeds what the rule declares for them (on TV(p, p_A),
    not on the output)."""
    return entry.number("tv_tested") > entry.number("tv_declared_bound") + 1e-6


def output_tv(entry: Entry) -> str:
    """Formats `0.264 [0.255, 0.273] ≤ 0.279 †`: the mean per committed code, its interval and
    lemma R's bound; 0 for an exact decoder."""
    text = interval(entry.interval("tv_output"), 3)
    bound = entry.number("tv_output_bound")
    if entry.exact or not math.isfinite(bound):
        return number(entry.number("tv_output"), 3)
    mark = f" {DAGGER}" if over_declared(entry) else ""
    return f"{text} ≤ {number(bound, 3)}{mark}"


def not_worse(section: Section, entry: Entry) -> bool:
    """Whether its images are as good as AR's: by its law, or by their CLIP scores within the
    margin."""
    if entry.exact:
        return True
    quality = section.quality(entry)
    return quality is not None and quality.verdict == NOT_WORSE and entry.word != "broken"


def quality(section: Section, entry: Entry) -> str:
    """Formats a table's cell. An exact decoder has AR's quality however its images came out."""
    if entry.exact:
        return "AR's law"
    return str(section.quality(entry) or "not compared")


def headline(run: RunData) -> list[str]:
    """Writes what spoils the run, a few sentences per section, and one on the machine."""
    if run.all_failed:
        return ["Every decoder of this run failed; there is nothing to plot."]
    lines = [*_broken(run), *_no_speed(run)]
    for section in run.sections:
        sentences = _fastest(run, section)
        prefix = f"{section.title}. " if len(run.sections) > 1 else ""
        lines += [prefix + line for line in sentences]
    return [*lines, *_machine(run)] if lines else []


def _broken(run: RunData) -> list[str]:
    """Names the broken decoders with the numbers of their notes; [] without any."""
    every = [e for e in run.entries if e.word == "broken" and e.role is not Role.RESEED]
    names = [f"{e.name}{run.verdict(e).removeprefix(e.word)}" for e in every]
    return [f"Broken, for the reasons in the notes: {', '.join(names)}."] if names else []


def _no_speed(run: RunData) -> list[str]:
    """Says why no timing counts, and what to do; [] where one does or none was made."""
    timed = timings(run.records)
    if timed.empty or len(latency_rows(timed)):
        return []
    others = percent((timed.cpu_others + timed.cpu_steal).median(), 0)
    return [
        f"No speed: {int(timed.disturbed.sum())} of {len(timed)} timings were disturbed (others "
        f"took {others} of the cores). Run the study under another name= on a quiet machine, or "
        "with latency.busy=1."
    ]


def _fastest(run: RunData, section: Section) -> list[str]:
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


def _sentence(run: RunData, section: Section, entry: Entry, kind: str) -> str:
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
    return ", ".join(filter(None, parts)) + "." + _cost(run, section, entry)


def _cost(run: RunData, section: Section, entry: Entry) -> str:
    """Says ` Its forward of 5 codes costs 1.65 AR steps.`; "" where that is not known."""
    line = run.roofline.get(entry.name)
    if line is None:
        return ""
    cost = line[f"{forward_part(line)}_ms"] / ar_step_ms(run, section)
    if not math.isfinite(cost):
        return ""
    return f" Its forward of {line['codes']:.0f} codes costs {cost:.2f} AR steps."


def _doubts(run: RunData, section: Section, best: list[Entry], counted: list[Entry]) -> list[str]:
    """Lists what the figures leave open."""
    doubts = []
    for first in {e.name: e for e in best}.values():
        pool = [e for e in counted if e.exact] if first.exact else counted
        rivals = [e for e in pool if e is not first and not_worse(section, e)]
        close = [e.name for e in rivals if _as_fast(e, first)]
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


def _as_fast(one: Entry, other: Entry) -> bool:
    """Whether one decoder may be as fast as another, by their times in the same blocks; False
    where they have no interval."""
    ratio = paired_speedup(other.records, one.records)
    return ratio is not None and ratio.interval().hi >= 1


def _machine(run: RunData) -> list[str]:
    """Says where the run was measured and what bounds an AR step. A reader who does not know it
    takes speed-ups for a verdict on the methods, where they are one on the machine."""
    rows = run.records
    where = rows.gpu.where(rows.gpu.fillna("") != "", rows.cpu).dropna().unique()
    types = "/".join(map(str, rows.dtype.dropna().unique()))
    threads = sorted({str(int(n)) for n in rows.threads.dropna()})
    text = f"Measured on {', '.join(where)} ({types}, {'/'.join(threads)} threads), batch 1"
    if run.machine is not None:
        text += f", {run.machine}"
    return [f"{text}. {' '.join(regime_lines(run))}".strip()]


def regime_lines(run: RunData) -> list[str]:
    """Says what bounds an AR step: one line for what all sections share, else one per section; []
    where no floor is known."""
    sentences: dict[str, str] = {}
    for section in run.sections:
        bound = bounds(run, section)
        if bound is not None:
            sentences.setdefault(str(bound), section.title)
    if len(sentences) == 1:
        return [*sentences]
    return [f"{title}: {text}" for text, title in sentences.items()]
