"""Decoders of a small random model, shared by the tests of what runs a step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from decoders.api import ImageModel, Prefill, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec
from decoders.execution.compiled import Compiled
from decoders.models.grouped import Grouped, GroupedConfig
from decoders.models.transformer import cast
from decoders.tiny.bundle import TARGETS

EAGLE = PartSpec("decoders.propose.drafters.eagle.Eagle")
LOOP = PartSpec("decoders.loops.speculative.Speculative")
EXACT = PartSpec("decoders.verify.exact.Exact")
LANTERN_PP = PartSpec("decoders.verify.lantern.LanternPP", {"k": 3, "lam": 3.0})
DYNAMIC = PartSpec("decoders.propose.trees.dynamic.Dynamic", {"depth": 3, "top_k": 2, "nodes": 6})
STATIC = PartSpec("decoders.propose.trees.static.Static", {"choices": "binary_8"})
CHAIN = PartSpec("decoders.propose.trees.chain.Chain", {"depth": 3})
TREES = {"chain": CHAIN, "static": STATIC, "dynamic": DYNAMIC}
MEDUSA = PartSpec("decoders.propose.drafters.medusa.Medusa", {"heads": 3})
FREE = PartSpec("decoders.propose.drafters.free.Free", {"layers": 1})
SPECS = {
    "ar": DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive")),
    "eagle2": DecoderSpec("eagle2", LOOP, EAGLE, DYNAMIC, EXACT),
    "lantern_pp": DecoderSpec("lantern_pp", LOOP, EAGLE, STATIC, LANTERN_PP),
    "medusa": DecoderSpec("medusa", LOOP, MEDUSA, DYNAMIC, EXACT),
    "free": DecoderSpec("free", LOOP, FREE, DYNAMIC, EXACT),
}
# Drafters with a class and weights of their own, here untrained; in conf/drafter by these names.
CLASSES = ("Eagle3", "Hawk", "Chimera", "Glide", "Falcon", "Griffin", "SpecDec", "Free", "Medusa")
PATHS = {name: f"decoders.propose.drafters.{name.lower()}.{name}" for name in CLASSES}
OWN = {
    name.lower(): DecoderSpec(name.lower(), LOOP, PartSpec(PATHS[name]), STATIC, EXACT)
    for name in CLASSES[:-1]
}
SMALLER = {"free": ', "drafter.layers=1"'}  # for targets of one layer
WITH = [f"{name} with {drafter}" for drafter in OWN for name in ("sd_chain", "lantern_pp")]


class Traced(Compiled):
    """Pieces as whole graphs, run operator by operator: no minute of compiling."""

    def compile_graph(self, graph: Any, inputs: Any, device: torch.device) -> Any:
        return graph


def prefilled(
    model: ImageModel, text: TextFeatures, hidden: Tensor, sampling: Sampling, cache: Any = None
) -> Prefill:
    """What a drafter's session begins with: these states of the prefix, and no first code."""
    first = torch.zeros(text.batch, dtype=torch.long)
    law = torch.zeros(text.batch, model.target.vocab_size)
    return Prefill(model, sampling, text, None, cache, hidden, first, law)


def grouped_config(model: ImageModel, name: str) -> GroupedConfig:
    """The shape of the model's own target with the schedule of another; an odd side has no 2 x 2
    regions."""
    own = TARGETS[name] | ({"order": "raster"} if model.target.cfg.grid % 2 else {})
    return GroupedConfig(**asdict(model.target.cfg) | own)


def with_targets(model: ImageModel) -> ImageModel:
    """A random model with the other targets beside its own, which share its weights."""
    found, own = {}, model.target
    for name in TARGETS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            target: Any = Grouped(grouped_config(model, name))
        weights = target.state_dict() | own.state_dict()
        weights["tok_embeddings.weight"] = torch.cat(
            [own.tok_embeddings.weight, target.tok_embeddings.weight[own.vocab_size :]]
        )
        target.load_state_dict(weights)
        found[name] = cast(target.eval().requires_grad_(False), model.device, model.dtype)
    return replace(model, targets=found)


def entry(name: str) -> str:
    """A study's entry: a decoder of conf/decoder, or as `sd_chain with hawk` one with a drafter of
    conf/drafter, untrained."""
    name, _, drafter = name.partition(" with ")
    drafter = drafter or (name if name in OWN else "")  # a decoder on a drafter of its name
    words = f'["drafter={drafter}", "drafter.checkpoint=null"{SMALLER.get(drafter, "")}]'
    return f"{{decoder: {name}, overrides: {words}}}" if drafter else name
