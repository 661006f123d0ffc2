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
from bench.compare.contrasts import Effect, below_bound, curves, depths_of, effects, speedup_at_tv
from bench.gate.laws import ROUNDED_TV
from metrics.stats import NO_INTERVAL, NOT_WORSE, WORSE, Interval

HOLDS, SMALLER, NOT_TOLD, FAILS, REFUTED, NOT_MEASURED = VERDICTS = (
    "holds",
    "holds, smaller",
    "not told",
    "does not hold",
    "refuted without a run",
    "not measured",
)
Side = tuple[Entry, Spec]
WORST = (FAILS, NOT_TOLD, SMALLER, HOLDS)
EVERYWHERE = ("lossless", "bound", "output_bound")  # one counterexample refutes these


@dataclass(frozen=True)
class Judged:
    """One pair of decoders of a run. than: "" where the figure is of one; counts: whether it was
    measured, with an interval, and stands for its setting; setting: what runs that repeat it have
    in common; size: its images, or timings; specs: of its decoders."""

    run: str
    better: str
    than: str
    verdict: str
    effect: Interval
    note: str = ""
    counts: bool = True
    setting: str = ""
    size: int = 0
    specs: tuple[Spec, ...] = ()

    @property
    def unjudged(self) -> bool:
        """Whether an effect was measured that tells nothing: it has no interval, or is a gain over
        an unfair baseline."""
        blind = math.isnan(self.effect.lo) or self.note == UNFAIR_BASELINE
        return blind and not self.counts and math.isfinite(self.effect.value)


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
    specs = run.specs
    for section in run.sections if claim.better else ():
        first, second = (_matching(side, section, specs) for side in (claim.better, claim.than))
        if claim.than is None:
            for side in first:
                yield _judged(claim, run, section, [side], *_alone(claim, section, side[0]))
            continue
        pairs = _curve_effects if claim.figure == "speedup_at_tv" else _pair_effects
        for one, other, effect in pairs(claim, run, first, second):
            verdict, counts = verdict_of(claim, effect.value), math.isfinite(effect.value.lo)
            if effect.note == UNFAIR_BASELINE and verdict != FAILS:  # over a slow AR all are fast
                verdict, counts = NOT_TOLD, False
            yield _judged(claim, run, section, [one, other], verdict, effect, counts)


def _judged(
    claim: Claim,
    run: Run,
    section: Section,
    sides: Sequence[Side],
    verdict: str,
    effect: Effect,
    counts: bool,
) -> Judged:
    """One or two decoders with their verdict, their setting (the model, how it is sampled from,
    what they are made of; of seconds the machine too) and their size."""
    config, weights, machine = (
        run.identity.get(name, {}) for name in ("config", "weights", "machine")
    )
    model = config.get("model", {}).get("name"), weights.get("target"), section.title
    parts = [
        sorted((k, repr(float(v) if type(v) is int else v)) for k, v in spec.items() if k != "name")
        for _, spec in sides
    ]
    timed = claim.figure.startswith("speedup")
    seconds = (machine.get("cpu"), machine.get("gpu"), config.get("backend")) if timed else ()
    return Judged(
        run.folder.name,
        sides[0][0].name,
        "".join(entry.name for entry, _ in sides[1:]),
        verdict,
        effect.value,
        effect.note,
        counts,
        repr((model, parts, effect.note if claim.depth else "", seconds)),
        min(len(e.line.timed if timed else e.line.images) for e, _ in sides),
        tuple(spec for _, spec in sides),
    )


def _pair_effects(
    claim: Claim, run: Run, first: Sequence[Side], second: Sequence[Side]
) -> Iterator[tuple[Side, Side, Effect]]:
    """The effects of pairs of decoders that differ in what the claim names alone."""
    for (one, spec), (other, rest) in product(first, second):
        if one is other or not _alike(claim, spec, rest):
            continue
        depths = depths_of(one, other, claim.depth, claim.deeper) if claim.depth else [0]
        for effect in effects(run, claim.figure, one, other, depths) if depths else ():
            yield (one, spec), (other, rest), effect


def _curve_effects(
    claim: Claim, run: Run, first: Sequence[Side], second: Sequence[Side]
) -> Iterator[tuple[Side, Side, Effect]]:
    """The same of curves of decoders; each is called after its first, with all its settings."""
    specs = {entry.name: spec for entry, spec in (*first, *second)}
    for pair in product(*(curves([e for e, _ in each], specs) for each in (first, second))):
        sides, rests = list[Side](), list[Spec]()
        for curve in pair:
            ends = [specs[curve.entries[at].name] for at in (0, -1)]
            rest = {k: v for k, v in ends[0].items() if k != curve.setting}
            span = " to ".join(f"{end[curve.setting]:g}" for end in ends)
            sides.append((curve.entries[0], rest | {curve.setting: span}))
            rests.append(rest)
        if _alike(claim, *rests):
            yield sides[0], sides[1], speedup_at_tv(*pair)


def _alike(claim: Claim, one: Spec, other: Spec) -> bool:
    return bool(claim.better and claim.than and comparable(claim.better, one, claim.than, other))


def _alone(claim: Claim, section: Section, entry: Entry) -> tuple[str, Effect, bool]:
    """Judges a figure of one decoder: verdict, effect, and whether it was measured."""
    if claim.figure == "lossless":
        counts = entry.word not in ("", "not checked")
        verdict = HOLDS if entry.exact else FAILS if counts else NOT_TOLD
        return verdict, Effect(note=entry.word or "not judged"), counts
    if claim.figure != "not_worse":
        below, known = below_bound(claim.figure, entry)
        beyond, counts = below < -ROUNDED_TV, len(below) > 0
        verdict = HOLDS if counts and not beyond.any() else NOT_TOLD
        verdict = FAILS if (beyond & known).any() else verdict
        estimated = ", estimated" * (not known.all())
        note = f"beyond at {beyond.sum():,} of {len(below):,} codes{estimated}"
        least = Interval(*[float(below.min())] * 3) if counts else NO_INTERVAL
        return verdict, Effect(least, note), counts
    if entry.exact:
        return HOLDS, Effect(note="AR's law"), True
    if (quality := section.quality(entry)) is None:
        return NOT_TOLD, Effect(note="no score to compare"), False
    verdict = {NOT_WORSE: HOLDS, WORSE: FAILS}.get(quality.verdict, NOT_TOLD)
    return verdict, Effect(entry.interval(CLIP_LESS), f"{quality}"), True


def _matching(selector: Selector | None, section: Section, specs: Mapping[str, Spec]) -> list[Side]:
    """The decoders of a section that a selector means; a claim is about sampling, unless it says
    otherwise."""
    return [
        (entry, specs[entry.name])
        for entry in section.decoders
        if selector
        and not entry.failed
        and entry.name in specs
        and (entry.number("temperature") == 0) == selector.greedy
        and selector.matches(specs[entry.name])
    ]
