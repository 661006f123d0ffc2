"""Drafts from the law one row up (Hawk, 2510.25739, decoders.md (k)), without training.

The target's own law at the place one row up costs one head: its state is kept from when that place
was decided. So q(n) = p(n - row), read after the codes before that place; in the first row the
newest known law. It depends on committed codes alone, and suits every tree and every verifier. All
drafts of a level have one law, as in Hawk's pool. Hawk draws from several laws side by side; a node
here has one, so `EagleVertical` mixes them: q = (1 - share) q_EAGLE + share p(n - row).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DraftSession, ImageModel
from decoders.distribution import code_logits
from decoders.kinds import Within
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.drafters.shared import NetDrafter, Session

Part = Annotated[float, Within(0, 1, above=True, below=True)]


class VerticalSession(Session):
    """The target's states of the last row and step, [R, row + T, D], by place."""

    def allocate(self, like: Tensor, nodes: int) -> None:
        self.row = self.target.grid()[1]
        self.states = like.new_zeros(len(like), self.row + self.max_new, like.shape[-1])
        self.place = torch.zeros_like(self.root_code)[:, None]  # [B, 1], of the next code

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        self.root(codes, count)
        self.place.copy_((start + count)[:, None])
        span = torch.arange(codes.shape[1], device=codes.device)
        self.states.scatter_(1, self.slots(start[:, None] + span), hidden)
        return self.logits(0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del nodes, parents  # the depth says the place
        return self.logits(depth).expand(-1, codes.shape[1], -1)  # [B, w, V]

    def slots(self, places: Tensor) -> Tensor:
        """Where states of places [B, n] are kept, [R, n, D]."""
        rows, size, width = self.states.shape
        slots = (places % size).repeat(rows // len(places), 1)
        return slots[..., None].expand(-1, -1, width)

    def logits(self, depth: int) -> Tensor:
        """Guided logits [B, 1, V] at `depth` places behind the next one."""
        self.calls += 1
        here, known = self.place + depth, self.place - 1
        above = here - self.row
        above = torch.where(above < 0, known, torch.minimum(above, known))
        return code_logits(self.target, self.states.gather(1, self.slots(above)), self.cfg, here)


class Vertical(NetDrafter):
    """The drafter as a part."""

    opens, label = VerticalSession, "vertical"

    def __init__(self, model: ImageModel) -> None:
        self.model = model


class MixedSession(DraftSession):
    """Two sessions, whose laws are mixed before temperature and filters."""

    def __init__(self, first: Any, second: VerticalSession, share: float) -> None:
        self.first, self.second, self.share = first, second, share

    @property
    def root_code(self) -> Tensor:  # type: ignore[override]
        return self.second.root_code

    @property
    def calls(self) -> int:  # type: ignore[override]
        return int(self.first.calls)

    def advance(self, *given: Any) -> Tensor:
        return self.mixed(self.first.advance(*given), self.second.advance(*given))

    def expand(self, *given: Any) -> Tensor:
        return self.mixed(self.first.expand(*given), self.second.expand(*given))

    def mixed(self, one: Tensor, two: Tensor) -> Tensor:
        """Logits of the mixture, [..., V]."""
        a, b = math.log1p(-self.share), math.log(self.share)
        return torch.logaddexp(one.log_softmax(-1) + a, two.log_softmax(-1) + b)


class EagleVertical(Eagle):
    """share: of the law one row up."""

    def __init__(self, model: ImageModel, checkpoint: str = "eagle", share: Part = 0.25) -> None:
        super().__init__(model, checkpoint)
        self.share, self.above = share, Vertical(model)

    def __str__(self) -> str:
        return f"eagle_vertical(share={self.share:g})"

    def begin(self, *given: Any) -> Any:
        return MixedSession(super().begin(*given), self.above.begin(*given), self.share)
