"""Speculative Jacobi decoding (SJD, 2410.01699, decoders.md (a)): every draft of the window is
redrawn from the target's last law at its place, and that law is declared.

As released, with `decoders.verify.released.BatchLeast`: drafts that a row has accepted, but the
batch has not committed, are kept with the law that they were once drawn from; at that row's first
rejection the draft comes from norm((p - q)+), while p is declared. Both are biased, as the tests
have selected these drafts (lemma J). HB-SJD (2608.18183) is this window in a batch whose rows
advance alone, with new drafts that repeat the code a row back: `init=vertical`, `back`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.noise import DRAFT_SLOT, sample
from decoders.propose.window import Left, Window, fresh_uniforms
from decoders.verify.exact import residual


@dataclass(eq=False, repr=False)
class Jacobi(Window):
    """Exact with any `init`, unless released. The released init is `random`; with it a draft is
    biased from its second law on, as a test with a one-hot q is exact however its draft was
    selected."""

    released: bool = False

    def __str__(self) -> str:
        name = self.called("released" * self.released)
        if self.init == "vertical":
            return f"{name}_vertical(window={self.depth + 1}, back={self.back or 'a row'})"
        return f"{name}(window={self.depth + 1}, init={self.init})"

    def draw(self, law: Tensor, left: Left, noise: Any, places: Tensor) -> Tensor:
        u = fresh_uniforms(noise, places, DRAFT_SLOT)[..., 0]
        if not self.released:
            return sample(law, u)
        missed = (left.drafted & (left.behind == 1))[..., None]  # [B, W, 1]
        law = torch.where(missed, residual(law, left.q, left.codes), law)
        return torch.where(left.waits, left.codes, sample(law, u))

    def declared(self, law: Tensor, left: Left, codes: Tensor) -> Tensor:
        return torch.where(left.waits[..., None], left.q, law) if self.released else law
