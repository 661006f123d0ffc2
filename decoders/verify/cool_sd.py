"""COOL-SD (2601.09212): a relaxation that is annealed along the draft, decoders.md (e).

    a_i(x) = min(1, omega_i p(x) / q(x)),  omega_i = delta exp(-nu i) / mean_j exp(-nu j)

for the i-th of L drafts in a row. The paper's correction is norm((p - q a_i)+), the lemma's own. A
node's law is at most 1 - 1 / omega_i away from p, and exact where omega_i <= 1.

Lenience (2211.17192, appendix A.5; decoders.md (u)) has one omega = 1 / l for all depths.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import Draft
from decoders.kinds import NotNegative, Positive, Within
from decoders.verify.corrected import Corrected, scaled


class CoolSD(Corrected):
    """delta: mean of omega. decay: how fast it falls with the depth (nu; 0: it does not)."""

    def __init__(
        self,
        model: Any = None,
        delta: Positive = 1.1,
        decay: Annotated[NotNegative, Within(most=100)] = 0.7,
    ) -> None:
        del model  # the rule needs nothing from it
        self.delta, self.decay = delta, decay
        self.omega: Tensor | float = delta  # of a draft of one level

    def __str__(self) -> str:
        return f"cool_sd(delta={self.delta:g}, decay={self.decay:g})"

    def at(self, draft: Draft, place: Tensor) -> CoolSD:
        """The rule of this draft: children of a node at depth d are drafts of level d + 1."""
        del place
        rule = type(self)(None, self.delta, self.decay)  # no copy(): torch 2.11 cannot trace it
        weights = [math.exp(-self.decay * i) for i in range(draft.levels)]
        first = self.delta * draft.levels / sum(weights)  # omega_1, so that their mean is delta
        rule.omega = (first * torch.exp(-self.decay * draft.depth))[..., None]  # [B, N + 1, 1]
        return rule

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return scaled(p, q, self.omega)


class Lenience(Corrected):
    """l in (0, 1] (`lenience` in YAML); 1 is the exact rule."""

    def __init__(
        self, model: Any = None, lenience: Annotated[float, Within(0, 1, above=True)] = 0.5
    ) -> None:
        del model  # the rule needs nothing from it
        self.omega = 1.0 / lenience

    def __str__(self) -> str:
        return f"lenience(l={1 / self.omega:g})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return scaled(p, q, self.omega)
