"""What is said below the tables of a report: at most six footnotes, facts of the run, columns.

Footnotes are one sentence each, as they are read with the table. Facts and columns go to the
details; docs/results.md explains every figure in full.
"""

from __future__ import annotations

import math

from bench.judge.paired import every_latency_row, repeats, timings
from bench.report.cells import RESEED_LABEL
from bench.report.model import Role, Run, Section
from bench.report.roofline import fairness_legend
from bench.report.table import ABSENT, NOISE, interval, number, percent
from bench.run.schedule import REPLAYED
from metrics.stats import FEWEST_BLOCKS, Interval

MANUAL = "docs/results.md"


def footnotes(run: Run) -> list[str]:
    """How to read the main tables."""
    lines = [
        f"[a, b]: 95 % interval; {NOISE}: chance can explain the difference from AR; {ABSENT}: not "
        "measured.",
        "Speed-up: AR's seconds over the decoder's on the same prompts, batch 1; s/image: prefill "
        "and decoding.",
        "MAL: codes committed per target forward, bonus code included; NFE: target forwards per "
        "image.",
        "Output TV: distance of the committed code's law from the target's (0: the same law).",
        "Verdict, on small models: exact (the target's own distribution), bounded (output TV "
        "within what the rule declares) or violates.",
    ]
    fairness = " ".join(fairness_legend(run))
    return [*lines, fairness] if fairness else lines


def facts(run: Run) -> list[str]:
    """What the tables do not show of this run: seeds, rounds, replayed lengths, code, processor."""
    sources = [f"{e.name}: {e.loop}" for e in run.entries if e.replayed]
    lines = []
    if sources:
        lines.append(
            f"{REPLAYED.capitalize()}: the number of accepted drafts is stated or recorded "
            f"({'; '.join(sources)}). Every step is really computed. Only the times mean anything: "
            "the codes follow no distribution."
        )
    for section in run.sections:
        if max((entry.number("n_latency") for entry in section.decoders), default=0) == 1:
            lines.append(f"{section.title}: one prompt was timed, and a speed-up needs two.")
        lines += [*drift(section), *fastest(run, section), reseed_lines(section)]
    return [*lines, *neighbours(run), made_by(run)]


def neighbours(run: Run) -> list[str]:
    """What other programs took of the cores while images were timed."""
    timed = timings(run.records)
    taken = (timed.cpu_others + timed.cpu_steal).dropna()
    if timed.empty:
        return []
    if taken.empty:
        return ["What other programs took of the cores while images were timed is not known."]
    return [
        f"While images were timed, others took {percent(taken.median(), 0)} of the cores (median; "
        f"at most {percent(taken.max(), 0)}). Of {len(timed)} timings {int(timed.disturbed.sum())} "
        "were disturbed, which do not count."
    ]


def fastest(run: Run, section: Section) -> list[str]:
    """Which exact decoder is the fastest, where several were timed on one clock."""
    timed = [e for e in section.decoders if not math.isnan(e.number("speedup"))]
    known = [entry for entry in timed if entry.exact and not run.eager(entry)]
    if sum(entry.role is Role.DECODER for entry in known) < 2:
        return []
    ahead = [entry for entry in known if entry.number("speedup_lo") > 1]
    if not ahead:
        return [
            f"{section.title}: none of {len(known)} exact decoders is faster than AR ({NOISE})."
        ]
    best = max(ahead, key=lambda entry: entry.number("speedup"))
    speed = Interval(*(best.number(f"speedup{end}") for end in ("", "_lo", "_hi")))
    return [
        f"{section.title}: of {len(known)} exact decoders {best.name} is the fastest, "
        f"{interval(speed, 2)} times AR with {number(best.number('mal'), 2)} codes per forward."
    ]


