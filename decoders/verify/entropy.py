"""The acceptance rule of entropy-informed decoding (2510.09012), decoders.md (x):

    accept where min(1, p/q) > (0.5 + (r - 0.5) c) s,  s = H(p) / 8,  c = 1 - H(p) / 16,  r uniform

so a(x) = clip((min(1, p/q) / s - 0.5) / c + 0.5, 0, 1), H in nats. The paper prints c = 1 - 16 H,
with which a is near 0.5 whatever the ratio: read as a slip. The rule was not released, and neither
paper nor code has a correction for it: this is lemma R's. `scale_only`: c = 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.verify.corrected import Corrected


class Entropy(Corrected):
    """scale_only: the paper's ablation, c = 1."""

    def __init__(self, model: Any = None, scale_only: bool = False) -> None:
        del model  # the rule needs nothing from it
        self.scale_only = scale_only

    def __str__(self) -> str:
        return f"entropy(c={'1' if self.scale_only else '1-H/16'})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)  # [..., 1]
        drafted = torch.ones_like(p) if q is None else q
        rho = (p / drafted.clamp_min(1e-30)).clamp_max(1.0)
        c = 1.0 if self.scale_only else (1 - entropy / 16).clamp_min(1e-6)
        accept = (rho / (entropy / 8).clamp_min(1e-30) - 0.5) / c + 0.5
        return torch.where(p > 0, drafted * accept.clamp(0.0, 1.0), 0.0)
