"""The released walk of SJD-PAC (decoders.md (d)): siblings share one uniform, and of all paths that
are accepted whole the longest is taken. Biased: the choice looks at the outcome of later tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from decoders.api import Draft, Law
from decoders.verify.by_node import ByNode
from decoders.verify.children import Path
from decoders.verify.exact import Exact


class LongestPath(ByNode):
    """shared: one uniform for all children of a node."""

    def __init__(self, model: Any = None, shared: bool = True) -> None:
        super().__init__(Exact(model))
        self.shared = shared

    def __str__(self) -> str:
        return "exact, longest path" + ", shared uniform" * self.shared

    def tests(self, noise: Any, places: Tensor, count: int) -> Tensor:
        u = super().tests(noise, places, count)
        return u[..., :1].expand_as(u) if self.shared else u

    def path(self, law: Law, draft: Draft, accepted: Tensor) -> Path:
        return super().path(replace(law, greedy=True), draft, accepted)
