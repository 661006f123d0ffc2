"""The search behind `bench tune`: which tree and rule are fastest here, at what cost to quality.

Step costs are measured in place for every tree (one rule serves all: verdicts are a small part of a
step), acceptance is recorded for every rule on a deep chain, and every combination is predicted by
`bench.cost.speed`. What is recorded and what is measured afterwards are different prompts.
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
from bench.cost.predict.acceptance import Recorded, Workshop, derivable, derived, record
from bench.cost.predict.settings import Option, TuneStudy, chain_option
from bench.cost.predict.timed import in_place
from bench.cost.speed import Prediction, StepSeconds, TreeShape, front, predict
from bench.data.errors import ConfigError
from bench.run.outcome import Failure, attempt
from decoders.api import AcceptRule, Decoder, ImageModel
from decoders.compose import build_decoder, build_part

log = logging.getLogger(__name__)
DIGITS = 3  # of damage: smaller differences are rounding


@dataclass(frozen=True)
class Candidate:
    """A rule on a tree, and what is expected of it. derived: whether its acceptance follows from
    the rule's chain; moved, tv, bound: see `bench.cost.predict.acceptance.Recorded`."""

    tree: Option
    rule: Option
    shape: TreeShape
    prediction: Prediction
    derived: bool
    moved: float
    tv: float
    bound: float

    @property
    def name(self) -> str:
        """As an entry of a study may be called."""
        return f"{self.rule.slug}.{self.tree.slug}"

    @property
    def damage(self) -> float:
        """What quality costs: output TV, or mass moved where there is no output law."""
        return round(self.moved if math.isnan(self.tv) else self.tv, DIGITS)


@dataclass
class Search:
    """A search in progress: its parts, built on its model, and what was measured so far."""

    asked: TuneStudy
    shop: Workshop
    trees: list[Option]
    rules: list[Option]
    verdicts: dict[str, str] = field(default_factory=dict)  # candidate's name -> the gate's words


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
    shop = Workshop(model, sampling, entry.spec.loop, drafter)
    trees, rules = (
        [_built(option, model) for option in options] for options in (asked.trees, asked.rules)
    )
    if asked.tune.exactness == "exact":
        rules = [rule for rule in rules if declared(rule.built, model) == 0]
        if not rules:
            raise ConfigError("every rule of tune.rules is relaxed; add {acceptance: exact}")
    for tree in trees:
        shop.decoder(tree.built, rules[0].built)  # a loop may refuse a tree
    return Search(asked, shop, trees, rules)


def _built(option: Option, model: ImageModel) -> Option:
    return dataclasses.replace(option, built=build_part(option.spec, model))


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
    shapes = [TreeShape.of(tree.built) for tree in search.trees]
    follows = [derivable(shape, search.shop.sampling) for shape in shapes]
    chained = [s for s, f in zip(shapes, follows, strict=True) if f]
    chain, width = _chain(search, chained), max((s.branching for s in chained), default=1)
    runs = len(search.rules) * (follows.count(False) + (chain is not None))
    out: list[Candidate] = []
    with progress(1 + len(shapes) + runs, "tune", unit="step") as bar:
        ar, steps = _costs(search, prompts[:1], bar)
        for rule in search.rules:
            base = None if chain is None else _record(search, chain, rule, prompts, width, bar)
            for tree, shape, follow, step in zip(search.trees, shapes, follows, steps, strict=True):
                if follow and base is not None:
                    seen = dataclasses.replace(base, reached=derived(shape, base))
                else:
                    seen = _record(search, tree, rule, prompts, 1, bar)
                made = predict(ar, step, seen.reached, search.shop.model.target.length)
                out.append(
                    Candidate(tree, rule, shape, made, follow, seen.moved, seen.tv, seen.bound)
                )
    return out


def _chain(search: Search, shapes: Sequence[TreeShape]) -> Option | None:
    """A chain as deep as the deepest of these trees, None where there are none."""
    if not shapes:
        return None
    option = chain_option(search.asked, max(s.depth for s in shapes))
    return _built(option, search.shop.model)


def _record(
    search: Search, tree: Option, rule: Option, prompts: Sequence[str], width: int, bar: Any
) -> Recorded:
    """width: siblings to look at."""
    asked = search.asked
    bar.set_postfix_str(f"recording {rule.slug} on {tree.slug}", False)
    found = record(
        search.shop, tree.built, rule.built, prompts, asked.study.seed, asked.tune.pairs, width
    )
    bar.update()
    return found


def _costs(
    search: Search, prompt: Sequence[str], bar: Any
) -> tuple[StepSeconds, list[StepSeconds]]:
    """AR's step and that of every tree, in place."""
    asked, seed = search.asked, search.asked.study.seed
    (entry,) = (e for e in asked.study.decoders if e.baseline)

    def timed(decoder: Decoder, name: str) -> StepSeconds:
        bar.set_postfix_str(f"timing {name}", False)
        step = in_place(search.shop.model, decoder, prompt, seed, asked.tune.probes)
        bar.update()
        return step

    ar = build_decoder(search.shop.model, entry.spec, search.shop.sampling)
    baseline, rule = timed(ar, entry.name), search.rules[-1]
    return baseline, [
        timed(search.shop.decoder(tree.built, rule.built), tree.slug) for tree in search.trees
    ]


def eligible(search: Search, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those within the limits that a recording shows: exact means a rule that declares no bound
    above zero, and output TV stays within tune.tv. Fastest first."""
    tune = search.asked.tune
    kept = [
        c
        for c in candidates
        if (tune.exactness != "exact" or c.bound == 0) and (tune.tv is None or c.tv <= tune.tv)
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
    chosen: list[Candidate] = []
    screened: dict[tuple[str, bool], bool] = {}
    with progress(tune.measure, "exactness", unit="decoder") as bar:
        for candidate in candidates:
            if len(chosen) == tune.measure:
                break
            kind = candidate.rule.slug, candidate.shape.paths is None
            if wanted is not None and kind not in screened:
                first = min(
                    (c for c in candidates if (c.rule.slug, c.shape.paths is None) == kind),
                    key=lambda c: c.shape.nodes,
                )
                screened[kind] = _verdict(search, first, bar) in wanted
            if wanted is not None and not screened[kind]:
                continue
            verdict = _verdict(search, candidate, bar)
            if wanted is None or verdict in wanted:
                chosen.append(candidate)
                bar.update()
    return chosen


def _verdict(search: Search, candidate: Candidate, bar: Any) -> str:
    """exact, relaxed, broken, or "not checked"; kept in words in `search.verdicts`."""
    from bench.judge.gate import check_decoder

    if candidate.name not in search.verdicts:
        bar.set_postfix_str(candidate.name, False)
        spec = entry_of(search, candidate).spec
        found = attempt(partial(check_decoder, spec, search.shop.sampling, search.shop.model))
        if isinstance(found, Failure):
            log.warning("the gate could not judge %s: %s", candidate.name, found.error)
            words = "not checked"
        else:
            words = found.text
        search.verdicts[candidate.name] = words
    words = search.verdicts[candidate.name]
    return "exact" if words.startswith("exact") else words.split(" (")[0]


def entry_of(search: Search, candidate: Candidate) -> DecoderEntry:
    """The candidate as an entry of a study."""
    base = search.asked.base
    spec = dataclasses.replace(
        base.spec,
        name=candidate.name,
        tree=candidate.tree.spec,
        acceptance=candidate.rule.spec,
    )
    return dataclasses.replace(base, name=candidate.name, spec=spec, baseline=False, expect=None)
