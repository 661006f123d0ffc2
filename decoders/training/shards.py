"""The target's states in shards: a bounded ring, so that they are computed once, used several times
and never all kept.

For the images of LlamaGen-XL's training the states would fill 96 GB. Here shard k holds the states
of `shard` consecutive images of the source; while it is the newest, steps draw their batches at
random from the last `ring` shards, so that every image is used about `reuse` times. Which shards
are live and which images a step draws is a function of the step alone: a run that resumes computes
the live shards again, or finds them on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.cache import Reads
from decoders.kinds import Amount, Count, Positive, Within, require
from decoders.models.transformer import Transformer
from decoders.models.weights import read_json, write_tensors
from decoders.training.sources import Source, held_out_split
from decoders.training.states import (
    States,
    differing,
    join,
    pack,
    read_row,
    stack,
    target_states,
    unpack,
)

MANIFEST = "shards.json"
KEPT = {"shard": Count, "paired": bool}  # of the manifest


@dataclass(frozen=True)
class DataConfig:
    """How states are kept.

    shard 0: nothing is stored, the states of a batch are computed when it is needed. folder null:
    the ring is in memory. keep: no shard is ever removed from the folder, and a later run with the
    same settings, or `data=shards`, reads them. chunk: images the target runs on at once. drop:
    share of captions dropped where rows are single.
    """

    shard: Amount = 64
    ring: Count = 16
    reuse: Positive = 4.0
    folder: str | None = None
    keep: bool = False
    chunk: Count = 16
    drop: Annotated[float, Within(0, 1, below=True)] = 0.1

    def __post_init__(self) -> None:
        require(self, "data.", DecoderError)
        if self.keep and self.folder is None:
            raise DecoderError("data.keep=true needs data.folder, where the shards are kept")


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


class Batches:
    """States by step, and those that no step sees: `batch` images a step, the same ones whenever it
    is asked for. valid: how many images are held out; None: as many as one likes."""

    batch: int
    seed: int
    device: torch.device
    valid: int | None

    def prepare(self, step: int) -> None:
        """Computes what has to be there for a step."""

    def at(self, step: int, first: int, count: int) -> States:
        """The states of images first..first+count-1 of the batch of a step. Raises DecoderError
        where a shard cannot be read."""
        raise NotImplementedError("batches say what a step sees")

    def held_out(self, first: int, count: int) -> States:
        """The states of held-out images, with their captions."""
        raise NotImplementedError("batches say what is held out")

    def seen(self, steps: int) -> int:
        """How many different images so many steps have drawn from, at most."""
        raise NotImplementedError("batches say how many images they have drawn")

    def drawn(self, step: int, count: int) -> list[int]:
        """A step's images of `count`, without repetition where there are enough."""
        generator = torch.Generator().manual_seed(self.seed * 7_919 + step)
        rounds = -(-self.batch // count)
        order = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])
        return order[: self.batch].tolist()

    def gathered(self, rows: list[dict[str, Tensor]]) -> States:
        """States of single images, on the target's device."""
        return unpack(stack(rows), self.device)


