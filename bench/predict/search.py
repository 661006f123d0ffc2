"""The search behind `bench tune`: which tree and rule are fastest here, at what cost to quality.

Step costs are measured in place for every tree (one rule serves all: verdicts are a small part of a
step). Acceptance is recorded for every rule on every tree; of chains on the deepest one, from which
the others follow. Every combination is predicted by `bench.cost.speed`. What is recorded and what
is measured afterwards are different prompts.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from bench.config.schema import DecoderEntry
from bench.console import progress
from bench.cost.speed import Prediction, StepSeconds, chain_depth, front, predict, reach, shallower
from bench.data.errors import ConfigError, Failure, attempt
from bench.judge.gate import check_decoder
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.predict.here import in_place
from bench.predict.settings import Option, TuneStudy
from bench.run.outcome import decode
from bench.run.session import codes_only
from decoders.api import (
    AcceptRule,
    Decoder,
    ImageModel,
    Sampling,
    Tree,
    VerifiedPairs,
    completed,
)
from decoders.compose import assembled, build_decoder, build_part
from metrics.traces import moved_mass, output_tv

log = logging.getLogger(__name__)
DIGITS = 3  # of damage: smaller differences are rounding


@dataclass(frozen=True)
class Recorded:
    """A rule on a tree. reached: P(accepted >= d); moved: mean mass moved; bound: the most that the
    rule declared; tv: mean output TV at the pairs (`metrics.traces.output_tv`; NaN at temperature
    0, where there is no output law)."""

    reached: tuple[float, ...]
    moved: float
    bound: float
    tv: float


@dataclass(frozen=True)
class Candidate:
    """A rule on a tree, and what is expected of it. derived: whether its acceptance follows from
    that of a deeper chain; seen: what was recorded."""

    tree: Option
    rule: Option
    prediction: Prediction
    derived: bool
    seen: Recorded

    @property
    def name(self) -> str:
        """As an entry of a study may be called."""
        return f"{self.rule.slug}.{self.tree.slug}"

    @property
    def damage(self) -> float:
        """What quality costs: output TV, or mass moved where there is no output law."""
        return round(self.seen.moved if math.isnan(self.seen.tv) else self.seen.tv, DIGITS)


@dataclass
class Search:
    """A search in progress: its parts, built on its model, and what was measured so far."""

    asked: TuneStudy
    model: ImageModel
    sampling: Sampling
    drafter: Any
    trees: list[Option]
    rules: list[Option]
    verdicts: dict[str, str] = field(default_factory=dict)  # candidate's name -> the gate's words

    def decoder(self, tree: object, rule: AcceptRule, model: ImageModel | None = None) -> Decoder:
        """Of a built tree and a built rule; model: another form of the same. Raises
        DecoderError."""
        loop = self.asked.base.spec.loop
        return assembled(loop, model or self.model, self.sampling, self.drafter, tree, rule)


def begin(asked: TuneStudy, model: ImageModel) -> Search:
    """Builds every part, so that a setting that cannot be stops the search before it starts. Raises
    DecoderError, ConfigError."""
    entry = asked.base
    sampling = entry.sampling.resolve(model.sampling)
    if sampling.greedy and asked.tune.tv is not None:
        raise ConfigError("tune.tv limits an output law, and at temperature 0 there is none")
    if entry.spec.drafter is None:
        raise ConfigError(f"tune.base={asked.tune.base} has no drafter; name a decoder that drafts")
    drafter = build_part(entry.spec.drafter, model)
    trees, rules = (
        [dataclasses.replace(option, built=build_part(option.spec, model)) for option in options]
        for options in (asked.trees, asked.rules)
    )
    if asked.tune.exactness == "exact":
        rules = [rule for rule in rules if declared(rule.built, model) == 0]
        if not rules:
            raise ConfigError("every rule of tune.rules is relaxed; add {acceptance: exact}")
    search = Search(asked, model, sampling, drafter, trees, rules)
    for tree in trees:
        search.decoder(tree.built, rules[0].built)  # a loop may refuse a tree
    return search


def declared(rule: AcceptRule, model: ImageModel, rows: int = 16) -> float:
    """The largest bound that a rule declares over some codes of a random distribution: zero where
    it moves nothing, whatever its settings."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(rows, model.target.vocab_size, generator=generator).softmax(-1)  # [n, V]
    x = torch.multinomial(p, 1, generator=generator)[:, 0]  # [n]
    return float(rule.test(p.to(model.device), None, x.to(model.device)).bound.max())


def explore(search: Search, prompts: Sequence[str]) -> list[Candidate]:
    """Predicts every combination; prompts: those to time and record on. Raises what a decoder
    raises, SpeedError."""
    chains = [tree for tree in search.trees if chain_depth(tree.built)]
    deepest = max(chains, key=lambda tree: chain_depth(tree.built), default=None)
    runs = len(search.rules) * (len(search.trees) - max(0, len(chains) - 1))
    out: list[Candidate] = []
    with progress(1 + len(search.trees) + runs, "tune", unit="step") as bar:

        def recorded(tree: Option, rule: Option) -> Recorded:
            bar.set_postfix_str(f"recording {rule.slug} on {tree.slug}", False)
            found = record(search, tree.built, rule.built, prompts)
            bar.update()
            return found

        ar, steps = _costs(search, prompts[:1], bar)
        for rule in search.rules:
            base = None if deepest is None else recorded(deepest, rule)
            for tree, step in zip(search.trees, steps, strict=True):
                depth = chain_depth(tree.built)
                if depth and base is not None:
                    seen = dataclasses.replace(base, reached=shallower(base.reached, depth))
                else:
                    seen = recorded(tree, rule)
                made = predict(ar, step, seen.reached, search.model.target.length)
                derived = bool(depth) and tree is not deepest
                out.append(Candidate(tree, rule, made, derived, seen))
    return out


