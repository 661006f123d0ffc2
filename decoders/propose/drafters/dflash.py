"""DFlash (2602.06036): one forward of the drafter drafts a block of codes, each
independent of the drafts before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from decoders.api import ImageModel
from decoders.propose.drafters.common.block import Block, Layers, Slots, untrained
from decoders.propose.drafters.common.block_learner import BlockLearner


class DFlash(Block):
    """The drafter as a part. block: codes that it can draft at once; layers: its own; reads: of the
    target's layers that it is given the values of, None: three; all as in its training."""

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: Slots = 6,
        layers: Layers = 2,
        reads: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model, checkpoint, block=block, layers=layers, reads=reads)

    def __str__(self) -> str:
        return f"dflash(block={self.net.depth})"


class DFlashLearner(BlockLearner):
    """Trains it, see `BlockLearner`."""

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: Slots = 6,
        layers: Layers = 2,
        reads: Sequence[int] | None = None,
    ) -> None:
        self.untrained = partial(untrained, block=block, layers=layers, reads=reads)
        super().__init__(model, checkpoint)
