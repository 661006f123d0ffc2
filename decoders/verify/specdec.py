"""Spec-Verification, the relaxed rule of SpecDec (2203.16487), whose drafter is
`decoders.propose.drafters.specdec`.

A draft x passes where x is among the `beta` likeliest codes of p and log p(top) - log p(x) <= tau.
At temperature 0 this is SpecDec's rule, which has no bound: a draft that passes without being the
argmax declares a TV distance of 1. While sampling the rule has no published form; here p is the
processed distribution, and lemma R gives the correction and the bound.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import Acceptance
from decoders.distribution import kth_largest, pick, setting
from decoders.kinds import Count, NotNegative
from decoders.verify.corrected import Passing
from decoders.verify.exact import greedy_acceptance


@dataclass(eq=False, repr=False)
class SpecVerification(Passing):
    """beta, tau: see the module; beta 1 is greedy decoding at temperature 0."""

    model: InitVar[Any] = None
    beta: Count = 5
    tau: NotNegative = 3.0

    def __post_init__(self, model: Any) -> None:
        self.least = setting(math.exp(-self.tau), model)

    def __str__(self) -> str:
        return f"specdec(beta={self.beta}, tau={self.tau:g})"

    def passes(self, p: Tensor) -> Tensor:
        """Never a code with p(x) = 0. Of equally likely codes the first counts as the likeliest."""
        best, top = p.max(-1, keepdim=True)  # [..., 1]
        near = torch.zeros_like(p, dtype=torch.bool).scatter(-1, top, True)
        if self.beta == 1:
            return near
        least = kth_largest(p, min(self.beta, p.shape[-1]))
        return near | (p >= torch.maximum(least, best * self.least))

    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        exact = greedy_acceptance(p, x)
        hit = torch.maximum(pick(self.passes(p).float(), x), exact.accept)
        away = hit - exact.accept
        return Acceptance(hit, exact.accept, p, away, away)
