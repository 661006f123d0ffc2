"""The target's states, computed in shards of images, used several times and then forgotten.

For the images of LlamaGen-XL's training all states would fill 96 GB. Here only those of one shard
of consecutive images are kept. Its images are gone through `reuse` times in random order, then
comes the next shard. A batch is a function of its step, so a run that resumes computes the shard
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from decoders.cache import Reads
from decoders.kinds import Count, Positive, Within, require
from decoders.models.transformer import Transformer
from decoders.training.sources import Source
from decoders.training.states import States, join, target_states


@dataclass(frozen=True)
class DataConfig:
    """How states are kept. shard: images whose states are kept; reuse: times each is used; chunk:
    images the target runs on at once; drop: share of captions dropped where rows are single."""

    shard: Count = 1024
    reuse: Positive = 4.0
    chunk: Count = 16
    drop: Annotated[float, Within(0, 1, below=True)] = 0.1

    def __post_init__(self) -> None:
        require(self, "data.")


class StateData:
    """States of a source's images, paired or single, in batches. Which captions are dropped follows
    from the index of the image. held_paired: whether held-out states are paired, which they are
    unless decoding does without guidance: their acceptance is that of decoding. reads: see
    `Learner.reads`."""

    def __init__(
        self,
        target: Transformer,
        source: Source,
        paired: bool,
        config: DataConfig,
        batch: int,
        seed: int = 0,
        held_paired: bool = True,
        reads: Reads = (),
    ) -> None:
        self.target, self.source, self.reads = target, source, reads
        self.paired, self.held_paired = paired, held_paired
        self.config, self.batch, self.seed = config, batch, seed
        self.shard = min(config.shard, source.train or config.shard)
        self.steps = max(1, round(self.shard * config.reuse / batch))  # of a shard
        self._number = -1
        self._shard: States | None = None

    def at(self, step: int) -> States:
        """The states of a step's batch."""
        number, turn = divmod(step, self.steps)
        if number != self._number:
            start, every = number * self.shard, self.source.train
            places = range(start, start + self.shard)
            indices = places if every is None else [place % every for place in places]
            self._shard, self._number = self.states("train", indices), number
        generator = torch.Generator().manual_seed(self.seed * 7_919 + number)
        passes = -(-self.steps * self.batch // self.shard)
        order = [torch.randperm(self.shard, generator=generator) for _ in range(passes)]
        assert self._shard is not None
        return self._shard.rows(torch.cat(order)[turn * self.batch :][: self.batch])

    def images(self, steps: int) -> int:
        """How many different images so many steps draw from."""
        count = -(-steps // self.steps) * self.shard
        return count if self.source.train is None else min(count, self.source.train)

    @torch.no_grad()
    def states(self, split: str, indices: Sequence[int]) -> States:
        """The states of some images, on the target's device, computed `chunk` at a time."""
        size = self.config.chunk
        parts = []
        for start in range(0, len(indices), size):
            part = list(indices[start : start + size])
            images = self.source.images(split, part)
            paired = self.paired if split == "train" else self.held_paired
            drop = None if paired else self._dropped(split, part).to(images.codes.device)
            parts.append(target_states(self.target, images, drop, self.reads))
        return join(parts)

    def _dropped(self, split: str, indices: list[int]) -> Tensor:
        """[B] bool; held-out images keep their captions."""
        if split != "train":
            return torch.zeros(len(indices), dtype=torch.bool)
        draws = [
            torch.rand((), generator=torch.Generator().manual_seed(self.seed * 1_000_003 + i))
            for i in indices
        ]
        return torch.stack(draws) < self.config.drop
