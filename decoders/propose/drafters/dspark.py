"""DSpark (2607.05147): DFlash's block with a low-rank Markov head, by which a draft
depends on the one before it, and a head that says how sure a draft is to be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.propose.drafters.common.block import Block, Layers, Slots, untrained
from decoders.propose.drafters.common.block_learner import BlockLearner

Rank = Annotated[int, Within(1, 4096)]


class DSpark(Block):
    """The drafter as a part. rank: of the Markov head; the others as of `dflash.DFlash`."""

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: Slots = 6,
        layers: Layers = 2,
        reads: Sequence[int] | None = None,
        rank: Rank = 48,
    ) -> None:
        super().__init__(model, checkpoint, block=block, layers=layers, reads=reads, rank=rank)

    def __str__(self) -> str:
        return f"dspark(block={self.net.depth})"


class DSparkLearner(BlockLearner):
    """Trains it, see `BlockLearner`."""

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: Slots = 6,
        layers: Layers = 2,
        reads: Sequence[int] | None = None,
        rank: Rank = 48,
    ) -> None:
        self.untrained = partial(untrained, block=block, layers=layers, reads=reads, rank=rank)
        super().__init__(model, checkpoint)
