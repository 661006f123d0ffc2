"""Which claims of papers hold in runs: by the paired effect at 95 %, by the gate, or by the margin
of quality. Of several pairs of decoders, and of several runs, the worst verdict counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import UNFAIR_BASELINE, Entry, Run, Section
from bench.compare.claims import Claim, Selector, Spec, comparable
from bench.compare.contrasts import Effect, curves, depths_of, effects, speedup_at_tv
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


@dataclass(frozen=True)
class Judged:
    """One pair of decoders of a run. than: "" where the figure is of one; known: whether the figure
    was measured, with an interval; it does not count beside others that were."""

    run: str
    better: str
    than: str
    verdict: str
    effect: Interval
    note: str = ""
    known: bool = True

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
        return min([one for one in mine if one.known] or mine, key=self._fit, default=None)

    @property
    def best(self) -> Judged | None:
        """The pair that fits best, of those that were measured; None where it fits as the
        `decisive` one does."""
        worst, known = self.decisive, [one for one in self.pairs if one.known]
        best = max(known, key=self._fit, default=worst)
        return None if best and worst and self._fit(best) == self._fit(worst) else best

    def _fit(self, one: Judged) -> tuple[int, float]:
        """How well a pair fits: its verdict, then its effect, or how near that is to none where the
        claim says so. One without an effect, as of a decoder that keeps AR's law, comes last."""
        size = math.inf if math.isnan(one.effect.value) else one.effect.value
        same = not math.isnan(self.claim.within)
        return WORST.index(one.verdict), -abs(size - self.claim.neutral) if same else size


# ---- verdicts -----------------------------------------------------------------------------------


def verdict_of(effect: Interval, by: float, neutral: float, published: float) -> str:
    """Judges an effect that a paper says is at least `by`. neutral: 1 of ratios, 0 of differences;
    published: the paper's size, NaN where it gives none."""
    if not math.isfinite(effect.lo + effect.hi):
        return NOT_TOLD
    if effect.lo > by:
        return HOLDS
    if effect.lo > neutral and effect.hi < (published if published == published else by):
        return SMALLER
    return FAILS if effect.hi < by else NOT_TOLD


def same_verdict(effect: Interval, neutral: float, within: float) -> str:
    """Judges an effect that a paper says is none, to within `within`."""
    if not math.isfinite(effect.lo + effect.hi):
        return NOT_TOLD
    if neutral - within < effect.lo and effect.hi < neutral + within:
        return HOLDS
    apart = effect.lo > neutral + within or effect.hi < neutral - within
    return FAILS if apart else NOT_TOLD


def worst(verdicts: Sequence[str]) -> str:
    return min(verdicts, key=WORST.index)


def _of_effect(claim: Claim, effect: Interval) -> str:
    if claim.within == claim.within:
        return same_verdict(effect, claim.neutral, claim.within)
    return verdict_of(effect, claim.by, claim.neutral, claim.published)


# ---- runs ---------------------------------------------------------------------------------------


def judge(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Finding]:
    """Judges every claim by all pairs of decoders of these runs that it is about. A claim that none
    can judge is refuted where `once` says how, else not measured."""
    findings = []
    for claim in claims:
        pairs = tuple(pair for run in runs for pair in judge_in(claim, run))
        known = [pair.verdict for pair in pairs if pair.known]
        if known:
            verdict = worst(known)
        elif claim.once:
            verdict = REFUTED
        else:
            verdict = NOT_TOLD if pairs else NOT_MEASURED
        findings.append(Finding(claim, verdict, pairs))
    return findings


def judge_in(claim: Claim, run: Run) -> Iterator[Judged]:
    """Judges a claim by each pair of a run; by nothing where a selector matches no decoder."""
    if claim.better is None:
        return
    specs = specs_of(run)
    for section in run.sections:
        first = _matching(claim.better, section, specs)
        if claim.than is None:
            yield from (_alone(claim, run, section, entry) for entry in first)
            continue
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
    verdict, known = _of_effect(claim, effect.value), math.isfinite(effect.value.lo)
    if effect.note == UNFAIR_BASELINE and verdict != FAILS:  # over a slow AR all are fast
        verdict = NOT_TOLD
    return Judged(run.folder.name, better, than, verdict, effect.value, effect.note, known)


def _alone(claim: Claim, run: Run, section: Section, entry: Entry) -> Judged:
    """Judges a figure of one decoder."""
    if claim.figure == "bound":
        (kept,) = effects(run, "bound", entry, entry, ())
        return _judged(claim, run, entry.name, "", kept)
    effect, known = NO_INTERVAL, True
    if claim.figure == "lossless":
        note, known = entry.word or "not judged", entry.word not in ("", "not checked")
        verdict = HOLDS if entry.exact else FAILS if known else NOT_TOLD
    elif entry.exact:
        verdict, note = HOLDS, "AR's law"
    elif (quality := section.quality(entry)) is None:
        verdict, note, known = NOT_TOLD, "no score to compare", False
    else:
        verdict = {NOT_WORSE: HOLDS, WORSE: FAILS}.get(quality.verdict, NOT_TOLD)
        effect, note = entry.interval(CLIP_LESS), f"{quality}"
    return Judged(run.folder.name, entry.name, "", verdict, effect, note, known)


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
