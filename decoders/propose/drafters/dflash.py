"""DFlash (2602.06036): one forward of the drafter drafts a block of codes, each
independent of the drafts before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.models.nets.block import BlockNet
from decoders.models.nets.transformer import transformer_of
from decoders.propose.drafters.common.block import Block
from decoders.propose.drafters.common.block_learner import BlockLearner

Slots = Annotated[int, Within(1, 64)]
Layers = Annotated[int, Within(1, 64)]


class Settings:
    """What drafter and learner share. block: codes that it can draft at once; layers: its own;
    reads: of the target's layers that it is given the values of, None: three. All as in its
    training. rank: of the Markov head, 0: none."""

    rank = 0

    def __init__(
        self,
        model: ImageModel,
        checkpoint: str | None = None,
        block: Slots = 6,
        layers: Layers = 2,
        reads: Sequence[int] | None = None,
    ) -> None:
        self.block, self.layers, self.read_layers = block, layers, reads
        super().__init__(model, checkpoint)  # type: ignore[call-arg]

    def untrained(self, model: ImageModel) -> BlockNet:
        """A net for the model's target, float32."""
        config = transformer_of(model).config
        return BlockNet(config, self.block, self.layers, self.read_layers, self.rank)


class DFlash(Settings, Block):
    """Drafts of a block are independent of each other."""


class DFlashLearner(Settings, BlockLearner):
    """Trains a `DFlash`."""
