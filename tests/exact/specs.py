"""Compositions by name: what the decoders of `conf/` are made of, and planted errors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bench.gate import GateSizes
from bench.gate.result import Check
from bench.store.facts import Verdict
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec

# For verdicts that do not depend on many codes or on late positions.
SMALL = GateSizes(
    batches=(12, 5), visited=(12, 6, 18), positions=(2, 6, 3), late=(2, 7, 3), guided=(3, 6, 3),
    greedy=6, node_codes=256,
    codes=256, branches=2**13, drawn=4096,
)  # fmt: skip
# The sizes that a check reads.
READ_BY = {
    "batches": ["batches"], "wide": ["codes", "branches"], "position law": ["positions"],
    "late law": ["late", "positions"], "guided law": ["guided"], "verified_law": ["visited"],
    "numbers": ["visited"], "greedy codes": ["greedy"],
}  # fmt: skip
TAU_1 = Sampling(temperature=1.0, cfg=2.0)
TAU_0 = Sampling(temperature=0.0, cfg=2.0)


def large(check: str) -> GateSizes:
    """Small sizes, but for what the check of this name reads."""
    return replace(SMALL, **{size: getattr(GateSizes(), size) for size in READ_BY[check]})


def part(module: str, name: str, **options) -> PartSpec:
    return PartSpec(f"{module}.{name}", options)


planted, ruling = (partial(part, f"tests.exact.{name}") for name in ("planted", "planted_rules"))
verifying, proposing = partial(part, "decoders.verify"), partial(part, "decoders.propose")
drafting, planting = (partial(part, f"decoders.propose.{name}") for name in ("drafters", "trees"))
AR = PartSpec("decoders.loops.autoregressive.Autoregressive")
SPECULATIVE = PartSpec("decoders.loops.speculative.Speculative")
EAGLE = drafting("eagle.Eagle", checkpoint="eagle")
TREES = {
    "chain": planting("chain.Chain", depth=4),
    "static_25": planting("static.Static", choices="mc_sim_7b_63"),
    "small": planting("static.Static", choices=[[0], [1], [2], [0, 0], [0, 1], [1, 0]]),
    "dynamic": planting("dynamic.Dynamic", depth=5, top_k=10, nodes=58),
}
EXACT = verifying("exact.Exact")


def lantern(**options) -> PartSpec:
    return verifying("lantern.Lantern", **{"k": 100, "delta": 0.2} | options)


def lantern_pp(**options) -> PartSpec:
    return verifying("lantern.LanternPP", **{"k": 100, "lam": 5.0} | options)


def composed(
    tree: str | PartSpec = "chain",
    rule: PartSpec = EXACT,
    loop: PartSpec = SPECULATIVE,
    drafter: PartSpec = EAGLE,
) -> DecoderSpec:
    name, part = (tree, TREES[tree]) if isinstance(tree, str) else ("tree", tree)
    return DecoderSpec(name, loop, drafter, part, rule)


def window(proposer: PartSpec, rule: PartSpec = EXACT) -> DecoderSpec:
    return DecoderSpec("window", SPECULATIVE, acceptance=rule, proposer=proposer)


def check(verdict: Verdict, name: str) -> Check:
    """What a check of this name found."""
    return next(one for one in verdict.checks if one.name == name)
