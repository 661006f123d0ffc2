"""Speculative Jacobi decoding (SJD, 2410.01699, decoders.md (a)): every draft of the window is
redrawn from the target's last distribution at its position, and that distribution is declared."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.noise import DRAFT_SLOT, sample
from decoders.propose.window import OldWindow, Window, step_uniforms


class Jacobi(Window):
    """Exact by lemma J."""

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        return sample(probs, step_uniforms(noise, positions, DRAFT_SLOT)[..., 0])
