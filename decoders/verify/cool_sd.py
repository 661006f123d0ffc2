"""COOL-SD (2601.09212): a relaxation that is annealed along the draft, decoders.md (e).

    a_i(x) = min(1, omega_i p(x) / q(x)),  omega_i = delta exp(-nu i) / mean_j exp(-nu j)

for the i-th of L drafts in a row. The paper's correction is norm((p - q a_i)+), the lemma's own. A
node's distribution is at most 1 - 1 / omega_i away from p, and exact where omega_i <= 1.

Lenience (2211.17192, appendix A.5; decoders.md (u)) has one omega = 1 / l for all depths.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import Draft
from decoders.distribution import setting
from decoders.kinds import NotNegative, Positive, Within
from decoders.verify.corrected import Corrected, scaled


class Scaled(Corrected):
    """a(x) = min(1, omega p(x) / q(x)); omega broadcasts over distributions."""

    omega: Tensor

    def __init__(self, omega: Tensor) -> None:
        self.omega = omega

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return scaled(p, q, self.omega)


class CoolSD(Scaled):
    """delta: mean of omega. decay: how fast it falls with the depth (nu; 0: it does not). Without a
    draft (`at`) it judges as on a single level."""

    def __init__(
        self,
        model: Any = None,
        delta: Positive = 1.1,
        decay: Annotated[NotNegative, Within(most=100)] = 0.7,
    ) -> None:
        super().__init__(setting(delta, model))
        self.delta, self.decay = delta, decay
        self.nu = setting(decay, model)

    def __str__(self) -> str:
        return f"cool_sd(delta={self.delta:g}, decay={self.decay:g})"

    def at(self, draft: Draft, position: Tensor) -> Scaled:
        """The rule of this draft: children of a node at depth d are drafts of level d + 1."""
        del position
        levels = torch.arange(draft.levels, device=draft.depth.device)
        share = torch.exp(-self.nu * draft.depth) / torch.exp(-self.nu * levels).mean()
        return Scaled((self.omega * share).float()[..., None])  # [B, N + 1, 1]


class Lenience(Scaled):
    """l in (0, 1] (`lenience` in YAML); 1 is the exact rule."""

    def __init__(
        self, model: Any = None, lenience: Annotated[float, Within(0, 1, above=True)] = 0.5
    ) -> None:
        super().__init__(setting(1.0 / lenience, model))
        self.lenience = lenience

    def __str__(self) -> str:
        return f"lenience(l={self.lenience:g})"
