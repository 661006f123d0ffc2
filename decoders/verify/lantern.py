"""LANTERN (2410.03355): the neighbour mass moved onto a draft is at most delta, so TV(p, p_A) <=
delta."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.capability import Capability
from decoders.verify.relaxed import RelaxedRule


class Lantern(RelaxedRule):
    """k nearest neighbours, bound delta in [0, 1]. delta 0 moves only codes of probability zero."""

    beyond_support = True  # neighbours may carry a code that the target rules out
    known: ClassVar = {Capability.LANTERN: ("test", "greedy", "bound_of", "at")}

    def __init__(
        self,
        model: Any,
        k: int = 100,
        delta: float = 0.2,
        residual: str = "paper",
        metric: str = "tokenizer",
    ) -> None:
        if not 0 <= delta <= 1:
            raise DecoderError(
                f"acceptance.delta is a total-variation bound in [0, 1], found {delta}; "
                "the released code reads delta > 1 as lambda: use acceptance=lantern_pp"
            )
        super().__init__(model, k, residual, metric)
        self.delta = float(delta)

    def __str__(self) -> str:
        return f"lantern(k={self.k}, delta={self.delta:g}, residual={self.residual})"

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.full(x.shape, self.delta, dtype=p.dtype, device=p.device)
