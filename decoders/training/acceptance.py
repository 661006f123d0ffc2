"""Held-out acceptance per depth: what a drafter is worth, before any decoder is run with it.

The drafter is run along held-out codes as decoding would run it: at depth d it reads its own
features. The mean of sum_x min(p, q) at depth d is the probability that the exact rule accepts a
draft there, given that the d - 1 before it were accepted; top-1 agreement is the same for greedy
decoding. From these follows the mean accepted length of a chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from decoders.api import Sampling
from decoders.distribution import probabilities
from decoders.models.transformer import Transformer
from decoders.training.learner import Learner
from decoders.training.losses import head_logits, logits_at
from decoders.training.states import States, true_states

ROOTS = 64


@dataclass(frozen=True)
class Acceptance:
    """overlap[d - 1], agree[d - 1]: acceptance at depth d when sampling, and greedily."""

    overlap: list[float]
    agree: list[float]

    def chain_length(self, depth: int | None = None) -> float:
        """Expected codes a target forward of a chain of `depth` drafts: 1 + a_1 + a_1 a_2 + ..."""
        total, reached = 1.0, 1.0
        for accepted in self.overlap[:depth]:
            reached *= accepted
            total += reached
        return total

    def figures(self) -> dict[str, float]:
        """Named for curves and cards: overlap_1, ..., agree_1, ..., chain_length."""
        named = {f"overlap_{d}": value for d, value in enumerate(self.overlap, 1)}
        named |= {f"agree_{d}": value for d, value in enumerate(self.agree, 1)}
        return named | {"chain_length": self.chain_length()}


@torch.no_grad()
def acceptance(
    learner: Learner, target: Transformer, batches: Iterable[States], sampling: Sampling, depth: int
) -> Acceptance:
    """Acceptance at depths 1..depth: at every place for depth 1, behind `ROOTS` evenly spaced roots
    an image for the deeper ones.

    p and q are processed by `sampling` (temperature 1 where it is greedy); guided where the states
    are paired, else without guidance.
    """
    drawn = sampling if not sampling.greedy else Sampling(1.0, sampling.cfg)
    depth = min(depth, target.length - 1)
    sums, agree, count = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    for states in batches:
        images, device = len(states.images), states.hidden.device
        every = torch.arange(1, target.length, device=device)
        hidden = true_states(target, states, every)
        truth = head_logits(target, hidden, every, images, sampling.cfg)  # [B, L - 1, V]
        p = probabilities(truth, drawn)
        last = target.length - depth - 1
        roots = torch.linspace(0, last, min(ROOTS, last + 1), device=device).long()
        for d, drafted in enumerate(learner.draft(states, roots, depth)):
            index = drafted.places - 1
            logits = logits_at(drafted, images, sampling.cfg)
            q = probabilities(logits, drawn)
            sums[d] += torch.minimum(p[:, index], q).sum().cpu()
            agree[d] += (truth[:, index].argmax(-1) == logits.argmax(-1)).sum().cpu()
            count[d] += len(truth) * len(index)
    seen = count > 0  # a drafter may be shallower than asked
    return Acceptance((sums / count)[seen].tolist(), (agree / count)[seen].tolist())
