"""Token selection ambiguity: how many codes the target and the drafter spread their mass over at
verified nodes (LANTERN, 2410.03355, section 3: the premise of relaxed acceptance).

Of a node with the target's distribution p and the drafter's q, both after guidance, temperature and
filters:
    mass(n) = sum of the n largest probabilities
    entropy = - sum_x p(x) log2 p(x)                       bits; 2^entropy: effective codes
    alpha   = sum_x min(p(x), q(x))                        of a child that is drawn from q
            = p(x)                                         of a deterministic child x
alpha is what the exact rule accepts of the node's first child.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import VerifiedPairs

RANKS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))  # 1 to 500,000, past any codebook


@dataclass(frozen=True)
class Ambiguity:
    """Of M nodes, float64. The drafter's have no row where children are deterministic."""

    target_mass: Tensor  # [M, len(RANKS)]
    target_entropy: Tensor  # [M], bits
    drafter_mass: Tensor  # [M or 0, len(RANKS)]
    drafter_entropy: Tensor  # [M or 0], bits
    alpha: Tensor  # [M]


def ambiguity(pairs: VerifiedPairs) -> Ambiguity:
    """Measures the nodes of `pairs`, each of which has a valid child."""
    p, q = pairs.p.double(), None if pairs.q is None else pairs.q.double()
    if q is None:
        first = pairs.valid.long().argmax(1, keepdim=True)  # [M, 1]
        alpha = p.gather(1, pairs.children.gather(1, first))[:, 0]  # [M]
    else:
        alpha = torch.minimum(p, q).sum(-1)  # [M]
    drafter = p[:0] if q is None else q
    return Ambiguity(mass(p), entropy(p), mass(drafter), entropy(drafter), alpha)


def mass(probs: Tensor) -> Tensor:
    """[M, V] distributions -> [M, len(RANKS)]: the mass of the likeliest codes, of so many."""
    ranked = probs.sort(-1, descending=True).values.cumsum(-1)  # [M, V]
    return ranked[:, [min(rank, probs.shape[-1]) - 1 for rank in RANKS]]


def entropy(probs: Tensor) -> Tensor:
    """[M, V] distributions -> [M] bits."""
    return -torch.special.xlogy(probs, probs).sum(-1) / torch.log(torch.tensor(2.0).double())