def columns(run: Run) -> list[str]:
    """What footnotes leave out: how each figure is defined."""
    lines = [
        "MAL, NFE and moved mass are of the quality images, or of the timed ones if there are no "
        "others. Output TV is of quality images only; times and speed-ups are of the timed ones.",
        "MAL expected: codes per forward that the drafter expected, 1 + the sum of its "
        "probabilities of all drafted paths. Compared with MAL it tells the drafter's calibration.",
        f"A speed-up is noise ({NOISE}) if its interval includes 1.",
        "A quality figure is noise if AR might have it under another seed: Student's t of one more "
        "run. The tests of all decoders and figures of a run are corrected for their number "
        "(Holm): in at most one run of twenty a decoder that draws as AR does lacks the mark.",
        "Quiet speed-up: from lower quartiles of a step's seconds. Other programs only ever add "
        "time, so it moves less from run to run.",
        "Moved mass: TV(p, p_A) of the relaxed target. Bound: what the rule declares on it.",
        "Output TV: the mean over recorded nodes of the tree. It is exact for one drawn child and "
        "for fixed children. For several drawn children it is the sum of what each adds, weighted "
        "with the probability that those before it were rejected. On average that is no less than "
        "the node's own.",
        "Output bound: what the acceptance allows, sum (q a - p)+ over the children of the same "
        "nodes. Declared bound: what the rule declares, composed over the children. The papers' "
        "delta and lambda bound TV(p, p_A), not the output.",
        "The verdict on a relaxed rule says which of the two bounds holds.",
    ]
    if any(section.compares_clip for section in run.sections):
        lines.append(
            "CLIP - AR: the decoder's CLIP score less that of AR at the same temperature on the "
            "same prompt, the mean with its interval over prompts. If AR ran under several seeds, "
            "their mean stands for it, and each seed is compared with the others. With only one AR "
            f"seed, its luck shifts every row equally. {NOISE}, also at the CLIP score: the "
            "difference is noise after the correction."
        )
    if run.roofline:
        lines += [
            "Step: all but the prefill, divided by the target forwards. Draft call: one forward of "
            "the drafter, growing the tree included.",
            "Floor: max(bytes / bandwidth, operations / rate) of weights, cache and head.",
        ]
    return [*lines, f"Every figure in full: {MANUAL}."]


def reseed_lines(section: Section) -> str:
    """Where AR's quality lies under other seeds, or why that is not known."""
    fid, clip = section.reseeded("fid"), section.reseeded("clip")
    unknown = math.isnan(fid.value + clip.value)
    if section.reseeds and unknown:
        return f"{section.title}: no quality figures of AR, so none is marked."
    if unknown:
        unmarked = "FID is not" if section.compares_clip else "neither FID nor CLIP is"
        return f"{section.title}: no {RESEED_LABEL}, so {unmarked} marked."
    return (
        f"{section.title}: under {len(section.reseeds) + 1} seeds AR's {section.fid_name} is "
        f"{around(fid)}, its {section.clip_name} {around(clip)}."
    )


def around(reseeded: Interval) -> str:
    """`17.98 ± 0.87`, with as many decimals as the reach calls for."""
    reach = number(reseeded.half_width)
    digits = len(reach.partition(".")[2])
    return f"{number(reseeded.value, digits)} ± {reach}"


def made_by(run: Run) -> str:
    """Which code ran which model on which processor: all that the rows name."""
    rows = run.records
    code = rows.git_commit.where(rows.git_commit.fillna("") != "", "no commit")
    code = code.str.replace(r"^([0-9a-f]{10})[0-9a-f]+$", r"\1", regex=True)
    code += rows.git_dirty.map({True: " with changes"}).fillna("")
    where = rows.gpu.where(rows.gpu.fillna("") != "", rows.cpu)
    named = {"Code": code.unique(), "model": rows.model.unique(), "on": where.dropna().unique()}
    return f"{'; '.join(f'{key} ' + ', '.join(map(str, v)) for key, v in named.items())}."


def drift(section: Section) -> list[str]:
    """How far the baseline's own time moved between the moments it was timed in: the blocks of
    prompts, of which every round has its own."""
    if section.baseline is None:
        return []
    rows = every_latency_row(section.baseline.records)
    seconds = rows.groupby("block")["seconds_total"].mean()
    if len(seconds) < 2:
        return []
    times, blocks = repeats(rows), int(rows.groupby("repeat")["block"].nunique().max())
    part, cut = ("block", f"{blocks} blocks of prompts") if blocks > 1 else ("round", "all prompts")
    over = "blocks" if len(seconds) >= FEWEST_BLOCKS else "prompts, blocks being too few"
    counts = "Intervals of speed-ups are over " + over
    if times > 1:
        cut = f"{times} rounds of {cut}"
        counts = (
            f"Every image was timed {times} times, its fastest counts; intervals of speed-ups are "
            "over prompts and these moments"
        )
    return [
        f"{section.title}: timed in {cut}; from {part} to {part} "
        f"{section.baseline.name} took {number(seconds.min(), 3)} to {number(seconds.max(), 3)} s "
        f"per image. {counts}."
    ]
