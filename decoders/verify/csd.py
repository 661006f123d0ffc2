"""CSD (2606.27829), decoders.md (w): where target and drafter are near, every draft is accepted
more often, by a share of the target's entropy.

    eps = lambda H(p) if TV(p, q) < delta else 0,  a(x) = min(1, p(x) / q(x) + eps)

H is in nats and not normalised: at lambda 0.5 every place with H >= 2 accepts everything where
TV(p, q) < delta, as on most images. `lam: 1e9` is that ablation (eps = inf) for all places. A
node's law is sum_{q > p} min(q - p, eps q) away from p, so less than delta. The paper's correction
norm((p - q)+) is the lemma's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.kinds import NotNegative, Share
from decoders.verify.corrected import Corrected


class Csd(Corrected):
    """lam: lambda. delta: TV(p, q) from which on the exact rule decides."""

    beyond_support = True  # a draft with p(x) = 0 is accepted with probability eps

    def __init__(self, model: Any = None, lam: NotNegative = 0.5, delta: Share = 0.35) -> None:
        del model  # the rule needs nothing from it
        self.lam, self.delta = lam, delta

    def __str__(self) -> str:
        return f"csd(lambda={self.lam:g}, delta={self.delta:g})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)  # [..., 1]
        drafted = torch.ones_like(p) if q is None else q
        # TV(p, q) [..., 1]; [..., V] of a drafter that says x alone
        away = 1 - p if q is None else (p - q).clamp_min(0.0).sum(-1, keepdim=True)
        eps = torch.where(away < self.delta, self.lam * entropy, 0.0)
        return torch.minimum(drafted, p + eps * drafted)
