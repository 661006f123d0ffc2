"""SJD++ (2512.07503, decoders.md (y)): a draft behind the first rejection stays where the target's
new distribution is high against its old one, and is redrawn elsewhere.

    x' = x if p(x) / q(x) > tau else x' ~ p

So a draft x ~ q becomes x' ~ q 1[A] + q(A^c) p, A = {p > tau q}. That distribution is declared,
which makes the decoder exact (lemma J); the paper declares p, which is biased. There is no released
code. tau is that of two re-implementations, which agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.distribution import pick
from decoders.kinds import NotNegative
from decoders.noise import DRAFT_SLOT, sample
from decoders.propose.window import OldWindow, Window, step_uniforms


@dataclass(eq=False, repr=False)
class Plus(Window):
    """tau: the ratio from which a draft stays."""

    couples = True
    tau: NotNegative = 0.5

    def __str__(self) -> str:
        return f"plus(window={self.depth + 1}, tau={self.tau:g})"

    def stays(self, probs: Tensor, old: OldWindow) -> Tensor:
        """Codes that would stay where they are drafted, [B, W, V] bool."""
        return old.drafted[..., None] & (probs > self.tau * old.q)

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        new = sample(probs, step_uniforms(noise, positions, DRAFT_SLOT)[..., 0])
        return torch.where(pick(self.stays(probs, old), old.codes), old.codes, new)

    def declared(self, probs: Tensor, old: OldWindow, codes: Tensor) -> Tensor:
        staying = torch.where(self.stays(probs, old), old.q, 0.0)  # [B, W, V]
        leaving = (old.q - staying).sum(-1, keepdim=True)
        return torch.where(old.drafted[..., None], staying + leaving * probs, probs)