class Ring(Batches):
    """Shards of the ring are computed by this process, or, where several processes share a folder,
    by whoever's turn it is."""

    def __init__(
        self,
        maker: StateMaker,
        batch: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        config = maker.config
        self.maker, self.config, self.batch, self.seed = maker, config, batch, seed
        self.rank, self.world = rank, world
        self.device, self.valid = maker.target.output.weight.device, maker.source.valid
        self.folder = None if config.folder is None else Path(config.folder)
        count = maker.source.train
        if config.shard and count is not None and count < config.shard:
            raise DecoderError(
                f"data.shard={config.shard} images, but the source has {count} to train on"
            )
        self.shards = None if count is None or not config.shard else count // config.shard
        self.steps = max(1, round(config.shard * config.reuse / batch))  # a new shard every
        self._memory: dict[int, dict[str, Tensor]] = {}
        if self.folder is not None:
            self._claim(self.folder)

    def at(self, step: int, first: int, count: int) -> States:
        if not self.config.shard:
            return self.maker.states("train", self._direct(step)[first : first + count])
        live, size = self.live(step), self.config.shard
        picks = self.drawn(step, len(live) * size)[first : first + count]
        return self.gathered([self._row(live[p // size], p % size) for p in picks])

    def held_out(self, first: int, count: int) -> States:
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
        count = self.maker.source.train
        if not self.config.shard:
            images = steps * self.batch
            return images if count is None else min(images, count)
        shards = self._newest(max(0, steps - 1)) + 1
        return self.config.shard * (shards if self.shards is None else min(shards, self.shards))

    def prepare(self, step: int) -> None:
        """Computes what this process has to of the shards that a step needs, and forgets the
        old."""
        if not self.config.shard:
            return
        live = self.live(step)
        for number in list(self._memory):
            if number not in live:
                del self._memory[number]
        for number in live:
            if not self._there(number) and number % self.world == self.rank:
                self._compute(number)
        if self.folder is not None and not self.config.keep and self.rank == 0:
            for path in self.folder.glob("shard_*.safetensors"):
                if int(path.stem.rpartition("_")[2]) not in live:
                    path.unlink()

    def _direct(self, step: int) -> list[int]:
        """Indices of a step's images where nothing is stored: every image once an epoch."""
        count = self.maker.source.train
        first = step * self.batch
        if count is None:
            return list(range(first, first + self.batch))
        out = []
        for place in range(first, first + self.batch):
            generator = torch.Generator().manual_seed(self.seed * 9_973 + place // count)
            out.append(int(torch.randperm(count, generator=generator)[place % count]))
        return out

    def _row(self, number: int, row: int) -> dict[str, Tensor]:
        if self.folder is not None:
            return read_row(self._path(number), row)
        return {name: value[row] for name, value in self._memory[number].items()}

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"shard_{number:06d}.safetensors"

    def _there(self, number: int) -> bool:
        if self.folder is None:
            return number in self._memory
        return self._path(number).exists()

    def _compute(self, number: int) -> None:
        size = self.config.shard
        indices = range(number * size, (number + 1) * size)
        packed = pack(self.maker.states("train", indices))
        if self.folder is None:
            self._memory[number] = packed
            return
        path = self._path(number)
        partial = path.with_name(f".{path.name}.{self.rank}")
        write_tensors(packed, partial, packed["hidden"].dtype)
        partial.replace(path)

    def _claim(self, folder: Path) -> None:
        """Shards of other settings are refused: they would be taken for ours."""
        folder.mkdir(parents=True, exist_ok=True)
        target = self.maker.target
        mine = {
            "paired": self.maker.paired,
            "shard": self.config.shard,
            "length": target.length,
            "prefix": target.prefix,
            "width": target.width,
            "seed": self.maker.seed,
            "drop": 0.0 if self.maker.paired else self.config.drop,
            "reads": [[*one] for one in self.maker.reads],
        }
        path = folder / MANIFEST
        if path.exists() and (wrong := differing(read_json(path), mine)):
            raise DecoderError(
                f"{folder} holds shards of other settings ({wrong}); set data.folder to another "
                "folder, or remove this one"
            )
        if self.rank == 0:
            partial = path.with_name(f".{path.name}")  # another process may read it at any time
            partial.write_text(json.dumps(mine, indent=1) + "\n")
            partial.replace(path)


class Stored(Batches):
    """States that an earlier run kept (``data.keep=true``), drawn at random from all its shards but
    the held-out ones. Nothing is computed here; the target is needed for its head alone.

    Raises DecoderError: no shards there, states of another target, or single rows where the loss
    wants pairs.
    """

    def __init__(
        self,
        target: Transformer,
        path: str,
        batch: int,
        paired: bool,
        held_out: float,
        seed: int,
        reads: Reads = (),
    ) -> None:
        folder = Path(path)
        self.files = sorted(folder.glob("shard_*.safetensors"))
        if len(self.files) < 2 or not (folder / MANIFEST).exists():
            raise DecoderError(
                f"{folder} holds {len(self.files)} shards, at least 2 and {MANIFEST} are needed; "
                "write them with data.keep=true data.folder=..."
            )
        found = read_json(folder / MANIFEST, KEPT)
        sizes = {"length": target.length, "prefix": target.prefix, "width": target.width}
        wanted = {"paired": paired, **sizes, "reads": [[*one] for one in reads]}
        if wrong := differing({"reads": []} | found, wanted):
            raise DecoderError(f"the shards of {folder} do not fit: {wrong}")
        self.size, self.batch, self.seed = found.get("shard", 1), batch, seed
        self.device = target.output.weight.device
        parts = held_out_split(len(self.files), held_out, seed)
        self.parts = dict(zip(("train", "valid"), parts, strict=True))
        self.train, self.valid = (self.size * len(part) for part in parts)

    def seen(self, steps: int) -> int:
        return min(steps * self.batch, self.train)

    def at(self, step: int, first: int, count: int) -> States:
        return self._of("train", self.drawn(step, self.train)[first : first + count])

    def held_out(self, first: int, count: int) -> States:
        return self._of("valid", list(range(first, first + count)))

    def _of(self, split: str, picks: list[int]) -> States:
        part, size = self.parts[split], self.size
        return self.gathered([read_row(self.files[part[p // size]], p % size) for p in picks])
