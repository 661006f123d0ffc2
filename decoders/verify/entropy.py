"""Rules that look at the target's entropy H, in nats (decoders.md). Papers without a correction of
their own have lemma R's here.

* `Typical` (Medusa, 2401.10774; (g)): a(x) = [p(x) > min(eps, alpha exp(-H))]. Medusa commits
  nothing else than such drafts and the root's own code: `decoders.verify.released.Medusa`.
* `Csd` (2606.27829; (w)): a(x) = min(1, p(x) / q(x) + eps), eps = lambda H where TV(p, q) < delta,
  else 0. At lambda 0.5 every place with H >= 2 and TV(p, q) < delta accepts everything; `lam: 1e9`
  is that ablation (eps = inf) for all places. A node's law is sum_{q > p} min(q - p, eps q) away
  from p, so less than delta. The paper's correction is the lemma's own.
* `Entropy` (2510.09012; (x)): accepts where min(1, p/q) > (0.5 + (r - 0.5) c) s, s = H / 8,
  c = 1 - H / 16, r uniform; so a(x) = clip((min(1, p/q) / s - 0.5) / c + 0.5, 0, 1). The paper
  prints c = 1 - 16 H, with which a is near 0.5 whatever the ratio: read as a slip. Its sampler
  changes the target: T = T0 exp(-H / alpha) + theta, H after top-k and top-p, as in the released
  code. `truncated` gives that law, which `decoders.loops.truncated` samples from.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.distribution import normalised
from decoders.kinds import NotNegative, Positive, Share
from decoders.verify.corrected import Corrected, Passing, Residual


def entropy_of(p: Tensor) -> Tensor:
    """H [..., 1] of p [..., V] in nats."""
    return -torch.xlogy(p, p).sum(-1, keepdim=True)


def drafted_by(p: Tensor, q: Tensor | None) -> Tensor:
    """q, or with a deterministic draft 1 at every code, [..., V]."""
    return torch.ones_like(p) if q is None else q


@dataclass(eq=False, repr=False)
class Typical(Passing):
    """eps: a draft of this probability always passes; alpha: share of exp(-H) from which it does
    (`posterior_threshold` and `posterior_alpha` in Medusa)."""

    model: InitVar[Any] = None
    eps: Share = 0.09
    alpha: Positive = 0.3
    residual: Residual = "lemma"

    def __str__(self) -> str:
        return f"typical(eps={self.eps:g}, alpha={self.alpha:g}, residual={self.residual})"

    def passes(self, p: Tensor) -> Tensor:
        return p > (self.alpha * torch.exp(-entropy_of(p))).clamp_max(self.eps)

    def corrected(self, p: Tensor, q: Tensor | None, mass: Tensor, x: Tensor) -> Tensor:
        return p if self.residual == "paper" else super().corrected(p, q, mass, x)

    def truncated(self, p: Tensor) -> Tensor:
        """The target cut to what passes, [..., V]: what a truncating rule is to be compared with
        (2607.26627). p itself where nothing passes."""
        return normalised(torch.where(self.passes(p), p, 0.0), p)


@dataclass(eq=False, repr=False)
class Csd(Corrected):
    """lam: lambda. delta: TV(p, q) from which on the exact rule decides."""

    beyond_support = True  # a draft with p(x) = 0 is accepted with probability eps

    model: InitVar[Any] = None
    lam: NotNegative = 0.5
    delta: Share = 0.35

    def __str__(self) -> str:
        return f"csd(lambda={self.lam:g}, delta={self.delta:g})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        drafted = drafted_by(p, q)
        # TV(p, q) [..., 1]; [..., V] of a drafter that says x alone
        away = 1 - p if q is None else (p - q).clamp_min(0.0).sum(-1, keepdim=True)
        eps = torch.where(away < self.delta, self.lam * entropy_of(p), 0.0)
        return torch.minimum(drafted, p + eps * drafted)


@dataclass(eq=False, repr=False)
class Entropy(Corrected):
    """scale_only: the paper's ablation, c = 1. t0, alpha, theta: of the sampler; the paper has
    (2.5, 3, 0.6) for LlamaGen and (2, 2.5, 0.6) for Lumina-mGPT."""

    model: InitVar[Any] = None
    scale_only: bool = False
    t0: NotNegative = 2.5
    alpha: Positive = 3.0
    theta: Positive = 0.6

    def __str__(self) -> str:
        return f"entropy(c={'1' if self.scale_only else '1-H/16'})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        entropy, drafted = entropy_of(p), drafted_by(p, q)
        rho = (p / drafted.clamp_min(1e-30)).clamp_max(1.0)
        c = 1.0 if self.scale_only else (1 - entropy / 16).clamp_min(1e-6)
        accept = (rho / (entropy / 8).clamp_min(1e-30) - 0.5) / c + 0.5
        return torch.where(p > 0, drafted * accept.clamp(0.0, 1.0), 0.0)

    def truncated(self, p: Tensor) -> Tensor:
        """The law that the sampler draws from, [..., V]; see `decoders.api.AcceptRule`."""
        temperature = self.t0 * torch.exp(-entropy_of(p) / self.alpha) + self.theta
        return (p.log() / temperature).softmax(-1)
