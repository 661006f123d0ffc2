"""Embedded scenes as batches, and as a source of a drafter's training (`data=scenes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from decoders.api import ImageModel
from decoders.tiny.scenes.dataset import SceneBatch, scene_batch
from decoders.training.sources import encode_pictures
from decoders.training.states import Images


@dataclass(frozen=True)
class SceneBatches(Dataset[SceneBatch]):
    """`size` scenes per step, from index `offset` of the split train on."""

    size: int
    offset: int = 0

    def __getitem__(self, step: int) -> SceneBatch:
        first = self.offset + step * self.size
        return scene_batch("train", range(first, first + self.size))


@dataclass(frozen=True)
class Scenes:
    """The embedded scenes, drawn and encoded on the fly: no two alike, none held out twice.

    offset: the first index of the train split, past what tokenizer and target have seen.
    """

    model: ImageModel
    offset: int = 5_000_000
    train: None = None
    valid: None = None

    def images(self, split: str, indices: Sequence[int]) -> Images:
        first = self.offset if split == "train" else 0
        batch = scene_batch(split, [first + i for i in indices])
        pictures = torch.from_numpy(batch.images)  # [B, 3, 64, 64]
        codes = encode_pictures(self.model, pictures)
        return Images(self.model.text.encode(batch.captions).to(self.model.device), codes)
