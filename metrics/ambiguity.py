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

import torch
from torch import Tensor

from decoders.api import VerifiedPairs

RANKS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))  # 1 to 500,000, past any codebook


def ambiguity(pairs: VerifiedPairs) -> dict[str, Tensor]:
    """Measures the M nodes of `pairs`, each of which has a valid child, in float64: target_mass and
    drafter_mass [M, len(RANKS)], target_entropy and drafter_entropy [M] in bits, alpha [M]. The
    drafter's have no row where children are deterministic."""
    p, q = pairs.p.double(), None if pairs.q is None else pairs.q.double()
    if q is None:
        first = pairs.valid.long().argmax(1, keepdim=True)  # [M, 1]
        alpha = p.gather(1, pairs.children.gather(1, first))[:, 0]  # [M]
    else:
        alpha = torch.minimum(p, q).sum(-1)  # [M]
    found = {"alpha": alpha}
    for name, probs in (("target", p), ("drafter", p[:0] if q is None else q)):
        found |= {f"{name}_mass": mass(probs), f"{name}_entropy": entropy(probs)}
    return found


def mass(probs: Tensor) -> Tensor:
    """[M, V] distributions -> [M, len(RANKS)]: the mass of the likeliest codes, of so many."""
    ranked = probs.sort(-1, descending=True).values.cumsum(-1)  # [M, V]
    return ranked[:, [min(rank, probs.shape[-1]) - 1 for rank in RANKS]]


def entropy(probs: Tensor) -> Tensor:
    """[M, V] distributions -> [M] bits."""
    return -torch.special.xlogy(probs, probs).sum(-1) / torch.log(torch.tensor(2.0).double())
