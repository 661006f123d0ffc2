"""Decoders of a small random model, shared by the tests of what runs a step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bench
from bench.config.compose import compose_study
from bench.config.schema import variants
from decoders.api import (
    CodeKind,
    Generation,
    ImageModel,
    Prefill,
    Sampling,
    TextFeatures,
    Trace,
)
from decoders.compose import DecoderSpec, PartSpec
from decoders.execution.compiled import Compiled
from decoders.execution.cpu.execution import Kernel
from decoders.loops.speculative import Speculative
from decoders.models.loading.checkpoint import cast
from decoders.models.nets.transformer import transformer_of
from decoders.noise import Noise
from decoders.propose.tree_proposer import TreeProposer
from decoders.tiny.bundle import PART_CLASSES, TARGETS
from decoders.training.states import Images, States, target_states
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier

EAGLE = PartSpec("decoders.propose.drafters.eagle.Eagle")
LOOP = PartSpec("decoders.loops.speculative.Speculative")
EXACT = PartSpec("decoders.verify.exact.Exact")
LANTERN_PP = PartSpec("decoders.verify.lantern.LanternPP", {"k": 3, "lam": 3.0})
DYNAMIC = PartSpec("decoders.propose.trees.dynamic.Dynamic", {"depth": 3, "top_k": 2, "nodes": 6})
STATIC = PartSpec("decoders.propose.trees.static.Static", {"choices": "binary_8"})
CHAIN = PartSpec("decoders.propose.trees.chain.Chain", {"depth": 3})
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
CLASSES = (
    "Eagle3", "Hawk", "Chimera", "Glide", "Falcon", "Griffin", "SpecDec", "DFlash", "DSpark",
    "Free", "Medusa",
)  # fmt: skip
PATHS = {name: f"decoders.propose.drafters.{name.lower()}.{name}" for name in CLASSES}
DRAFTER_SPECS = {
    name.lower(): DecoderSpec(name.lower(), LOOP, PartSpec(PATHS[name]), STATIC, EXACT)
    for name in CLASSES[:-1]
}
EVERY = range(1, 100)  # batch sizes
SMALL = {"depth": 2, "top_k": 3, "nodes": 6, "choices": "binary_8", "window": 24}
SMALLER = {"free": ', "drafter.layers=1"'}  # for targets of one layer
CONF = Path(bench.__file__).parents[1] / "conf" / "decoder"
DECODERS = sorted(path.stem for path in CONF.glob("[!h]*.yaml"))  # without transformers' loops
WITH = [
    f"{name} with {drafter}" for drafter in DRAFTER_SPECS for name in ("sd_chain", "lantern_pp")
]


def part(path: str, **options: Any) -> PartSpec:
    """A class of `decoders` and its settings."""
    return PartSpec(f"decoders.{path}", options)


def drafting(
    model: ImageModel, drafter: Any, tree: Any, rule: Any = None, sampling: Sampling | None = None
) -> Speculative:
    """A drafter on a tree under a rule, the exact one where none is given."""
    verifier = TokenVerifier(rule or Exact())
    return Speculative(model, sampling or Sampling(cfg=2.0), TreeProposer(drafter, tree), verifier)


def images(decoder: Any, prompts: list[str], seed: int = 3, **given: Any) -> Generation:
    """What a decoder makes of prompts, whose noise they name."""
    model = decoder.model
    noise = Noise.for_prompts(seed, prompts, model.target.length)
    return decoder.generate(model.text.encode(prompts), noise, **given)


def require_same(one: Any, other: Any, *fields: str) -> None:
    """Two generations have the same codes and these fields of their traces."""
    assert torch.equal(one.codes, other.codes)
    for name in fields:
        assert torch.equal(getattr(one.trace, name), getattr(other.trace, name)), name


@dataclass
class Traced(Compiled):
    """Pieces as whole graphs, run operator by operator: no minute of compiling."""

    sizes: Collection[int] = EVERY

    def compile_graph(self, graph: Any, inputs: Any, device: torch.device) -> Any:
        return graph


@dataclass
class TracedKernel(Traced, Kernel):
    """The same with the CPU kernel's operators."""


