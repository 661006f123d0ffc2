"""The tiny CLIP of the "scenes" images: open_clip's own model, a word tokenizer, checked weights.

Why: the official CLIP and Inception networks were not trained on 64x64 procedural scenes and cannot
be downloaded where the bench runs. This one is built by ``open_clip.model.CLIP`` from open_clip's
own configuration and trained by ``recipes.clip`` with open_clip's loss. It gives the
CLIP score, attribute preference and the features of FID, KID, precision and recall. Tables name
these ``CLIP (scenes)`` and ``FID (scenes-clip)``.

On disk: ``clip.safetensors`` (float16) and ``clip.json`` (model configuration, vocabulary, pixel
mean and deviation, SHA-256 of the weights, held-out figures).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.documents import read_object
from decoders.models.loading.weights import load_into, read_state, write_tensors
from decoders.models.prompts import WordTokenizer
from metrics import MetricError
from metrics.clip import ImageText, build_clip
from metrics.images import (
    MIN_IMAGES,
    Extractor,
    as_unit_float,
    byte_images,
    cached_features,
    features_of,
)
from metrics.preparations import Preparation, as_is, centre_crop

WEIGHTS_DIR = Path(__file__).resolve().parents[1] / "decoders" / "tiny" / "weights"
WEIGHTS_FILE, CONFIG_FILE = "clip.safetensors", "clip.json"
SPLIT = "reference"  # of the scenes that pictures are compared with
_LOG = logging.getLogger(__name__)
SPECIALS = 3  # pad (0), start (V + 1), end (V + 2); the end is the largest id: open_clip's pooling


@dataclass(frozen=True)
class ClipConfig:
    """Everything that shapes the network; ``vision`` and ``text`` are open_clip's own settings."""

    embed_dim: int
    vision: dict[str, Any]
    text: dict[str, Any]
    words: tuple[str, ...]
    mean: float = 0.5  # pixels in [0, 1] become (pixel - mean) / std
    std: float = 0.25
    held_out: dict[str, Any] = field(default_factory=dict)  # figures, for the reader only

    @property
    def image_size(self) -> int:
        """Side of the square image in pixels."""
        return int(self.vision["image_size"])


class ScenesClip(ImageText):
    """The network with its tokenizer and pixel normalisation, in evaluation mode unless trained."""

    name = "CLIP (scenes, 100 cos)"

    def __init__(self, config: ClipConfig, device: str | torch.device = "cpu") -> None:
        """A randomly initialised model of this configuration (torch's global generator)."""
        super().__init__(build_clip(config.embed_dim, config.vision, config.text), device)
        self.config = config
        self.mean, self.std = config.mean, config.std
        self.words = WordTokenizer(config.words, int(config.text["context_length"]) - 2)
        self.sha256 = ""  # of the weights file; empty while untrained

    def preparation(self, size: int | None) -> Preparation:
        return as_is() if size is None else centre_crop(self.config.image_size)

    def pixels(self, images: Tensor) -> Tensor:
        """uint8, or float in [0, 1]; MetricError for a wrong shape, dtype or range."""
        return as_unit_float(images, self.config.image_size)

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """Start, words, end, padding, [n, L]. Raises DecoderError for a caption that is empty, too
        long or has other words than the scenes'."""
        start = len(self.words.index) + 1
        ids = torch.zeros(len(captions), self.words.prefix + 2, dtype=torch.int64)
        for row, caption in enumerate(captions):
            line = [start, *self.words.ids(caption), start + 1]  # the end: see `SPECIALS`
            ids[row, : len(line)] = torch.tensor(line)
        return ids


class ScenesClipFeatures(Extractor):
    """Image embeddings on the sphere of radius sqrt(E): 64 numbers of order 1 per image, so that a
    few hundred images make a covariance of full rank, and KID's kernel (x.y / E + 1)^3 is
    (cos + 1)^3. An embedding's length is dropped: the contrastive loss never sees it, and it made
    KID a figure about its outliers."""

    name, layer = "scenes-clip", "sphere"

    def __init__(self, clip: ScenesClip) -> None:
        super().__init__()
        self.clip = clip

    def preparation(self, size: int | None) -> Preparation:
        return self.clip.preparation(size)

    def forward(self, images: Tensor) -> Tensor:
        return self.clip.config.embed_dim**0.5 * self.clip.image_features(images)


def scenes_features(
    extractor: ScenesClipFeatures, count: int, cache_dir: Path, *, batch: int = 64
) -> Tensor:
    """Features [count, E] of the first scenes of the reference split, kept in cache_dir."""
    from decoders.tiny.scenes import scene_batch

    if count < MIN_IMAGES:
        raise MetricError(f"a reference needs at least {MIN_IMAGES} scenes, found {count}")

    def compute() -> Tensor:
        _LOG.info("extracting %s features of %d %s scenes", extractor.name, count, SPLIT)
        parts = [range(count)[start : start + batch] for start in range(0, count, batch)]
        scenes = (byte_images(torch.from_numpy(scene_batch(SPLIT, p).images)) for p in parts)
        return torch.cat([features_of(extractor, images, batch) for images in scenes])

    key = f"{extractor.clip.sha256} {scenes_hash(count)}"
    return cached_features(cache_dir, extractor, key, compute)


def scenes_hash(count: int) -> str:
    """SHA-256 that names the first `count` scenes of the reference split: their number, and the
    bytes of the first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.scenes import scene_batch

    probe = torch.from_numpy(scene_batch(SPLIT, range(min(count, 8)), 0).images)
    key = hashlib.sha256(f"{SPLIT} {count} 0".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()


def load(folder: Path | None = None, device: str | torch.device = "cpu") -> ScenesClip:
    """The trained model from ``clip.json`` and ``clip.safetensors`` of a folder (None: embedded).

    Raises DecoderError when a file is missing, the SHA-256 differs from the configuration's, or a
    tensor's name or shape does not fit. Nothing is unpickled.
    """
    folder = WEIGHTS_DIR if folder is None else folder
    path, content = folder / WEIGHTS_FILE, read_object(folder / CONFIG_FILE)
    tensors = read_state(path, content["sha256"])
    config = ClipConfig(**{**content["config"], "words": tuple(content["config"]["words"])})
    clip = ScenesClip(config, device)
    load_into(clip.model, tensors, str(path))
    clip.sha256 = content["sha256"]
    return clip


def save(clip: ScenesClip, folder: Path, held_out: dict[str, Any]) -> None:
    """Writes both files, weights as float16."""
    digest = write_tensors(clip.model.state_dict(), folder / WEIGHTS_FILE, torch.float16)
    config = asdict(clip.config) | {"held_out": held_out}
    text = json.dumps({"sha256": digest, "config": config}, indent=1)
    (folder / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
