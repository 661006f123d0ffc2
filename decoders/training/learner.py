"""What the trainer asks of a drafter: drafts along known codes, differentiable, and a way to save.

A drafter class ``package.module.Name`` is trained through ``package.module.NameLearner`` (or the
dotted path given as ``learner=``), built as ``NameLearner(model, **options)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from decoders.training.states import States


@dataclass(frozen=True)
class Drafted:
    """What was drafted at one depth for all R rows.

    Logits are ``head.logits(hidden)``; ``head.barred``: where codes may not stand, as of a target.
    """

    places: Tensor  # [m] int64, the places of the codes that are predicted
    hidden: Tensor  # [R, m, D]
    head: Any
    features: bool = False  # whether `hidden` predicts the target's states, so that they compare


class Learner(Protocol):
    """A drafter in training. ``net`` is in float32; the trainer moves it and sets autocast."""

    net: nn.Module

    def draft(
        self, states: States, roots: Tensor, depth: int, noise: Tensor | None = None
    ) -> list[Drafted]:
        """Drafts for depths 1..depth along the true codes, as decoding would: a draft at depth d
        from root r (the place of the last committed code) sees true states up to r only.

        roots [m] int64, below L - depth; they hold for depth 2 and deeper. Depth 1, which costs
        little to have everywhere, predicts the places 1..L-1. noise: added to the states that the
        drafter reads, their shape.
        """
        ...

    def save(self, folder: Path) -> str:
        """Writes what ``drafter.checkpoint=folder`` loads; returns the SHA-256 of the weights."""
        ...
