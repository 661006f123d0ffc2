"""Speculative Jacobi decoding (SJD, 2410.01699, decoders.md (a)): every draft of the window is
redrawn from the target's last law at its place, and that law is declared."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.noise import DRAFT_SLOT, sample
from decoders.propose.window import OldWindow, Window, fresh_uniforms


class Jacobi(Window):
    """Exact by lemma J."""

    def draw(self, law: Tensor, old: OldWindow, noise: Any, places: Tensor) -> Tensor:
        return sample(law, fresh_uniforms(noise, places, DRAFT_SLOT)[..., 0])
