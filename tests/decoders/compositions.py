"""Decoders of a small random model, shared by the tests of what runs a step."""

from __future__ import annotations

from decoders.compose import DecoderSpec, PartSpec

EAGLE = PartSpec("decoders.propose.drafters.eagle.Eagle")
LOOP = PartSpec("decoders.loops.speculative.Speculative")
EXACT = PartSpec("decoders.verify.exact.Exact")
LANTERN_PP = PartSpec("decoders.verify.lantern.LanternPP", {"k": 3, "lam": 3.0})
DYNAMIC = PartSpec("decoders.propose.trees.dynamic.Dynamic", {"depth": 3, "top_k": 2, "nodes": 6})
STATIC = PartSpec("decoders.propose.trees.static.Static", {"choices": "binary_8"})
CHAIN = PartSpec("decoders.propose.trees.chain.Chain", {"depth": 3})
TREES = {"chain": CHAIN, "static": STATIC, "dynamic": DYNAMIC}
MEDUSA = PartSpec("decoders.propose.drafters.medusa.Medusa", {"heads": 3})
EARLY_EXIT = PartSpec("decoders.propose.drafters.early_exit.EarlyExit", {"layers": 1})
SPECS = {
    "ar": DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive")),
    "eagle2": DecoderSpec("eagle2", LOOP, EAGLE, DYNAMIC, EXACT),
    "lantern_pp": DecoderSpec("lantern_pp", LOOP, EAGLE, STATIC, LANTERN_PP),
    "medusa": DecoderSpec("medusa", LOOP, MEDUSA, DYNAMIC, EXACT),
    "early_exit": DecoderSpec("early_exit", LOOP, EARLY_EXIT, DYNAMIC, EXACT),
}
# Drafters with a class and weights of their own, here untrained; in conf/drafter by these names.
OWN = {
    name: DecoderSpec(
        name, LOOP, PartSpec(f"decoders.propose.drafters.{name}.{kind}"), STATIC, EXACT
    )
    for name, kind in (
        ("block", "Block"),
        ("chimera", "Chimera"),
        ("eagle3", "Eagle3"),
        ("free", "Free"),
        ("glide", "Glide"),
        ("hawk", "Hawk"),
    )
}
WITH = [f"{name} with {drafter}" for drafter in OWN for name in ("sd_chain", "lantern_pp")]


DRAFTED = {"specdec": "block"}  # decoders of conf/decoder on a drafter of their own


def entry(name: str) -> str:
    """A study's entry: a decoder of conf/decoder, or as `sd_chain with hawk` one with a drafter of
    conf/drafter, untrained."""
    name, _, drafter = name.partition(" with ")
    drafter = drafter or DRAFTED.get(name, "")
    words = f'["drafter={drafter}", "drafter.checkpoint=null"]'
    return f"{{decoder: {name}, overrides: {words}}}" if drafter else name