def _costs(
    search: Search, prompt: Sequence[str], bar: Any
) -> tuple[StepSeconds, list[StepSeconds]]:
    """AR's step and that of every tree, in place."""
    asked, rule = search.asked, search.rules[-1]
    (entry,) = (e for e in asked.study.decoders if e.baseline)

    def timed(decoder: Decoder, name: str) -> StepSeconds:
        bar.set_postfix_str(f"timing {name}", False)
        step = in_place(search.model, decoder, prompt, asked.study.seed, asked.tune.probes)
        bar.update()
        return step

    baseline = timed(build_decoder(search.model, entry.spec, search.sampling), entry.name)
    return baseline, [
        timed(search.decoder(tree.built, rule.built), tree.slug) for tree in search.trees
    ]


def eligible(search: Search, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those within the limits that a recording shows: exact means a rule that declares no bound
    above zero, and output TV stays within tune.tv. Fastest first."""
    tune = search.asked.tune
    kept = [
        c
        for c in candidates
        if (tune.exactness != "exact" or c.seen.bound == 0)
        and (tune.tv is None or c.seen.tv <= tune.tv)
    ]
    return sorted(kept, key=lambda c: -c.prediction.speedup)


def frontier(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that none beats in predicted speed-up and in damage."""
    return [candidates[i] for i in front([(c.damage, c.prediction.speedup) for c in candidates])]


def choose(search: Search, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The first `tune.measure` candidates that the exactness gate finds in the class asked for.

    Where the class is narrower than `any`, a rule is judged once on the smallest tree of a kind
    (drawn or deterministic children) to pass over its other trees; whoever is chosen is judged on
    its own tree.
    """
    tune = search.asked.tune
    wanted = {"exact": ("exact",), "relaxed": ("exact", "relaxed"), "any": None}[tune.exactness]
    kinds: dict[tuple[str, bool], list[Candidate]] = {}
    for candidate in candidates:
        kinds.setdefault(_kind(candidate), []).append(candidate)
    chosen: list[Candidate] = []
    with progress(tune.measure, "exactness", unit="decoder") as bar:
        for candidate in candidates:
            if len(chosen) == tune.measure:
                break
            smallest = min(kinds[_kind(candidate)], key=lambda c: c.tree.built.nodes)
            if wanted is not None and _verdict(search, smallest, bar) not in wanted:
                continue
            verdict = _verdict(search, candidate, bar)
            if wanted is None or verdict in wanted:
                chosen.append(candidate)
                bar.update()
    return chosen


def _kind(candidate: Candidate) -> tuple[str, bool]:
    return candidate.rule.slug, completed(candidate.tree.built, Tree).paths is None


def _verdict(search: Search, candidate: Candidate, bar: Any) -> str:
    """exact, relaxed, broken, or "not checked"; kept in words in `search.verdicts`."""
    if candidate.name not in search.verdicts:
        bar.set_postfix_str(candidate.name, False)
        spec = entry_of(search, candidate).spec
        found = attempt(partial(check_decoder, spec, search.sampling, search.model))
        if isinstance(found, Failure):
            log.warning("the gate could not judge %s: %s", candidate.name, found.error)
        words = "not checked" if isinstance(found, Failure) else found.text
        search.verdicts[candidate.name] = words
    words = search.verdicts[candidate.name]
    return "exact" if words.startswith("exact") else words.split(" (")[0]


def entry_of(search: Search, candidate: Candidate) -> DecoderEntry:
    """The candidate as an entry of a study."""
    base, name = search.asked.base, candidate.name
    tree, rule = candidate.tree.spec, candidate.rule.spec
    spec = dataclasses.replace(base.spec, name=name, tree=tree, acceptance=rule)
    return dataclasses.replace(base, name=name, spec=spec, baseline=False, expect=None)


def record(search: Search, tree: object, rule: AcceptRule, prompts: Sequence[str]) -> Recorded:
    """Decodes one image a prompt, all at once, and reads acceptance and quality off the trace.

    The step runs eagerly, whatever the model's backend: it commits the same codes, and nothing is
    compiled for a single call. Raises what the decoder raises.
    """
    model = codes_only(dataclasses.replace(search.model, execution=None))
    decoder, seed = search.decoder(tree, rule, model), search.asked.study.seed
    pairs = 0 if search.sampling.greedy else search.asked.tune.pairs / len(prompts)
    clock, meter = Clock(model.device), MemoryMeter(model.device)
    outcome = decode(model, decoder, list(prompts), seed, clock=clock, meter=meter, pairs=pairs)
    trace = outcome.generation.trace
    mass = moved_mass(trace.moved, trace.bound, trace.kind)
    tv = math.nan
    if trace.pairs is not None:
        parts = (trace.pairs.p, trace.pairs.q, trace.pairs.children, trace.pairs.valid)
        here = [None if t is None else t.to(model.device) for t in parts]  # as the rule's tables
        tv = float(output_tv(rule, VerifiedPairs(*here)).tv.mean())  # type: ignore[arg-type]
    reached = reach(trace.accepted.tolist(), trace.tree_depth)
    return Recorded(reached, mass.mean, mass.bound_max, tv)
