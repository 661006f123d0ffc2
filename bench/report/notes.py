"""Writes the sentences of a report: footnotes, facts of the run, columns, provenance.

Footnotes are one sentence each, as they are read with the table. Facts and columns go to the
details; docs/results.md explains every figure in full. What is the same for all runs is in
templates/notes.j2.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.analyse.analyse import PROVENANCE
from bench.analyse.fairness import FAIR, UNKNOWN
from bench.analyse.paired import latency_rows, timings
from bench.analyse.run_data import RESEED_LABEL, RunData, Section, as_text
from bench.report.headline import DAGGER, over_declared
from bench.report.table import ABSENT, NOISE, number, percent
from metrics.fid import FEWEST

if TYPE_CHECKING:
    import jinja2

MANY = 12  # values of one fact above which they are counted
TEMPLATES = Path(__file__).parent / "templates"


@lru_cache  # a template is compiled once for all prompts
def environment(escape: bool) -> jinja2.Environment:
    """Opens the templates of the report. escape: texts, for HTML."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _notes(name: str, *values: object) -> list[str]:
    """Returns the paragraphs that a macro of templates/notes.j2 makes of values."""
    text = getattr(environment(False).get_template("notes.j2").module, name)(*values)
    return list(filter(None, (" ".join(note.split()) for note in text.split("\n\n"))))


def footnotes(run: RunData) -> list[str]:
    """Says how to read the main tables."""
    over = any(over_declared(entry) for entry in run.entries)
    return _notes("footnotes", NOISE, ABSENT, DAGGER, over) + marks(run)


def marks(run: RunData) -> list[str]:
    """Explains the numbers in the tables; says whose baseline was not judged, or that all are
    fair."""
    numbered = enumerate(run.marks, 1)
    notes = [f"({n}) {mark}: {reason.removesuffix('.')}." for n, (mark, reason) in numbered]
    lines = [
        f"Fairness of the baseline unknown for {', '.join(names)}: {reason}."
        for reason, names in run.decoders_by_reason(UNKNOWN).items()
    ]
    lines += [f"{f.decoder}: {f.mixed}." for f in run.fairness.values() if f.mixed]
    fair = run.decoders_by_reason(FAIR)
    if fair and not lines and not any(map(run.speed_mark, run.entries)):
        lines.append(f"Baselines are fair: {'; '.join(fair)}.")
    return notes + lines


def floors(run: RunData) -> list[str]:
    """Says how to read the tables of time over floor, and why a floor is missing."""
    unknown: dict[str, list[str]] = {}  # why a floor is not known -> decoders
    for name, line in run.roofline.items():
        if line["note"]:
            unknown.setdefault(line["note"], []).append(name)
    missing = [f"{', '.join(names)}: {reason}." for reason, names in unknown.items()]
    return _notes("floors") + missing


def facts(run: RunData) -> list[str]:
    """Says what the tables do not show of this run: seeds, blocks, neighbours, code."""
    lines = []
    for section in run.sections:
        lines += [*drift(section), unscored(section) or reseeds(section)]
    return [*lines, *neighbours(run), code_and_model(run)]


def neighbours(run: RunData) -> list[str]:
    """Says what other programs took of the cores while images were timed, where it is known."""
    timed = timings(run.records)
    share = (timed.cpu_others + timed.cpu_steal).dropna()
    if share.empty:
        return []
    return [
        f"While images were timed, others took {percent(share.median(), 0)} of the cores (median; "
        f"at most {percent(share.max(), 0)}). {int(timed.disturbed.sum())} of {len(timed)} timings "
        "were disturbed and do not count."
    ]


def columns() -> list[str]:
    """Defines the columns that no footnote explains."""
    return _notes("columns", NOISE)


def unscored(section: Section) -> str:
    """Names decoders with too few images for a CLIP score and FID; "" where all have enough."""
    drawn = [e for e in section.decoders if not e.failed and e.word != "synthetic"]
    blank = [e for e in drawn if math.isnan(e.number("clip"))]
    names = ", ".join(e.name for e in blank if e.number("n_quality") < FEWEST)
    if not names:
        return ""
    return (
        f"{section.title}: no CLIP score and FID of {names}; both need at least {FEWEST} "
        f"images (quality.images={FEWEST})."
    )


def reseeds(section: Section) -> str:
    """Says where AR's quality lies under other seeds, or that this is not known."""
    fid, clip = section.reseeded("fid"), section.reseeded("clip")
    if math.isnan(fid.value + clip.value):
        return f"{section.title}: no figures of an {RESEED_LABEL}, so FID has no mark."
    seeds = len(section.reseeds) + 1
    reach = "twice the difference of the two" if seeds == 2 else "in 95 % of cases"
    ranges = (f"{number(one.value, 2)} ± {number(one.half_width, 2)}" for one in (fid, clip))
    return (
        f"{section.title}: AR was run under {seeds} seeds. Under one more seed its "
        f"{section.fid_name} would lie within {next(ranges)}, its {section.clip_name} within "
        f"{next(ranges)} (prediction intervals: {reach})."
    )


def code_and_model(run: RunData) -> str:
    """Says which code ran which model."""
    rows = run.records
    code = rows.git_commit.where(rows.git_commit.fillna("") != "", "no commit").str[:10]
    code += rows.git_dirty.map({True: " with changes"}).fillna("")
    text = f"Code {', '.join(code.unique())}; model {', '.join(rows.model.unique())}."
    forced = ", ".join(run.identity.get("forced") or [])
    return text + f" Records of other code were kept (resume=force): {forced}." * bool(forced)


def drift(section: Section) -> list[str]:
    """Says how far the baseline's own time moved between the blocks that it was timed in."""
    if section.baseline is None:
        return []
    rows = latency_rows(section.baseline.records)
    seconds = rows.groupby("block")["seconds_total"].mean()
    if len(seconds) < 2:
        return []
    return [
        f"{section.title}: timed in {len(seconds)} blocks; from block to block "
        f"{section.baseline.name} took {number(seconds.min(), 3)} to {number(seconds.max(), 3)} s "
        "per image."
    ]


def provenance(run: RunData) -> list[tuple[str, str]]:
    """Lists (name, distinct values over all rows); a run with several values is a mixture."""
    facts = []
    for column in ("model", "backend", "device", "dtype", "seed", *PROVENANCE):
        values = [text for text in map(as_text, run.records[column].dropna().unique()) if text]
        if len(values) > MANY:
            values = [f"{len(values)} values from {min(values)} to {max(values)}"]
        if values:
            facts.append(
                (column, ", ".join(value.strip("{}").replace('"', "") for value in values))
            )
    return facts
