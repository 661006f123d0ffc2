"""Typical acceptance (Medusa, 2401.10774), decoders.md (g): a draft passes where the target finds
it typical, a(x) = [p(x) > min(eps, alpha exp(-H(p)))] with H the entropy of p in nats.

Medusa commits nothing else than such drafts and the root's own code. Here the rule has the best
correction for its acceptance (decoders.md, lemma R). ``residual: paper`` goes on with p itself.
Medusa's own loop is `decoders.verify.released.Medusa`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.distribution import normalised
from decoders.kinds import Positive, Share
from decoders.verify.corrected import Corrected, correction


class Typical(Corrected):
    """eps: a draft of this probability always passes; alpha: share of exp(-H) from which it does
    (`posterior_threshold` and `posterior_alpha` in Medusa)."""

    def __init__(
        self,
        model: Any = None,
        eps: Share = 0.09,
        alpha: Positive = 0.3,
        residual: str = "lemma",
    ) -> None:
        del model  # the rule needs nothing from it
        self.eps, self.alpha, self.residual = eps, alpha, correction(residual)

    def __str__(self) -> str:
        return f"typical(eps={self.eps:g}, alpha={self.alpha:g}, residual={self.residual})"

    def typical(self, p: Tensor) -> Tensor:
        """Which codes pass, [..., V] bool."""
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)  # [..., 1]; 0 log 0 = 0
        return p > (self.alpha * torch.exp(-entropy)).clamp_max(self.eps)

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return torch.where(self.typical(p), 1.0 if q is None else q, 0.0)

    def corrected(self, p: Tensor, q: Tensor | None, mass: Tensor, x: Tensor) -> Tensor:
        return p if self.residual == "paper" else super().corrected(p, q, mass, x)

    def truncated(self, p: Tensor) -> Tensor:
        """The target cut to what passes, [..., V]: what a truncating rule is to be compared with
        (2607.26627). p itself where nothing passes."""
        return normalised(torch.where(self.typical(p), p, 0.0), p)
