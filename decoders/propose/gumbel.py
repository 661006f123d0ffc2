"""Speculative coupled decoding with Gumbel noise (SCD-GS, 2510.24211, decoders.md (c)).

Every place has one row of Gumbel numbers for the whole image: x = argmax(log r + g), with r the
target's last law there, or the initial one. Two successive drafts are equal with probability at
least (1 - TV) / (1 + TV). The row is independent of all earlier places, so x has the law r. The
rows are the target's own (`decoders.verify.gumbel`); the exact rule draws its corrections with
uniforms, so the drafts suit both.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.propose.window import Left, Window
from decoders.verify.gumbel import drawn


class Gumbel(Window):
    """Exact with any `init`."""

    couples = True

    def draw(self, law: Tensor, left: Left, noise: Any, places: Tensor) -> Tensor:
        return drawn(law, noise.gumbel(places, law.shape[-1]))
