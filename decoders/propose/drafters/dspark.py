"""DSpark (2607.05147): DFlash's block, with a low-rank Markov head and a confidence head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from decoders.api import ImageModel
from decoders.kinds import Within
from decoders.propose.drafters.common.block_learner import BlockLearner
from decoders.propose.drafters.dflash import Layers, Slots, untrained

Rank = Annotated[int, Within(1, 4096)]


class DSparkLearner(BlockLearner):
    """Trains a DSpark drafter, see `BlockLearner`."""

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
