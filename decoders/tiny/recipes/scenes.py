"""Batches of consecutive scenes, drawn by a process of its own while the last ones are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset

from decoders.tiny.scenes import SceneBatch, scene_batch


@dataclass(frozen=True)
class SceneBatches(Dataset[SceneBatch]):
    """`size` scenes per step, from index `offset` of the split train on."""

    size: int
    offset: int = 0

    def __getitem__(self, step: int) -> SceneBatch:
        first = self.offset + step * self.size
        return scene_batch("train", range(first, first + self.size))


def stream(batches: Dataset[Any], steps: Sequence[int]) -> Iterator[Any]:
    """The batches of these steps, in order."""
    yield from DataLoader(batches, batch_size=None, sampler=steps, num_workers=1)
