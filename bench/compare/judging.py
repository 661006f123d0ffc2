"""Which claims of papers hold in runs: by the paired effect at 95 %, by the gate, node by node, or
by the margin of quality. Of several settings the worst verdict counts. Runs that measured one
setting again may share prompts and noise, so they are not pooled: the largest stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import UNFAIR_BASELINE, Entry, Run, Section
from bench.compare.claims import Claim, Selector, Spec, comparable
from bench.compare.contrasts import (
    Effect,
    below_bound,
    curves,
    depths_of,
    effects,
    speedup_at_tv,
)
from bench.store.facts import flat
from metrics.stats import NO_INTERVAL, NOT_WORSE, WORSE, Interval

HOLDS, SMALLER, NOT_TOLD, FAILS, REFUTED, NOT_MEASURED = VERDICTS = (
    "holds",
    "holds, smaller",
    "not told",
    "does not hold",
    "refuted without a run",
    "not measured",
)
Specs = Mapping[str, Spec]  # by decoder
WORST = (FAILS, NOT_TOLD, SMALLER, HOLDS)
EVERYWHERE = ("lossless", "bound", "output_bound")  # one counterexample refutes these
ROUNDED_TV = 1e-5  # in float32


@dataclass(frozen=True)
class Judged:
    """One pair of decoders of a run. than: "" where the figure is of one; counts: whether it was
    measured, with an interval, and stands for its setting; setting: what runs that repeat it have
    in common; size: its images, or timings."""

    run: str
    better: str
    than: str
    verdict: str
    effect: Interval
    note: str = ""
    counts: bool = True
    setting: str = ""
    size: int = 0

    @property
    def pair(self) -> str:
        return f"{self.better} / {self.than}" if self.than else self.better


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict, and the pairs that it was judged by."""

    claim: Claim
    verdict: str
    pairs: tuple[Judged, ...] = ()

    @property
    def decisive(self) -> Judged | None:
        """The pair that fits the claim least, of those that have the verdict."""
        mine = [one for one in self.pairs if one.verdict == self.verdict]
        return min([one for one in mine if one.counts] or mine, key=self._fit, default=None)

    @property
    def best(self) -> Judged | None:
        """The pair that fits best, of those that count; None where it fits as the
        `decisive` one does."""
        worst, counted = self.decisive, [one for one in self.pairs if one.counts]
        best = max(counted, key=self._fit, default=worst)
        return None if best and worst and self._fit(best) == self._fit(worst) else best

    def _fit(self, one: Judged) -> tuple[int, float]:
        """How well a pair fits: its verdict, then its effect, or how near that is to none where the
        claim says so. One without an effect, as of a decoder that keeps AR's law, comes last."""
        size = math.inf if math.isnan(one.effect.value) else one.effect.value
        same = not math.isnan(self.claim.within)
        return WORST.index(one.verdict), -abs(size - self.claim.neutral) if same else size


# ---- verdicts -----------------------------------------------------------------------------------


def verdict_of(claim: Claim, effect: Interval) -> str:
    """Judges the effect of a pair by its whole interval."""
    lo, hi, none, within = effect.lo, effect.hi, claim.neutral, claim.within
    if not math.isfinite(lo + hi):
        return NOT_TOLD
    if not math.isnan(within):  # the two do the same
        if none - within < lo and hi < none + within:
            return HOLDS
        return FAILS if lo > none + within or hi < none - within else NOT_TOLD
    if none < lo and hi < claim.published:
        return SMALLER
    if lo > claim.by:
        return HOLDS
    return FAILS if hi < claim.by else NOT_TOLD


def worst(verdicts: Sequence[str]) -> str:
    return min(verdicts, key=WORST.index)


# ---- runs ---------------------------------------------------------------------------------------


def judge(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Finding]:
    """Judges every claim by all pairs of decoders of these runs that it is about. What `once` says
    refutes, unless a run does."""
    findings = []
    for claim in claims:
        pairs = tuple(pair for run in runs for pair in judge_in(claim, run))
        if claim.figure not in EVERYWHERE:
            pairs = largest_of_repeats(pairs)
        counted = [pair.verdict for pair in pairs if pair.counts]
        verdict = worst(counted) if counted else NOT_TOLD if pairs else NOT_MEASURED
        if claim.once and verdict != FAILS:
            verdict = REFUTED
        findings.append(Finding(claim, verdict, pairs))
    return findings


def largest_of_repeats(pairs: Sequence[Judged]) -> tuple[Judged, ...]:
    """The pairs, of which those count that have the most images (timings), each of its setting; the
    first of equal ones."""
    largest = dict[str, Judged]()
    for pair in (one for one in pairs if one.counts):
        if pair.size > largest.setdefault(pair.setting, pair).size:
            largest[pair.setting] = pair
    return tuple(
        replace(one, counts=any(one is other for other in largest.values())) for one in pairs
    )


def judge_in(claim: Claim, run: Run) -> Iterator[Judged]:
    """Judges a claim by each pair of a run; by nothing where a selector matches no decoder."""
    specs = specs_of(run)
    for section in run.sections:
        entries = {entry.name: entry for entry in section.decoders}
        for judged in _judge_section(claim, run, section, specs):
            sides = [name for name in (judged.better, judged.than) if name]
            yield replace(
                judged,
                setting=_setting_of(claim, run, section, judged, [specs[name] for name in sides]),
                size=min(_size_of(claim, entries[name]) for name in sides),
            )


