"""Total variation: the exact output law of an acceptance rule at recorded pairs, and moved mass.

Why: a relaxed rule declares a bound on what it moves, but what a reader wants to know is how far
the committed code's distribution is from the target's p. At recorded (p, q) pairs that law is a
finite sum, so it is computed, not sampled (METHODS sections 4 and 5).

Deterministic children x_1..x_K (q = 1 at each), p_1 = p, p_{j+1} the residual after rejecting x_j:
    out = sum_j prod_{i<j} (1 - a_i) a_j delta(x_j) + prod_j (1 - a_j) p_{K+1}
Stochastic drafts x ~ q (one draft):
    out = sum_x q(x) [a(x) delta(x) + (1 - a(x)) residual_x]
TV = 1/2 sum |out - p|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from decoders.api import AcceptRule, CodeKind, VerifiedPairs
from metrics.errors import MetricError

_SUM_TOLERANCE = 1e-3  # of a distribution's sum; float32 softmax over 16384 codes stays far below
_CHUNK_ENTRIES = 1 << 23  # entries of one chunk of V-wide tests: 32 MiB float32


@dataclass(frozen=True)
class MovedMass:
    """TV(p, p_A) over the verified positions of a run, beside the bound the rule declared there.

    quantiles: {0.5: ..., 0.9: ..., 0.99: ...}. exceeded: positions above their bound by over 1e-5.
    """

    positions: int
    mean: float
    max: float
    quantiles: dict[float, float]
    bound_max: float
    exceeded: int


def output_tv(rule: AcceptRule, pairs: VerifiedPairs) -> tuple[Tensor, Tensor]:
    """True output TV and its bound at M pairs: (tv [M], bound [M]), float32 on the CPU.

    bound: deterministic children 1 - prod_j (1 - bound_j) over the tested children, stochastic
    drafts sum_x q(x) bound(x). With stochastic drafts this is the law of a single draft; siblings
    drawn without replacement compose it. M = 0 gives empty tensors. Raises MetricError when p or q
    is not a distribution or a shape does not fit.
    """
    _check(pairs)
    out, bound = output_law(rule, pairs)
    tv = 0.5 * (out - pairs.p.double()).abs().sum(-1)  # [M]
    return tv.float().cpu(), bound.float().cpu()


def output_law(rule: AcceptRule, pairs: VerifiedPairs) -> tuple[Tensor, Tensor]:
    """The law of the committed code at every pair, [M, V] float64, and the bound on its TV, [M]."""
    if pairs.q is None:
        return _deterministic(rule, pairs)
    laws = [_stochastic(rule, p, q) for p, q in zip(pairs.p, pairs.q, strict=True)]
    if not laws:
        return pairs.p.double(), pairs.p.new_zeros(0, dtype=torch.float64)
    return torch.stack([law for law, _ in laws]), torch.stack([bound for _, bound in laws])


def moved_mass(
    moved: ArrayLike,
    bound: ArrayLike,
    kind: ArrayLike,
    *,
    levels: Sequence[float] = (0.5, 0.9, 0.99),
) -> MovedMass:
    """Summary over positions at which a draft was tested (kind draft, relaxed or corrected).

    moved, bound, kind: equal shapes, as in `Trace`. An AR run has no such position: all zeros.
    """
    tested = np.isin(np.asarray(kind), [CodeKind.DRAFT, CodeKind.RELAXED, CodeKind.CORRECTED])
    mass, limit = np.asarray(moved, np.float64), np.asarray(bound, np.float64)
    if mass.shape != tested.shape or limit.shape != tested.shape:
        raise MetricError(
            f"moved {mass.shape}, bound {limit.shape} and kind {tested.shape} must have one shape"
        )
    mass, limit = mass[tested], limit[tested]
    if not (np.isfinite(mass).all() and np.isfinite(limit).all()):
        raise MetricError("moved mass or its bound holds NaN or infinity")
    if not mass.size:
        return MovedMass(0, 0.0, 0.0, dict.fromkeys(levels, 0.0), 0.0, 0)
    quantiles = {float(x): float(np.quantile(mass, x)) for x in levels}
    exceeded = int((mass > limit + 1e-5).sum())
    return MovedMass(
        mass.size, float(mass.mean()), float(mass.max()), quantiles, float(limit.max()), exceeded
    )


def _deterministic(rule: AcceptRule, pairs: VerifiedPairs) -> tuple[Tensor, Tensor]:
    """Children tested in order, all M pairs at once."""
    current = pairs.p.float()  # [M, V]
    out = torch.zeros_like(current, dtype=torch.float64)  # [M, V]
    alive = out.new_ones(len(current))  # [M], probability that every child so far was rejected
    kept = out.new_ones(len(current))  # [M], product of 1 - bound
    for j in range(pairs.children.shape[1]):
        valid = pairs.valid[:, j]  # [M]
        x = torch.where(valid, pairs.children[:, j], 0)  # [M]
        test = rule.test(current, None, x)
        accept = torch.where(valid, test.accept.double(), 0.0)  # [M]
        out.scatter_add_(1, x[:, None], (alive * accept)[:, None])
        kept = kept * torch.where(valid, 1 - test.bound.double(), 1.0)
        alive = alive * (1 - accept)
        # A child accepted for certain may leave no residual; its weight `alive` is zero.
        usable = (valid & (accept < 1))[:, None]  # [M, 1]
        current = torch.where(usable, test.residual, current)
    return out + alive[:, None] * current.double(), 1 - kept


def _stochastic(rule: AcceptRule, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Law [V] and bound [] of one draft from q; only codes with q(x) > 0 are tested, in chunks."""
    drafts = q.nonzero().flatten()  # [n]
    out = torch.zeros_like(p, dtype=torch.float64)  # [V]
    bound = out.new_zeros(())
    for x in drafts.split(max(1, _CHUNK_ENTRIES // len(p))):
        rows = p.float().expand(len(x), -1), q.float().expand(len(x), -1)  # [n, V] views
        test = rule.test(*rows, x)
        weight, accept = q[x].double(), test.accept.double()  # [n]
        out.index_add_(0, x, weight * accept)
        rejected = weight * (1 - accept)  # [n]
        some = rejected > 0  # a certain acceptance may leave a residual that means nothing
        out += rejected[some] @ test.residual[some].double()  # [V]
        bound = bound + (weight * test.bound.double()).sum()
    return out, bound


def _check(pairs: VerifiedPairs) -> None:
    """Shapes and distributions of the pairs, or MetricError."""
    count, vocab = pairs.p.shape
    for name, rows in (("p", pairs.p), ("q", pairs.q)):
        if rows is None:
            continue
        if rows.shape != pairs.p.shape:
            raise MetricError(f"{name} is {list(rows.shape)}, expected {list(pairs.p.shape)}")
        total = rows.double().sum(-1)  # [M]
        wrong = ~(((total - 1).abs() < _SUM_TOLERANCE) & (rows >= 0).all(-1))  # NaN is wrong too
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise MetricError(
                f"{name}[{row}] is not a distribution (sum {float(total[row]):.6g}, least entry "
                f"{float(rows[row].min()):.3g}); record processed float32 probabilities"
            )
    shape = pairs.children.shape
    if len(shape) != 2 or shape[0] != count or pairs.valid.shape != shape:
        raise MetricError(
            f"children {list(shape)} and valid {list(pairs.valid.shape)} must both be [{count}, K]"
        )
    tested = pairs.children[pairs.valid]
    if tested.numel() and (int(tested.min()) < 0 or int(tested.max()) >= vocab):
        raise MetricError(f"a child lies outside the vocabulary of {vocab} codes")
