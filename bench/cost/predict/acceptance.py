"""How deep drafts are accepted: recorded on a few images, for trees that ran and for some that did
not.

A rule is recorded on one deep chain. From it follow, by `bench.cost.speed`, the shallower chains
(nothing assumed) and, where children are drawn, static trees: how a second or third child fares is
computed from the recorded (p, q) by drawing children as a tree does, without replacement, and
letting the rule judge them. A tree whose shape depends on the drafter's confidence, or that has
siblings at temperature 0 (where no q is recorded), is recorded itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.cost.speed import TreeShape, reach, shallower, tree_reach
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.run.outcome import decode
from bench.run.session import codes_only
from decoders.api import AcceptRule, Decoder, ImageModel, Sampling, VerifiedPairs
from decoders.compose import PartSpec, assembled
from decoders.verify.children import test_children
from metrics.traces import moved_mass, output_tv

DRAWS = 8  # times that children are drawn at every recorded pair


@dataclass(frozen=True)
class Workshop:
    """What all candidates of a search share. loop: its specification, as a loop is built with its
    parts."""

    model: ImageModel
    sampling: Sampling
    loop: PartSpec
    drafter: Any

    def decoder(self, tree: object, rule: AcceptRule) -> Decoder:
        """A decoder of a built tree and a built rule. Raises DecoderError."""
        return assembled(self.loop, self.model, self.sampling, self.drafter, tree, rule)


@dataclass(frozen=True)
class Recorded:
    """A rule on a tree. reached: P(accepted >= d); survival: P(the first j children are rejected),
    j = 1, 2, ... (empty where no q was recorded); moved: mean mass moved; bound: the most that the
    rule declared; tv: mean output TV at the pairs (`metrics.traces.output_tv`; NaN at temperature
    0, where there is no output law)."""

    reached: tuple[float, ...]
    survival: tuple[float, ...]
    moved: float
    bound: float
    tv: float


def record(
    shop: Workshop,
    tree: object,
    rule: AcceptRule,
    prompts: Sequence[str],
    seed: int,
    pairs: int,
    width: int,
) -> Recorded:
    """Decodes one image a prompt, all at once, and reads acceptance and quality off the trace.

    The step runs eagerly, whatever the model's backend: it commits the same codes, and nothing is
    compiled for a single call. width: siblings that are looked at. Raises what the decoder raises.
    """
    model = codes_only(dataclasses.replace(shop.model, execution=None))
    eager = dataclasses.replace(shop, model=model)
    greedy = shop.sampling.greedy
    outcome = decode(
        model,
        eager.decoder(tree, rule),
        list(prompts),
        seed,
        clock=Clock(model.device),
        meter=MemoryMeter(model.device),
        pairs=0 if greedy else pairs / len(prompts),
    )
    trace = outcome.generation.trace
    mass = moved_mass(trace.moved, trace.bound, trace.kind)
    found = None if trace.pairs is None else on(model, trace.pairs)
    survival: tuple[float, ...] = ()
    if found is not None and found.q is not None:
        survival = sibling_survival(rule, found, width, seed)
    tv = math.nan if found is None else float(output_tv(rule, found).tv.mean())
    reached = reach(trace.accepted.tolist(), trace.tree_depth)
    return Recorded(reached, survival, mass.mean, mass.bound_max, tv)


def on(model: ImageModel, pairs: VerifiedPairs) -> VerifiedPairs:
    """The pairs on the model's device, where a rule has its tables."""
    fields = (pairs.p, pairs.q, pairs.children, pairs.valid)
    return VerifiedPairs(*(None if t is None else t.to(model.device) for t in fields))  # type: ignore[arg-type]


def sibling_survival(
    rule: AcceptRule, pairs: VerifiedPairs, width: int, seed: int, draws: int = DRAWS
) -> tuple[float, ...]:
    """Probability that a node's first j children are all rejected, j = 1..width, over recorded
    nodes and `draws` draws of their children without replacement (Gumbel top-k, which draws as one
    after the other does). The last ones repeat where q has fewer codes."""
    p, q = pairs.p, pairs.q
    if q is None:
        raise ValueError("children were not drawn here: there is no q")
    generator = torch.Generator(device=q.device).manual_seed(seed)
    width = min(width, q.shape[-1])
    total = torch.zeros(width, dtype=torch.float64, device=q.device)
    for _ in range(draws):
        codes, valid = drawn(q, width, generator)  # [M, K] each
        verdicts = test_children(rule, p[:, None], q[:, None], codes[:, None], valid[:, None])
        total += (1 - verdicts.accept[:, 0].double()).cumprod(-1).mean(0)  # [K]
    return tuple((total / draws).tolist())


def drawn(q: Tensor, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """q [M, V] -> codes [M, K] drawn without replacement, and which of them have q > 0."""
    u = torch.rand(q.shape, generator=generator, device=q.device).clamp_min(1e-20)
    codes = (q.log() - (-u.log()).log()).topk(width, -1).indices  # [M, K]
    return codes, q.gather(-1, codes) > 0


def derivable(shape: TreeShape, sampling: Sampling) -> bool:
    """Whether a tree's acceptance follows from that of a chain."""
    return shape.paths is not None and (shape.chain or not sampling.greedy)


def derived(shape: TreeShape, chain: Recorded) -> tuple[float, ...]:
    """P(accepted >= d) of a derivable tree, from a rule's chain. Raises SpeedError where the chain
    is not as deep, or its siblings not as many."""
    if shape.chain:
        return shallower(chain.reached, shape.depth)
    assert shape.paths is not None
    return tree_reach(shape.paths, chain.reached, chain.survival)
