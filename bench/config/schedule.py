"""A study as work to do: cells (a decoder under its settings), and what each has to decode.

The order is part of the protocol. Latency: prompt by prompt, all decoders on the same prompt one
after the other, the first one rotating, so that a drift of the machine hits all alike; in blocks of
prompts spread over the run, so that what the machine does at one moment is seen to differ from
another; and again in the larger batches that `latency.batch` asks for, whose places are refilled
where `latency.requests` says so. Quality: decoder by decoder in fixed batches, so that a resumed
run decodes the very same batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.config.schema import DecoderEntry, StudyConfig, digest

if TYPE_CHECKING:
    from decoders.api import Sampling


LATENCY, BATCHED = "latency", "batched"  # protocols that are timed: one image, or several a call


@dataclass(frozen=True)
class Cell:
    """One decoder of the study with its sampling resolved. `key` names its folders."""

    key: str
    entry: DecoderEntry
    sampling: Sampling


@dataclass(frozen=True)
class Batch:
    """Prompts that one cell decodes in one call, `at_once` at a time (0: all; more than there are:
    see `padded`). What is timed (alone or batched) is in a block of prompts that are timed at one
    moment (one run again later keeps its block); quality has none (0)."""

    cell: Cell
    protocol: str
    seed: int
    indices: tuple[int, ...]
    block: int = 0
    at_once: int = 0

    @property
    def size(self) -> int:
        """Images decoded at once."""
        return self.at_once or len(self.indices)

    @property
    def padded(self) -> tuple[int, ...]:
        """The prompts with the last one again and again, as many as are decoded at once."""
        return self.indices + self.indices[-1:] * (self.size - len(self.indices))

    @property
    def timed(self) -> bool:
        return self.protocol in (LATENCY, BATCHED)

    def stem(self, index: int) -> str:
        """File name of the row of a prompt, without its ending: latency-0-00003, batched4-..."""
        size = self.size if self.protocol == BATCHED else ""
        return f"{self.protocol}{size}-{self.seed}-{index:05d}"

    @property
    def keys(self) -> list[tuple[str, str]]:
        """(cell, stem) of each row."""
        return [(self.cell.key, self.stem(i)) for i in self.indices]


def call_of(batch: Batch) -> tuple[str, int]:
    """What decides the shapes of a call: whose it is, and of how many images."""
    return batch.cell.key, batch.size


def cells(config: StudyConfig, model_sampling: Sampling) -> list[Cell]:
    """The cells in the study's order. Raises DecoderError on impossible sampling settings."""
    out = []
    for entry in config.decoders:
        sampling = entry.sampling.resolve(model_sampling)
        parts = [dataclasses.asdict(entry.spec), dataclasses.asdict(sampling)]
        out.append(Cell(f"{entry.name}-{digest(parts)[:8]}", entry, sampling))
    return out


def latency_batches(config: StudyConfig, every: Sequence[Cell]) -> list[Batch]:
    """Size by size, call-major; on call i the order of the cells is rotated by i. Each size begins
    with the first prompt."""
    out = []
    latency = config.latency
    for size in latency.batch:
        protocol, count = LATENCY if size == 1 else BATCHED, latency.calls(size)
        for call in range(count):
            turn = call % len(every)
            block = call * latency.block_count // count
            images = latency.images(size)
            indices = tuple(range(call * images, (call + 1) * images))
            for cell in [*every[turn:], *every[:turn]]:
                out.append(Batch(cell, protocol, config.seed, indices, block, size))
    return out


def quality_batches(
    config: StudyConfig, every: Sequence[Cell], shard: tuple[int, int] = (0, 1)
) -> list[Batch]:
    """Cell-major, in fixed batches; then the reseeds: each sampling baseline under other seeds.
    Where batches are compiled the last one is filled up: another size would be compiled again.

    A greedy baseline has no reseed: another seed would give the same images. shard: (i, n), only
    the images whose index is i modulo n.
    """
    first, step = shard
    indices, size = range(first, config.quality.images, step), config.quality.batch
    at_once = min(size, len(indices)) if config.backend.compiles_pictures else 0
    runs = [(cell, "quality", config.seed) for cell in every]
    sampled = [c for c in every if c.entry.baseline and not c.sampling.greedy]
    runs += [(cell, "reseed", seed) for seed in config.reseeds for cell in sampled]
    return [
        Batch(cell, protocol, seed, tuple(indices[start : start + size]), at_once=at_once)
        for cell, protocol, seed in runs
        for start in range(0, len(indices), size)
    ]


def parts(latency: Sequence[Batch], quality: Sequence[Batch], blocks: int) -> list[list[Batch]]:
    """The run's parts in order: a latency block, then an equal share of the quality batches, in
    turns. One block: all that is timed, then the rest."""
    out = []
    for block in range(blocks):
        share = slice(block * len(quality) // blocks, (block + 1) * len(quality) // blocks)
        out += [[b for b in latency if b.block == block], list(quality[share])]
    return [part for part in out if part]