def _setting_of(
    claim: Claim, run: Run, section: Section, judged: Judged, sides: Sequence[Spec]
) -> str:
    """The model, how it is sampled from and the decoders' settings; of seconds the machine too."""
    config, weights, machine = (
        run.identity.get(name, {}) for name in ("config", "weights", "machine")
    )
    model = config.get("model", {}).get("name"), weights.get("target"), section.title
    specs = [
        sorted((k, repr(float(v) if type(v) is int else v)) for k, v in side.items() if k != "name")
        for side in sides
    ]
    depth = judged.note if claim.depth else ""
    timed = (machine.get("cpu"), machine.get("gpu"), config.get("backend")) if _timed(claim) else ()
    return repr((model, specs, depth, timed))


def _size_of(claim: Claim, entry: Entry) -> int:
    return len(entry.line.timed if _timed(claim) else entry.line.images)


def _timed(claim: Claim) -> bool:
    return claim.figure.startswith("speedup")


def _judge_section(claim: Claim, run: Run, section: Section, specs: Specs) -> Iterator[Judged]:
    if claim.better is None:
        return
    first = _matching(claim.better, section, specs)
    if claim.than is None:
        yield from (_alone(claim, run, section, entry) for entry in first)
        return
    second = _matching(claim.than, section, specs)
    pairs = _curve_effects if claim.figure == "speedup_at_tv" else _pair_effects
    for one, other, effect in pairs(claim, run, first, second, specs):
        yield _judged(claim, run, one, other, effect)


def _pair_effects(
    claim: Claim, run: Run, first: Sequence[Entry], second: Sequence[Entry], specs: Specs
) -> Iterator[tuple[str, str, Effect]]:
    """The effects of pairs of decoders that differ in what the claim names alone, with names."""
    for one, other in product(first, second):
        if one is other or not _alike(claim, specs[one.name], specs[other.name]):
            continue
        depths = depths_of(one, other, claim.depth, claim.deeper) if claim.depth else [0]
        for effect in effects(run, claim.figure, one, other, depths) if depths else ():
            yield one.name, other.name, effect


def _curve_effects(
    claim: Claim, run: Run, first: Sequence[Entry], second: Sequence[Entry], specs: Specs
) -> Iterator[tuple[str, str, Effect]]:
    """The same of curves of decoders; each is called after its first."""
    for one, other in product(curves(first, specs), curves(second, specs)):
        settings = [
            {k: v for k, v in specs[curve.entries[0].name].items() if k != curve.setting}
            for curve in (one, other)
        ]
        if _alike(claim, *settings):
            yield one.name, other.name, speedup_at_tv(one, other)


def _alike(claim: Claim, one: Spec, other: Spec) -> bool:
    return bool(claim.better and claim.than and comparable(claim.better, one, claim.than, other))


def _judged(claim: Claim, run: Run, better: str, than: str, effect: Effect) -> Judged:
    verdict, counts = verdict_of(claim, effect.value), math.isfinite(effect.value.lo)
    if effect.note == UNFAIR_BASELINE and verdict != FAILS:  # over a slow AR all are fast
        verdict, counts = NOT_TOLD, False
    return Judged(run.folder.name, better, than, verdict, effect.value, effect.note, counts)


def _alone(claim: Claim, run: Run, section: Section, entry: Entry) -> Judged:
    """Judges a figure of one decoder."""
    effect, counts = NO_INTERVAL, True
    if claim.figure == "lossless":
        note, counts = entry.word or "not judged", entry.word not in ("", "not checked")
        verdict = HOLDS if entry.exact else FAILS if counts else NOT_TOLD
    elif claim.figure != "not_worse":
        below, known = below_bound(claim.figure, entry)
        beyond, counts = below < -ROUNDED_TV, len(below) > 0
        effect = Interval(*[float(below.min())] * 3) if counts else NO_INTERVAL
        verdict = HOLDS if counts and not beyond.any() else NOT_TOLD
        verdict = FAILS if (beyond & known).any() else verdict
        estimated = ", estimated" * (not known.all())
        note = f"beyond at {beyond.sum():,} of {len(below):,} codes{estimated}"
    elif entry.exact:
        verdict, note = HOLDS, "AR's law"
    elif (quality := section.quality(entry)) is None:
        verdict, note, counts = NOT_TOLD, "no score to compare", False
    else:
        verdict = {NOT_WORSE: HOLDS, WORSE: FAILS}.get(quality.verdict, NOT_TOLD)
        effect, note = entry.interval(CLIP_LESS), f"{quality}"
    return Judged(run.folder.name, entry.name, "", verdict, effect, note, counts)


def specs_of(run: Run) -> Specs:
    """The specifications of a run's decoders, flat, with what they sample with."""
    found = dict[str, Spec]()
    for one in run.identity.get("config", {}).get("decoders", ()):
        sampling = {f"sampling.{k}": v for k, v in (one.get("sampling") or {}).items()}
        found[one["name"]] = flat(one.get("spec", {})) | sampling
    return found


def _matching(selector: Selector, section: Section, specs: Specs) -> list[Entry]:
    """The decoders of a section that a selector means; a claim is about sampling, unless it says
    otherwise."""
    decoders = [e for e in section.decoders if not e.failed and e.name in specs]
    return [
        entry
        for entry in decoders
        if (entry.number("temperature") == 0) == selector.greedy
        and selector.matches(specs[entry.name])
    ]
