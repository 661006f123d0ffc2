"""Speculative coupled decoding with Gumbel noise (SCD-GS, 2510.24211, decoders.md (c)).

Every position has one row of Gumbel numbers for the whole image: x = argmax(log r + g), with r the
target's last distribution there, or 1 / V. Two successive drafts are equal with probability at
least (1 - TV) / (1 + TV). The row is independent of all earlier positions and of all uniforms, so x
has the distribution r.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.propose.window import OldWindow, Window


class Gumbel(Window):
    """Exact by lemma J."""

    couples = True

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        return (probs.log() + noise.gumbel(positions, probs.shape[-1])).argmax(-1)
