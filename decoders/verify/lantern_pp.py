"""LANTERN++ (2502.06352): the bound is proportional to the draft's own probability.

The neighbour mass is at most (lambda - 1) p(x), so p_A(x) <= lambda p(x).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from decoders.api import DecoderError
from decoders.capability import Capability
from decoders.distribution import pick
from decoders.verify.relaxed import RelaxedRule


class LanternPP(RelaxedRule):
    """k nearest neighbours, lambda >= 1 (`lam` in YAML, as lambda is a Python keyword)."""

    known: ClassVar = {Capability.LANTERN_PP: ("test", "greedy", "bound_of", "at")}

    def __init__(
        self,
        model: Any,
        k: int = 10,
        lam: float = 5.0,
        residual: str = "paper",
        metric: str = "tokenizer",
    ) -> None:
        if not lam >= 1:
            raise DecoderError(
                f"acceptance.lam (lambda) must be >= 1, found {lam}; 1 is the exact rule"
            )
        super().__init__(model, k, residual, metric)
        self.lam = float(lam)

    def __str__(self) -> str:
        return f"lantern_pp(k={self.k}, lambda={self.lam:g}, residual={self.residual})"

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        return (self.lam - 1) * pick(p, x)
