"""A record of a stranger, held against its own rows: what follows from them is made of them again.

Computed: seconds, speed-ups with their intervals, codes per forward, CLIP's mean, fairness of the
baseline, which decoders there are, on which machine. A claim that differs is refused. What no row
holds (FID, the gate's verdict) must agree wherever the record says it, and be possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd

from bench.compare.methods import entries
from bench.compare.published import FIGURES
from bench.config.describe import read
from bench.config.schema import FairnessConfig
from bench.data.errors import FolderError
from bench.data.scores import NAN
from bench.judge.fairness import ROOFLINE, UNMEASURED, Fairness, judge
from bench.judge.paired import (
    IMAGE,
    image_rows,
    latency_rows,
    mal_interval,
    paired_speedup,
    timings,
)
from bench.records.kept import images_digest, judged, today
from bench.records.load import lines_of, load
from bench.records.run_data import Entry, Role, RunData, Section
from bench.records.run_json import Record
from metrics.stats import UNKNOWN

NEAR = 1e-6  # relative: as one machine rounds and another does
ROW = [*IMAGE, "decoder", "protocol", "repeat", "batch"]
MASS = ("tv_bound", "tv_moved_mean", "tv_moved_max", "tv_output")
RELAXED = 2  # `decoders.api.CodeKind`: a code that an exact rule would not have taken
LIMITS = {**FIGURES, "clip": (0.0, 100.0), "latency_mean_s": FIGURES["latency_s"]}


def checked(record: Record) -> tuple[RunData, dict[str, Fairness]]:
    """A record's run, and the fairness of its speed-ups. Raises FolderError with the first claim
    that its rows do not bear out."""
    run = load(record.folder)
    floors = pd.DataFrame(lines_of(record.folder / ROOFLINE))
    bases = [section.baseline.name for section in run.sections if section.baseline]
    found = judge(run.records, bases, None if floors.empty else floors, FairnessConfig())
    fairness = {one.decoder: one for one in found}
    for wrong in _wrong(record, run, fairness):
        raise FolderError(f"{record.folder}: {wrong}")
    return run, fairness


def _wrong(record: Record, run: RunData, fairness: dict[str, Fairness]) -> Iterator[str]:
    names = [entry.name for entry in run.entries]
    if len(names) > len({*names}):
        yield "summary.csv names a decoder twice"
    if run.records.duplicated(ROW).any():
        yield "records.parquet holds a row twice"
    timed = timings(run.records)
    if not (timed.seconds_total.between(*LIMITS["latency_mean_s"]) & (timed.nfe > 0)).all():
        yield "a timed image took no time, no forward, or for ever"
    figures = judged(record.folder)
    verdicts = record.said["verdicts"]
    for section in run.sections:
        for entry in (e for e in section.entries if e.role is not Role.RESEED):
            fair = fairness.get(entry.name)
            own = run.records[run.records.decoder == entry.name]
            if fair is None or len(entry.records) < (own.protocol != "reseed").sum():
                yield f"rows of {entry.name} are of another model, device or temperature"
            elif not entry.failed:
                made = figures_of(section, entry, fair, figures.get(entry.name, {}))
                yield from _differing(entry, made)
                yield from _impossible(entry)
                yield from _inexact(entry, verdicts.get(entry.name, ""))


def figures_of(
    section: Section, entry: Entry, fair: Fairness, figures: Mapping[str, Any]
) -> dict[str, float]:
    """The summary's figures of a decoder, from its rows and what was judged of its pictures."""
    timed, drawn = latency_rows(entry.records), entry.ok[entry.ok.protocol == "quality"]
    base = None if section.baseline is None else section.baseline.records
    speed = None if base is None else paired_speedup(base, entry.records)
    if speed is None or fair.verdict == UNMEASURED:
        speed = UNKNOWN
    codes, alone = mal_interval(entry.ok), image_rows(entry.ok)
    scored = drawn[drawn.image != ""].sort_values("prompt_index")
    own = figures.get("of") == images_digest(scored) if len(scored) else False
    scores = figures["value"]["scores"] if own else {}
    each = scores.get("clip_each") or [NAN]
    return {
        "n_latency": len(timed), "latency_mean_s": timed.seconds_total.mean(),
        "speedup": speed.value, "speedup_lo": speed.lo, "speedup_hi": speed.hi,
        "mal": alone.mal.mean() if codes is None else codes.value,
        "n_quality": len(drawn), "clip": sum(each) / len(each),
        **{name: scores.get(name, NAN) for name in ("fid", "fid_lo", "fid_hi", "kid")},
    }  # fmt: skip


def _differing(entry: Entry, made: dict[str, float]) -> Iterator[str]:
    for name, value in made.items():
        said = entry.number(name)
        if math.isnan(said) != math.isnan(value) or abs(said - value) > NEAR * abs(value):
            yield f"{name} of {entry.name} is {said:g} in summary.csv, its rows give {value:g}"


def _impossible(entry: Entry) -> Iterator[str]:
    for name in ("speedup", "latency_mean_s", "mal", "fid", "clip", "precision", "recall"):
        value, (low, high) = entry.number(name), LIMITS[name]
        if not (math.isnan(value) or low <= value <= high):
            yield f"{name} of {entry.name} is {value:g}, which cannot be"
    for name in ("speedup", "fid", "clip"):
        ends = entry.interval(name)
        if ends.lo > ends.value or ends.value > ends.hi:
            yield f"{name} of {entry.name} lies outside its own interval"


def _inexact(entry: Entry, verdict: str) -> Iterator[str]:
    """Verdicts that contradict each other, or the rule's own masses and codes."""
    cell = entry.text("exactness")
    words = {*today(verdict).split()[:1], *(["relaxed"] if verdict.startswith("violates") else [])}
    if verdict and not entry.replayed and not words & {*cell.split()[:1]}:
        yield f"{entry.name} is {cell or 'not judged'} in summary.csv, {verdict} in exactness.csv"
    if not entry.exact:
        return
    moved = any(entry.number(name) > NEAR for name in MASS)
    rule, greedy = read(entry.text("acceptance")).name, entry.number("temperature") == 0
    if moved or any(RELAXED in kinds for kinds in entry.ok["kind"]):
        yield f"{entry.name} is called exact, and its rule moved mass"
    if rule in _relaxed_rules() and not greedy:
        yield f"{entry.name} is called exact, and its rule {rule} is not"


@cache
def _relaxed_rules() -> set[str]:
    """Names of rules that no decoder of conf/decoder expects to be exact."""
    expected: dict[str, set[str]] = {}
    for _, written in entries():
        rule = (written.get("published") or {}).get("parts", {}).get("acceptance", "none")
        expected.setdefault(rule, set()).add(str(written.get("expect", "exact")))
    return {rule for rule, words in expected.items() if "exact" not in words}
