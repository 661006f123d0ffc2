"""The target's states in a bounded ring of shards, so that they are computed once, used several
times and never all kept.

For the images of LlamaGen-XL's training the states would fill 96 GB. Here shard k holds the states
of `shard` consecutive images of the source; while it is the newest, steps draw their batches at
random from the last `ring` shards, so that every image is used about `reuse` times. Which shards
are live and which images a step draws is a function of the step alone: a run that resumes computes
the live shards again. Of several processes each has a ring over images of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.cache import Reads
from decoders.kinds import Count, Positive, Within, require
from decoders.models.transformer import Transformer
from decoders.training.processes import World
from decoders.training.sources import Source
from decoders.training.states import States, join, pack, target_states, unpack


@dataclass(frozen=True)
class DataConfig:
    """How states are kept. chunk: images the target runs on at once. drop: share of captions
    dropped where rows are single."""

    shard: Count = 64
    ring: Count = 16
    reuse: Positive = 4.0
    chunk: Count = 16
    drop: Annotated[float, Within(0, 1, below=True)] = 0.1

    def __post_init__(self) -> None:
        require(self, "data.", DecoderError)


class StateMaker:
    """Images of a source -> states, paired or single; which captions are dropped follows from the
    index of the image. Held-out states are paired unless decoding does without guidance: their
    acceptance is that of decoding, whatever the loss compares."""

    def __init__(
        self,
        target: Transformer,
        source: Source,
        paired: bool,
        config: DataConfig,
        seed: int = 0,
        held_paired: bool = True,
        reads: Reads = (),
    ) -> None:
        self.target, self.source, self.reads = target, source, reads
        self.paired, self.held_paired = paired, held_paired
        self.config, self.seed = config, seed

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


class Ring:
    """States by step, and those that no step sees. batch: images of a step, of all processes; the
    attribute is how many of them are this process's."""

    def __init__(
        self, maker: StateMaker, batch: int, seed: int = 0, world: World | None = None
    ) -> None:
        self.maker, self.config, self.seed = maker, maker.config, seed
        self.world, size = world or World(), maker.config.shard
        self.batch = batch // self.world.size
        if self.batch * self.world.size != batch or not batch:
            raise DecoderError(
                f"train.batch={batch} is not a whole number of images for each of "
                f"{self.world.size} processes"
            )
        count = maker.source.train
        self.shards = None if count is None else count // (size * self.world.size)
        if self.shards == 0:
            raise DecoderError(
                f"data.shard={size} images for each of {self.world.size} processes, but the source "
                f"has {count} to train on"
            )
        self.steps = max(1, round(size * self.config.reuse / self.batch))  # a new shard every
        self._kept: dict[int, dict[str, Tensor]] = {}  # what `pack` made, by a shard's number

    @property
    def valid(self) -> int | None:
        """How many images are held out; None: as many as one likes."""
        return self.maker.source.valid

    def at(self, step: int, first: int, count: int) -> States:
        """The states of images first..first+count-1 of this process's batch of a step."""
        live, size = self.prepare(step), self.config.shard
        generator = torch.Generator().manual_seed(self.seed * 7_919 + step)
        count_live = len(live) * size
        rounds = -(-self.batch // count_live)  # no image twice where there are enough
        order = torch.cat([torch.randperm(count_live, generator=generator) for _ in range(rounds)])
        picks = order[: self.batch][first : first + count].tolist()
        rows = [(self._kept[live[p // size]], p % size) for p in picks]
        return unpack({k: torch.stack([kept[k][row] for kept, row in rows]) for k in rows[0][0]})

    def held_out(self, first: int, count: int) -> States:
        """The states of held-out images, with their captions."""
        return self.maker.states("valid", range(first, first + count))

    def live(self, step: int) -> list[int]:
        """Numbers of the shards that a step draws from, oldest first."""
        newest = self._newest(step)
        numbers = range(max(0, newest - self.config.ring + 1), newest + 1)
        if self.shards is None:
            return list(numbers)
        return list(dict.fromkeys(n % self.shards for n in numbers))

    def _newest(self, step: int) -> int:
        """The number of the newest shard. While the ring fills, shards come the faster the fewer
        there are, so that the first images are used no more often than the others."""
        ring, every = self.config.ring, self.steps
        full = every * (ring + 1) // 2  # the step at which shard number `ring` comes
        if step >= full:
            return ring + (step - full) // every
        return max(n for n in range(ring) if every * n * (n + 1) // (2 * ring) <= step)

    def seen(self, steps: int) -> int:
        """How many different images so many steps have drawn from, at most."""
        shards = self._newest(max(0, steps - 1)) + 1
        shards = shards if self.shards is None else min(shards, self.shards)
        return self.config.shard * self.world.size * shards

    @torch.no_grad()
    def prepare(self, step: int) -> list[int]:
        """Computes the shards that a step needs and forgets the old; returns which are `live`."""
        live, size = self.live(step), self.config.shard
        self._kept = {number: kept for number, kept in self._kept.items() if number in live}
        for number in live:
            if number not in self._kept:
                first = (number * self.world.size + self.world.rank) * size
                self._kept[number] = pack(self.maker.states("train", range(first, first + size)))
        return live
