"""Lenience (2211.17192, appendix A.5; decoders.md (u)): a(x) = min(1, p(x) / (l q(x))).

A code may come out up to 1 / l times as often as the target says, so one node's law is at most
1 - l away from p. The correction norm((p - q a)+) is norm((p - q)+) here, the exact rule's own.
"""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from decoders.kinds import Within
from decoders.verify.corrected import Corrected, scaled


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
