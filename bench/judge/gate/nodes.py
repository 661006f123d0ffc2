"""Nodes to enumerate: (p, q) of many kinds, so that an error that shows only at some is met."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metrics.node_law import Spot


@dataclass(frozen=True)
class Node:
    """p, q [V] float32 and where they come from. children: codes (deterministic) or their count.
    spot: where a recorded one stood; None: any."""

    p: Tensor
    q: Tensor
    children: Tensor | int
    origin: str
    spot: Spot | None = None


def random_pairs(vocab: int, each: int, seed: int) -> list[tuple[str, Tensor, Tensor]]:
    """(kind, p, q), `each` of every kind: ordinary, near to each other, equal, flat, sparse as
    after top-k, disjoint supports, one sharp."""
    g = torch.Generator().manual_seed(seed)

    def logits(scale: float) -> Tensor:
        return scale * torch.randn(vocab, generator=g)

    def sparse(z: Tensor, keep: int) -> Tensor:
        return z.masked_fill(z < z.topk(max(1, keep)).values[-1], -torch.inf)

    out = []
    half = torch.arange(vocab) < vocab // 2
    for _ in range(each):
        base = logits(1.5)
        fitting = base + logits(0.7)
        split = half[torch.randperm(vocab, generator=g)]
        kinds = {
            "independent": (base, logits(1.5)),
            "near": (base, fitting),
            "equal": (base, base),
            "flat": (logits(0.2), logits(0.2)),
            "sparse": (sparse(base, vocab // 2), sparse(fitting, vocab // 2)),
            "disjoint": (
                base.masked_fill(split, -torch.inf),
                fitting.masked_fill(~split, -torch.inf),
            ),
            "sharp": (4 * base, fitting),
        }
        out += [(kind, p.softmax(-1), q.softmax(-1)) for kind, (p, q) in kinds.items()]
    return out
