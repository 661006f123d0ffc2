"""DFlash (2602.06036): one forward of the drafter drafts a block, all codes of it independently."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.models.nets.block import BlockNet
from decoders.propose.drafters.common.block_learner import BlockLearner
from decoders.training.states import transformer_of

Slots = Annotated[int, Within(1, 32)]
Layers = Annotated[int, Within(1, 64)]


def untrained(
    model: ImageModel, block: int, layers: int, reads: Sequence[int] | None, rank: int = 0
) -> BlockNet:
    return BlockNet(transformer_of(model).config, block, layers, reads, rank)


class DFlashLearner(BlockLearner):
    """Trains a DFlash drafter, see `BlockLearner`."""

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
