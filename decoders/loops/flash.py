"""FlashAR (2605.09430): an anti-diagonal of the image in one forward, of a target that was trained
for it (`decoders.models.nets.flash`).

A forward reads the codes of one anti-diagonal. Each code of the next one is drawn from a mixture of
two predictions: that of its left neighbour, and that of the code above it. An image of H x W codes
takes H + W - 2 forwards behind the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.loops.grouped import Grouped, GroupState
from decoders.models.nets.flash import Diagonals


@dataclass(eq=False, repr=False)
class Flash(Grouped):
    """target: which of the model's other targets; "": its own. On a target that is like all others
    it is AR."""

    title = "a loop over anti-diagonals"
    scheduled: ClassVar = Diagonals

    target: str = "flash"

    def __post_init__(self) -> None:
        super().__post_init__()
        schedule: Any = self.schedule
        self.diagonal = isinstance(schedule, Diagonals)
        if self.diagonal:
            wide = schedule.wide
            lanes = [
                [row + [wide] * (wide - len(row)) for row in every]
                for every in schedule.neighbours()
            ]
            self.left, self.above = torch.tensor(lanes, device=self.model.device)  # [T, N] each

    def __str__(self) -> str:
        return f"flash(target={self.target or 'own'})"

    def predicting(self, state: GroupState, hidden: Tensor) -> Tensor:
        """The states of a diagonal's codes [R, N, 2 D] -> those that predict the next diagonal: the
        left neighbour's horizontal half, and the vertical one of the code above."""
        if not self.diagonal:
            return hidden
        halves = F.pad(hidden, (0, 0, 0, 1)).chunk(2, -1)  # [R, N + 1, D] each; the last is zero
        parts = [
            half.index_select(1, table.index_select(0, state.step)[0])
            for half, table in zip(halves, (self.left, self.above), strict=True)
        ]
        return torch.cat(parts, -1)  # [R, N, 2 D]