def through_cache(model: Any, text: TextFeatures, codes: Tensor, room: int = 0) -> Any:
    """Codes [B, T] through the target, one by one: states [2 B, P + T, D], and the cache, which has
    room for so many more."""
    target, rows, more = model.target, 2 * text.batch, codes.shape[1] + room
    cache = target.new_cache(rows, target.prefix + more)
    states = [target.prefill(text, 2, cache)]
    seen = F.pad(text.row_mask(2), (0, more))
    for i in range(codes.shape[1]):
        seen[:, target.prefix + i] = True
        position = torch.full((rows, 1), i)
        ids = codes[:, i : i + 1].repeat(2, 1)
        states.append(
            target.forward_codes(ids, position, position + target.prefix, seen[:, None], cache)
        )
    return torch.cat(states, 1), cache


def states_of(model: ImageModel, learner: Any, batch: int = 3) -> States:
    """What a learner reads of the target along random images."""
    text = model.text.encode([f"p{i}" for i in range(batch)])
    size, random = (batch, model.target.length), torch.Generator().manual_seed(1)
    codes = torch.randint(model.target.vocab_size, size, generator=random)
    return target_states(transformer_of(model), Images(text, codes), None, learner.reads)


def prefilled(
    model: ImageModel, text: TextFeatures, hidden: Tensor, sampling: Sampling, cache: Any = None
) -> Prefill:
    """What a drafter's session begins with: these states of the prefix, and no first code."""
    first = torch.zeros(text.batch, dtype=torch.long)
    law = torch.zeros(text.batch, model.target.vocab_size)
    return Prefill(model, sampling, text, None, cache, hidden, first, law)


def with_targets(model: ImageModel) -> ImageModel:
    """A random model with the other targets beside its usual one, whose weights they share."""
    targets, usual = {}, model.target
    for name in TARGETS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            kind, config = PART_CLASSES[name]
            schedule = dict(TARGETS[name])
            if usual.config.grid % 2:  # an odd side has no 2 x 2 regions
                schedule.pop("order", None)
            target: Any = kind(config(**asdict(usual.config) | schedule))
        weights = target.state_dict() | usual.state_dict()
        weights["tok_embeddings.weight"] = torch.cat(
            [usual.tok_embeddings.weight, target.tok_embeddings.weight[usual.vocab_size :]]
        )
        target.load_state_dict(weights)
        targets[name] = cast(target.eval().requires_grad_(False), model.device, model.dtype)
    return replace(model, targets=targets)


def require_adds_up(trace: Trace) -> None:
    """Steps, accepted drafts and the kinds of codes say the same."""
    drafts = (trace.kind == CodeKind.DRAFT) | (trace.kind == CodeKind.RELAXED)
    assert torch.equal(drafts.sum(1), trace.accepted.clamp_min(0).sum(1))
    for row, steps in enumerate(trace.target_calls.tolist()):
        accepted = trace.accepted[row]
        assert (accepted[:steps] >= 0).all() and (accepted[steps:] == -1).all()
        assert trace.step[row, 0] == 0 and int(trace.step[row].max()) == steps
        assert trace.kind[row, 0] == CodeKind.TARGET


def entry(name: str) -> str:
    """A study's entry: a decoder of conf/decoder, or as `sd_chain with hawk` one with a drafter of
    conf/drafter, untrained."""
    name, _, drafter = name.partition(" with ")
    drafter = drafter or (name if name in DRAFTER_SPECS else "")  # on a drafter of its name
    words = f'["drafter={drafter}", "drafter.checkpoint=null"{SMALLER.get(drafter, "")}]'
    return f"{{decoder: {name}, overrides: {words}}}" if drafter else name


@cache
def spec_of(name: str) -> DecoderSpec:
    """See `entry`."""
    study = compose_study([f"decoders=[{entry(name)}]", "model=tiny"])
    return variants(study, Sampling())[-1].entry.spec


def small_spec(name: str) -> DecoderSpec:
    """The same on a tree of two or three levels, or a short window: traced and decoded sooner."""
    spec = spec_of(name)
    return replace(spec, tree=smaller(spec.tree), proposer=smaller(spec.proposer))


def smaller(part: PartSpec | None) -> PartSpec | None:
    if part is None:
        return None
    return replace(part, kwargs={key: SMALL.get(key, old) for key, old in part.kwargs.items()})
