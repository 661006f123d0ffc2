"""LANTERN within the target's support: a draft with p(x) = 0 borrows nothing (decoders.md, lemma
S).

Published LANTERN commits codes that top-k or top-p ruled out, where their neighbours have mass.
LANTERN++ cannot: its bound is (lambda - 1) p(x), so it needs no such variant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.distribution import pick
from decoders.verify.lantern import Lantern


class LanternWithin(Lantern):
    """Lantern, but nucleus-safe."""

    beyond_support = False

    def __str__(self) -> str:
        return super().__str__().replace("lantern(", "lantern_within(")

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.where(pick(p, x) > 0, super().bound_of(p, x), 0.0)
