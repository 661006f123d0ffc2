"""Typical acceptance (Medusa, 2401.10774, decoders.md (g)), with the target's entropy H in nats:

    a(x) = [p(x) > min(eps, alpha exp(-H))]

Medusa has no correction: it commits such drafts and, behind them, an argmax. Here lemma R's
correction follows a rejection, and its sum is the bound.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.distribution import setting
from decoders.kinds import Positive, Share
from decoders.verify.corrected import Passing


@dataclass(eq=False, repr=False)
class Typical(Passing):
    """eps: a draft of this probability always passes; alpha: share of exp(-H) from which it does
    (`posterior_threshold` and `posterior_alpha` in Medusa)."""

    model: InitVar[Any] = None
    eps: Share = 0.09
    alpha: Positive = 0.3

    def __post_init__(self, model: Any) -> None:
        self.most, self.share = setting(self.eps, model), setting(self.alpha, model)

    def __str__(self) -> str:
        return f"typical(eps={self.eps:g}, alpha={self.alpha:g})"

    def passes(self, p: Tensor) -> Tensor:
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)  # [..., 1]
        return p > (self.share * torch.exp(-entropy)).minimum(self.most.to(p.dtype))
