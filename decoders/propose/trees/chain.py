"""A chain of drafts: the tree of classic speculative decoding (2211.17192)."""

from __future__ import annotations

from typing import Annotated, Any

from decoders.kinds import Within
from decoders.propose.trees.static import Static


class Chain(Static):
    """``depth`` drafts in a row."""

    def __init__(self, model: Any = None, depth: Annotated[int, Within(1, 4096)] = 4) -> None:
        super().__init__(model, [[0] * d for d in range(1, depth + 1)])

    def __str__(self) -> str:
        return f"chain(depth={self.depth})"
