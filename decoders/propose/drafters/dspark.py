"""DSpark (2607.05147): DFlash's block with a low-rank Markov head, by which a draft
depends on the one before it, and a head that says how sure a draft is to be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.propose.drafters import dflash
from decoders.propose.drafters.common.block import Block
from decoders.propose.drafters.common.block_learner import BlockLearner

Rank = Annotated[int, Within(1, 4096)]


class Settings(dflash.Settings):
    """rank: of the Markov head; the others as of `dflash.Settings`."""

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: dflash.Slots = 6,
        layers: dflash.Layers = 2,
        reads: Sequence[int] | None = None,
        rank: Rank = 48,
    ) -> None:
        self.rank = rank
        super().__init__(model, checkpoint, block, layers, reads)


class DSpark(Settings, Block):
    """A draft depends on the one before it."""


class DSparkLearner(Settings, BlockLearner):
    """Trains a `DSpark`."""
