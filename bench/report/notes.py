"""Writes the sentences of a report: footnotes, facts of the run, columns, provenance.

Footnotes are one sentence each, as they are read with the table. Facts and columns go to the
details; docs/results.md explains every figure in full. What is the same for all runs is in
templates/notes.j2.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import jinja2

from bench.analyse.fairness import FAIR, FAIRNESS_UNKNOWN
from bench.analyse.run import RESEED_LABEL, Run, Section, as_text
from bench.errors import plural
from bench.report.names import pieces
from bench.report.table import ABSENT, DAGGER, NOISE, number, percent
from bench.version import short_commit
from metrics.fid import FEWEST_IMAGES

MOST_VALUES = 12  # of one fact; more are counted
TEMPLATES = Path(__file__).parent / "templates"
PROVENANCE = (
    "model", "backend", "device", "dtype", "seed", "git_commit", "git_dirty", "versions", "cpu",
    "gpu", "threads", "config_hash", "started_at",
)  # fmt: skip


@lru_cache  # a template is compiled once for all prompts
def environment(escape: bool) -> jinja2.Environment:
    """Opens the templates of the report. escape: texts, for HTML."""
    opened = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    opened.filters |= {"pieces": pieces, "plural": plural}
    return opened


def paragraphs(name: str, *values: object) -> list[str]:
    """Fills in a macro of templates/notes.j2 and divides its text."""
    text = getattr(environment(False).get_template("notes.j2").module, name)(*values)
    return list(filter(None, (" ".join(note.split()) for note in text.split("\n\n"))))


def footnotes(run: Run) -> list[str]:
    """Says how to read the main tables."""
    over = any(entry.over_declared for entry in run.entries)
    return paragraphs("footnotes", NOISE, ABSENT, DAGGER, over, len(run.folders)) + marks(run)


def marks(run: Run) -> list[str]:
    """Explains the numbers in the tables; says whose baseline was not judged, or that all are
    fair."""
    numbered = enumerate(run.marks, 1)
    notes = [f"({n}) {mark}: {reason.removesuffix('.')}." for n, (mark, reason) in numbered]
    reasons: dict[str, dict[str, list[str]]] = {FAIRNESS_UNKNOWN: {}, FAIR: {}}  # of timed decoders
    for entry in run.entries:
        fair = run.fairness.get(entry.name)
        timed = not math.isnan(entry.number("speedup"))
        if fair is not None and timed and fair.verdict in reasons:
            reasons[fair.verdict].setdefault(fair.reason, []).append(entry.name)
    lines = [
        f"Fairness of the baseline unknown for {', '.join(names)}: {reason}."
        for reason, names in reasons[FAIRNESS_UNKNOWN].items()
    ]
    lines += [f"{f.decoder}: {f.mixed}." for f in run.fairness.values() if f.mixed]
    if reasons[FAIR] and not lines and not any(map(run.speed_mark, run.entries)):
        lines.append(f"Baselines are fair: {'; '.join(reasons[FAIR])}.")
    return notes + lines


def floors(run: Run) -> list[str]:
    """Says how to read the tables of time over floor, and why a floor is missing."""
    unknown: dict[str, list[str]] = {}  # why a floor is not known -> decoders
    for name, line in run.roofline.items():
        if line["note"]:
            unknown.setdefault(line["note"], []).append(name)
    return paragraphs("floors") + [f"{', '.join(names)}: {why}." for why, names in unknown.items()]


def facts(run: Run) -> list[str]:
    """Says what the tables do not show of this run: how far the baseline's own time moved between
    its blocks, seeds, what other programs took of the cores, code and model."""
    lines, rows = [], run.rows
    for section in run.sections:
        for one in run.lines("blocks", section):
            few, most = int(one["fewest"]), int(one["most"])
            count = f"{few} to " * (few < most) + plural(most, "block")
            seconds = " to ".join(number(one[end], 3) for end in ("least_s", "greatest_s"))
            lines.append(
                f"{section.title}: timed in {count}; from block to block "
                f"{one['baseline']} took {seconds} s per image."
            )
        lines.append(f"{section.title}: {_quality(section)}")
    for load in run.lines("load"):
        if math.isfinite(load["share_median"]):
            median, greatest = (
                percent(load[f"share_{name}"], 0) for name in ("median", "greatest")
            )
            lines.append(
                f"While images were timed, others took {median} of the cores (median; at most "
                f"{greatest}). {load['disturbed']} of {load['timings']} timings were disturbed and "
                "do not count."
            )
        elif load["timings"]:
            lines.append(
                "What other programs took of the cores could not be read, so nobody knows which of "
                f"the {load['timings']} timings they disturbed."
            )
    code = rows.git_commit.where(rows.git_commit.fillna("") != "", "no commit").map(short_commit)
    code += rows.git_dirty.map({True: " with changes"}).fillna("")
    text = f"Code {', '.join(code.unique())}; model {', '.join(rows.model.unique())}."
    return [*lines, text]


def _quality(section: Section) -> str:
    """Names decoders with too few images for a CLIP score and FID, or says where AR's would lie
    under one more seed."""
    drawn = [e for e in section.decoders if not e.failed and e.word != "synthetic"]
    blank = [e for e in drawn if math.isnan(e.number("clip"))]
    scores = [pair for e in drawn for pair in e.line.scores.figures.items()]
    measured = dict.fromkeys(name for name, one in scores if not math.isnan(one.value))
    if drawn and len(blank) == len(drawn) and "fid" not in measured:
        if measured:
            return f"the study's metric measures {', '.join(measured)}, no CLIP score and no FID."
        return (
            "no quality figures were measured: metric=none, keep_images=false, fewer images than "
            f"quality.images={FEWEST_IMAGES}, or a metric that failed, of which the run warned."
        )
    if names := ", ".join(e.name for e in blank if e.number("n_quality") < FEWEST_IMAGES):
        return (
            f"no CLIP score and FID of {names}; both need at least {FEWEST_IMAGES} images "
            f"(quality.images={FEWEST_IMAGES})."
        )
    fid, clip = section.reseeded("fid"), section.reseeded("clip")
    if math.isnan(fid.value + clip.value):
        return f"no figures of an {RESEED_LABEL}, so FID has no mark."
    seeds = len(section.seeds("fid"))
    reach = "a rough guess: two seeds, twice their difference" if seeds == 2 else "in 95 % of cases"
    ranges = (f"{number(one.value, 2)} ± {number(one.half_width, 2)}" for one in (fid, clip))
    return (
        f"AR was run under {seeds} seeds. Under one more seed its {section.fid_name} would lie "
        f"within {next(ranges)}, its {section.clip_name} within {next(ranges)} ({reach})."
    )


def provenance(run: Run) -> list[tuple[str, str]]:
    """Lists (name, distinct values over all rows); a run with several values is a mixture."""
    facts = []
    for column in PROVENANCE:
        values = [text for text in map(as_text, run.rows[column].dropna().unique()) if text]
        if len(values) > MOST_VALUES:
            values = [f"{len(values)} values from {min(values)} to {max(values)}"]
        if values:
            text = ", ".join(value.strip("{}").replace('"', "") for value in values)
            facts.append((column, text))
    return facts
