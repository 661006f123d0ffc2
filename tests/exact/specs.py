"""Compositions by name: what the decoders of `conf/` are made of."""

from __future__ import annotations

from decoders.compose import DecoderSpec, PartSpec

AR = PartSpec("decoders.loops.autoregressive.Autoregressive")
SPECULATIVE = PartSpec("decoders.loops.speculative.Speculative")
EAGLE = PartSpec("decoders.propose.drafters.eagle.Eagle", {"checkpoint": "eagle"})
TREES = {
    "chain": PartSpec("decoders.propose.trees.chain.Chain", {"depth": 4}),
    "static_25": PartSpec("decoders.propose.trees.static.Static", {"choices": "eagle_25"}),
    "static_57": PartSpec("decoders.propose.trees.static.Static", {"choices": "lantern_57"}),
    "small": PartSpec(
        "decoders.propose.trees.static.Static", {"choices": [[0], [1], [2], [0, 0], [0, 1], [1, 0]]}
    ),
    "dynamic": PartSpec(
        "decoders.propose.trees.dynamic.Dynamic", {"depth": 5, "top_k": 10, "nodes": 58}
    ),
}
EXACT = PartSpec("decoders.verify.exact.Exact")


def lantern(**options) -> PartSpec:
    return PartSpec("decoders.verify.lantern.Lantern", {"k": 100, "delta": 0.2} | options)


def lantern_pp(**options) -> PartSpec:
    return PartSpec("decoders.verify.lantern.LanternPP", {"k": 100, "lam": 5.0} | options)


def composed(tree: str, rule: PartSpec = EXACT, loop: PartSpec = SPECULATIVE) -> DecoderSpec:
    return DecoderSpec(f"{tree}", loop, EAGLE, TREES[tree], rule)
