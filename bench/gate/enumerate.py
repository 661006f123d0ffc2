"""The exact law of the next committed code at a node, by enumerating every draw of its children.

The loop's judge (`decoders.execution.judge.judge_of`) judges the children of every possible
draw; nothing is sampled. Drawn children: all ordered tuples without replacement, with their
probabilities. Deterministic ones: a single tuple. After the last rejection the loop samples in
proportion to the residual, normalised or not.
    out = sum over draws w [sum_j prod_{i<j} (1 - a_i) a_j delta(x_j) + prod_j (1 - a_j) residual]
    bound = sum over draws w [1 - prod_j (1 - bound_j)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from decoders.api import AcceptRule
from decoders.execution.judge import judge_of

MAX_DRAWS = 6000  # ordered draws of one node that are enumerated at most


@dataclass(frozen=True)
class NodeLaw:
    """out [V] float64: the law of the committed code; tv: its distance to p (1 if it is no law:
    NaN); bound: what the rule declares for it; draws: tuples enumerated."""

    out: Tensor
    tv: float
    bound: float
    draws: int


def ordered_draws(q: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """All ordered draws without replacement of `count` codes from q [V] (fewer if its support is
    smaller) -> codes [T, count], probabilities [T] float64."""
    support = q.nonzero().flatten().tolist()
    size = min(count, len(support))
    codes = torch.tensor(list(permutations(support, size))).view(-1, size)
    mass = q.double()[codes]  # [T, size]
    taken = mass.cumsum(-1) - mass  # mass of the earlier siblings
    return codes, (mass / (q.double().sum() - taken).clamp_min(1e-300)).prod(-1)


def node_law(
    rule: AcceptRule, p: Tensor, q: Tensor | None, children: Tensor | int, native: bool = False
) -> NodeLaw:
    """p [V], q [V] float32; children: how many are drawn from q, or the deterministic ones [K];
    native: judged by the CPU kernel, where it computes the rule."""
    if q is None:
        if isinstance(children, int):
            raise ValueError("deterministic children must be given as codes")
        codes, weight = children[None], torch.ones(1, dtype=torch.float64)
    else:
        count = children if isinstance(children, int) else len(children)
        codes, weight = ordered_draws(q, count)
    draws = len(codes)
    rows = None if q is None else q.expand(1, draws, -1)
    found = judge_of(rule, p.device, "cpu" if native else "eager")(
        p.expand(1, draws, -1),
        rows,
        codes[None],
        torch.ones_like(codes[None], dtype=torch.bool),
    )
    accept = found.accept[0].double()  # [T, K]
    alive = torch.cat([torch.ones(draws, 1, dtype=torch.float64), (1 - accept).cumprod(-1)], -1)
    out = torch.zeros(len(p), dtype=torch.float64)
    hit = weight[:, None] * alive[:, :-1] * accept
    out.index_add_(0, codes.flatten(), hit.flatten())
    left = weight * alive[:, -1]  # [T], probability that all are rejected
    residual = found.residual[0].double()
    total = residual.sum(-1, keepdim=True)
    last = torch.zeros_like(residual)
    last[:, -1] = 1.0  # what `decoders.noise.sample` returns where nothing is left
    residual = torch.where(total > 0, residual / total, last)
    out += torch.where(left[:, None] > 0, left[:, None] * residual, 0.0).sum(0)
    bound = float(weight @ (1 - (1 - found.bound[0].double()).prod(-1)))
    tv = 0.5 * float((out - p.double()).abs().sum())
    return NodeLaw(out, tv if math.isfinite(tv) else 1.0, bound, draws)
