"""DSpark (2607.05147): DFlash's block with a low-rank Markov head, by which a draft
depends on the one before it, and a head that says how sure a draft is to be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.models.nets.block import BlockNet
from decoders.models.nets.transformer import transformer_of
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

    def untrained(self, model: ImageModel) -> BlockNet:
        """A net for the model's target, float32."""
        config = transformer_of(model).config
        return BlockNet(config, self.block, self.layers, self.read_layers, self.rank)


class DSpark(Settings, Block):
    """The drafter as a part, see `Settings`."""

    def __str__(self) -> str:
        return f"dspark(block={self.net.depth})"


class DSparkLearner(Settings, BlockLearner):
    """Trains it, see `BlockLearner`."""
