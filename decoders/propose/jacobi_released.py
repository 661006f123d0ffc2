"""SJD as released (decoders.md (a)): with several rows, drafts that were accepted but not committed
are kept, with the law that they were once drawn from. Biased; a batch of one is plain SJD.

They wait where `decoders.verify.batch_least` commits the least of the batch; with another verifier
nothing ever waits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import Seen, Start
from decoders.kinds import Within
from decoders.noise import OVERRUN
from decoders.propose.jacobi import Jacobi
from decoders.propose.window import Left, WindowSession


@dataclass(frozen=True)
class Waiting(Left):
    """waits [B, W] bool: whether the old draft was accepted, and not committed."""

    waits: Tensor


class JacobiReleased(Jacobi):
    """window, init: as of `Jacobi`. With the released init, `random`, a draft is biased from its
    second law on: a test with a one-hot q is exact however its draft was selected."""

    def __init__(
        self, model: Any, window: Annotated[int, Within(2, OVERRUN)] = 16, init: str = "uniform"
    ) -> None:
        super().__init__(model, window, init)

    def __str__(self) -> str:
        return f"jacobi_released(window={self.depth + 1}, init={self.init})"

    def begin(self, start: Start) -> WindowSession:
        return ReleasedSession(self, start)

    def draw(self, law: Tensor, left: Left, noise: Any, places: Tensor) -> Tensor:
        drawn = super().draw(law, left, noise, places)
        return torch.where(left.waits, left.codes, drawn) if isinstance(left, Waiting) else drawn

    def declared(self, law: Tensor, left: Left, codes: Tensor) -> Tensor:
        if not isinstance(left, Waiting):
            return law
        return torch.where(left.waits[..., None], left.q, law)


class ReleasedSession(WindowSession):
    def left(self, seen: Seen) -> Left:
        """With what waits: of a chain's node the number is its depth, so the path's last node says
        how many drafts were accepted. The draft of level i stood at depth count + 1 + i."""
        found = super().left(seen)
        assert seen.nodes is not None
        stood = seen.count[:, None] + 1 + self.span  # [B, W]
        waits = found.drafted & (stood <= seen.nodes[:, -1:])
        known = {each.name: getattr(found, each.name) for each in fields(found)}
        return Waiting(**known, waits=waits)
