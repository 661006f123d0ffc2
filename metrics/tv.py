"""Total variation: how far the committed code's law is from p at recorded nodes, and moved mass.

Why: a relaxed rule declares a bound on what it moves, TV(p, p_A), but what a reader wants to know
is how far the committed code's distribution is from the target's p. At recorded nodes that law is a
finite sum, so it is computed, not sampled (`metrics.node_law`, METHODS sections 4 and 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from decoders.api import AcceptRule, CodeKind, VerifiedPairs
from metrics.errors import MetricError
from metrics.node_law import MAX_DRAWS, along, draw_count, node_law, spot_of

_SUM_TOLERANCE = 1e-3  # of a distribution's sum; float32 softmax over 16384 codes stays far below


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


class OutputTV(NamedTuple):
    """At M nodes, [M] float32 on the CPU each. tv: distance from p; declared: what the rule
    declares, composed over the node's children; limit: the output bound (METHODS2, lemma R)."""

    tv: Tensor
    declared: Tensor
    limit: Tensor


def output_tv(rule: AcceptRule, pairs: VerifiedPairs) -> OutputTV:
    """Output TV and its two bounds at M recorded nodes, by the law of `metrics.node_law`.

    Deterministic children, one drawn child, or few draws in all: of the node's exact law. Several
    children drawn from a large codebook: `metrics.node_law.along` the recorded ones, which on
    average is no less. M = 0 gives empty tensors. Raises MetricError when p or q is not a
    distribution, a shape does not fit, or the rule answers NaN.
    """
    _check(pairs)
    figures = [_at(rule, pairs, row) for row in range(len(pairs.p))]
    found = torch.tensor(figures, dtype=torch.float64).view(-1, 3)  # [M, 3]
    if not bool(torch.isfinite(found).all()):
        row = int((~torch.isfinite(found)).any(-1).nonzero()[0])
        raise MetricError(
            f"the rule answers NaN at recorded node {row} (TV, declared bound, output bound: "
            f"{found[row].tolist()}); its accept, residual and bound must be finite"
        )
    return OutputTV(*found.float().unbind(-1))


def _at(rule: AcceptRule, pairs: VerifiedPairs, row: int) -> tuple[float, float, float]:
    """(tv, declared, limit) at one recorded node."""
    p, children = pairs.p[row], pairs.children[row][pairs.valid[row]]
    q = None if pairs.q is None else pairs.q[row]
    if not len(children):
        return 0.0, 0.0, 0.0
    support = 0 if q is None else int((q > 0).sum())
    spot = spot_of(pairs, row)
    if q is None or len(children) == 1 or draw_count(support, len(children)) <= MAX_DRAWS:
        law = node_law(rule, p, q, children, spot=spot)
        return law.tv, law.declared, law.limit
    return along(rule, p, q, children, spot)


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
