"""A study as jobs: what each decoder has to decode, and in which order.

The order is part of the protocol. Latency: prompt by prompt, all decoders on the same prompt one
after the other, the first one rotating, so that a drift of the machine hits all alike; in blocks of
prompts spread over the run, so that a difference between moments shows; and again in the larger
batches of `latency.batch`, which are refilled where `latency.requests` says so. Quality: decoder by
decoder, in calls of a few batches, in which the next image takes the row of a finished one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.config.schema import StudyConfig
from bench.run.contender import Contender
from bench.store.columns import BATCHED, LATENCY, QUALITY, RESEED
from bench.store.run_folder import Key

BATCHES_PER_CALL = 4  # of quality images: a kill loses a call, and its last batch waits


@dataclass(frozen=True)
class Job:
    """Prompts, by their indices in the set, that one decoder decodes in one call. size: images
    decoded at once. A timed job (latency, batched) belongs to a block of prompts; others have 0."""

    contender: Contender
    protocol: str
    seed: int
    indices: tuple[int, ...]
    size: int
    block: int = 0

    @cached_property
    def timed(self) -> bool:
        return self.protocol in (LATENCY, BATCHED)

    @cached_property
    def keys(self) -> list[Key]:
        size = self.size if self.protocol == BATCHED else 0
        name = self.contender.name
        return [Key(name, self.protocol, size, self.seed, i) for i in self.indices]


def latency_jobs(config: StudyConfig, every: Sequence[Contender]) -> list[Job]:
    """Lists timed jobs size by size and call by call; on call i the order of the decoders is
    rotated by i. Each size begins with the first prompt."""
    out = []
    latency = config.latency
    for size in latency.batch:
        protocol, count = LATENCY if size == 1 else BATCHED, latency.calls(size)
        for call in range(count):
            turn = call % len(every)
            block = call * latency.block_count // count
            images = latency.images(size)
            indices = tuple(range(call * images, (call + 1) * images))
            for contender in [*every[turn:], *every[:turn]]:
                out.append(Job(contender, protocol, config.first_seed, indices, size, block))
    return out


def quality_jobs(
    config: StudyConfig, every: Sequence[Contender], shard: tuple[int, int] = (0, 1)
) -> list[Job]:
    """Lists quality jobs decoder by decoder: what one keeps in memory for its batches can then go.
    A sampling baseline has other seeds too (the reseeds), which give a greedy one the same images.
    A synthetic decoder has none that counts. shard: (i, n), only images whose index is i modulo
    n."""
    first, step = shard
    images, size = range(first, config.quality.images, step), config.quality.batch
    count = BATCHES_PER_CALL * size
    calls = [tuple(images[start : start + count]) for start in range(0, len(images), count)]
    runs = []
    for one in every:
        if one.synthetic:
            continue
        reseeded = one.variant.entry.baseline and not one.variant.sampling.greedy
        reseeds = config.reseeds if reseeded else ()
        runs += [(one, QUALITY, config.first_seed), *((one, RESEED, seed) for seed in reseeds)]
    return [
        Job(contender, protocol, seed, call, min(size, len(call)))
        for contender, protocol, seed in runs
        for call in calls
    ]


def all_jobs(config: StudyConfig, every: Sequence[Contender]) -> list[Job]:
    """Lists the jobs of a whole study, in the order of its rows."""
    return [*latency_jobs(config, every), *quality_jobs(config, every)]


def parts(jobs: Sequence[Job], blocks: int) -> list[list[Job]]:
    """Divides jobs into the run's parts: a latency block, then an equal share of the quality jobs,
    in turns. One block: all that is timed, then the rest."""
    latency, quality = ([job for job in jobs if job.timed is timed] for timed in (True, False))
    out = []
    for block in range(blocks):
        share = slice(block * len(quality) // blocks, (block + 1) * len(quality) // blocks)
        out += [[job for job in latency if job.block == block], quality[share]]
    return [part for part in out if part]
