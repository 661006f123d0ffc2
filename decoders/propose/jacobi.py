"""Speculative Jacobi decoding (SJD, 2410.01699, decoders.md (a)): every draft of the window is
redrawn from the target's last distribution at its position, and that distribution is declared.

Where the target has not looked yet a draft is uniform, or, with ``fill="above"``, the code one row
up, in the first row the left neighbour (the paper's vertical repeat). That code is known from
earlier positions, drafts among them, and the point mass at it is declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from decoders.noise import DRAFT_SLOT, sample
from decoders.propose.window import OldWindow, Window, certain, step_uniforms


@dataclass(eq=False, repr=False)
class Jacobi(Window):
    """Exact by lemma J. fill: drafts at positions that the target has not looked at."""

    fill: Literal["uniform", "above"] = "uniform"

    def __post_init__(self, model: Any) -> None:
        super().__post_init__(model)
        self.columns = int(model.target.grid()[1])  # of a row

    def __str__(self) -> str:
        filled = "" if self.fill == "uniform" else f", fill={self.fill}"
        return f"jacobi(window={self.depth + 1}{filled})"

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        u = step_uniforms(noise, positions, DRAFT_SLOT)[..., 0]
        if self.fill == "uniform":
            return sample(probs, u)
        first = probs.argmax(-1)  # a code that may stand there
        codes = sample(torch.where(old.has_probs[..., None], probs, certain(first, probs)), u)
        above = self.above(codes, old, positions)
        may_stand = probs.gather(-1, above[..., None])[..., 0] > 0  # else it is a row's end
        return torch.where(old.has_probs, codes, torch.where(may_stand, above, first))

    def declared(self, probs: Tensor, old: OldWindow, codes: Tensor) -> Tensor:
        if self.fill == "uniform":
            return probs
        return torch.where(old.has_probs[..., None], probs, certain(codes, probs))

    def above(self, codes: Tensor, old: OldWindow, positions: Tensor) -> Tensor:
        """The codes one row up, in the first row to the left, of positions [B, W], with codes [B,
        W] in the window; where such a code is a fill too, the one that it is a copy of."""
        width = codes.shape[1]
        inside = torch.arange(width, device=codes.device)
        back = torch.where(positions < self.columns, 1, self.columns)
        source = torch.where(old.has_probs, inside, inside - back)  # in the window; below 0: before
        for _ in range(width.bit_length()):
            source = torch.where(source < 0, source, source.gather(1, source.clamp_min(0)))
        before = (positions[:, :1] + source).clamp(0, old.image.shape[1] - 1)
        committed = old.image.gather(1, before)
        return torch.where(source < 0, committed, codes.gather(1, source.clamp_min(0)))
