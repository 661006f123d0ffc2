"""The exact rule: accept with min(1, p(x) / q(x)), go on with norm((p - q)+) (2211.17192, METHODS
3).

With deterministic children q = 1 at x, so the residual is p without x, renormalised (EAGLE-2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import Acceptance, AcceptRule
from decoders.distribution import normalised, pick, ratio, without


def residual(p: Tensor, q: Tensor | None, x: Tensor) -> Tensor:
    """norm((p - q)+) [..., V]."""
    return normalised(without(p, x) if q is None else (p - q).clamp_min(0.0), p)


def greedy_acceptance(p: Tensor, x: Tensor) -> Acceptance:
    """The exact test at temperature 0, see `AcceptRule.greedy`."""
    hit = (p.argmax(-1) == x).float()
    zero = torch.zeros_like(hit)
    return Acceptance(hit, hit, p, zero, zero)


class Exact(AcceptRule):
    """Vanilla speculative sampling; the output distribution is p whatever the drafter."""

    def __init__(self, model: Any = None) -> None:
        del model  # the rule needs nothing from it

    def __str__(self) -> str:
        return "exact"

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        accept = ratio(pick(p, x), q, x)
        zero = torch.zeros_like(accept)
        return Acceptance(accept, accept, residual(p, q, x), zero, zero)

    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        return greedy_acceptance(p, x)
