"""The acceptance rule of entropy-informed decoding (2510.09012), decoders.md (x):

    accept where min(1, p/q) > (0.5 + (r - 0.5) c) s,  s = H(p) / 8,  c = 1 - H(p) / 16,  r uniform

so a(x) = clip((min(1, p/q) / s - 0.5) / c + 0.5, 0, 1), H in nats. The paper prints c = 1 - 16 H,
with which a is near 0.5 whatever the ratio: read as a slip. The rule was not released, and neither
paper nor code has a correction for it: this is lemma R's. `scale_only`: c = 1.

The paper's sampler is another thing: it changes the target. Where the law is sharp it is sampled at
a higher temperature, where it is flat at a lower one,

    T = T0 exp(-H(p) / alpha) + theta,

H after top-k and top-p, as in the released code. `truncated` gives that law, which
`decoders.loops.truncated` samples from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.kinds import NotNegative, Positive
from decoders.verify.corrected import Corrected


def entropy_of(p: Tensor) -> Tensor:
    """H [..., 1] of p [..., V] in nats."""
    return -torch.xlogy(p, p).sum(-1, keepdim=True)


class Entropy(Corrected):
    """scale_only: the paper's ablation, c = 1. t0, alpha, theta: of the sampler; the paper has
    (2.5, 3, 0.6) for LlamaGen and (2, 2.5, 0.6) for Lumina-mGPT."""

    def __init__(
        self,
        model: Any = None,
        scale_only: bool = False,
        t0: NotNegative = 2.5,
        alpha: Positive = 3.0,
        theta: Positive = 0.6,
    ) -> None:
        del model  # the rule needs nothing from it
        self.scale_only = scale_only
        self.t0, self.alpha, self.theta = t0, alpha, theta

    def __str__(self) -> str:
        return f"entropy(c={'1' if self.scale_only else '1-H/16'})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        entropy = entropy_of(p)
        drafted = torch.ones_like(p) if q is None else q
        rho = (p / drafted.clamp_min(1e-30)).clamp_max(1.0)
        c = 1.0 if self.scale_only else (1 - entropy / 16).clamp_min(1e-6)
        accept = (rho / (entropy / 8).clamp_min(1e-30) - 0.5) / c + 0.5
        return torch.where(p > 0, drafted * accept.clamp(0.0, 1.0), 0.0)

    def truncated(self, p: Tensor) -> Tensor:
        """The law that the sampler draws from, [..., V]; see `decoders.api.AcceptRule`."""
        temperature = self.t0 * torch.exp(-entropy_of(p) / self.alpha) + self.theta
        return (p.log() / temperature).softmax(-1)
