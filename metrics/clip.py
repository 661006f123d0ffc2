"""CLIP score: does the image show its caption? And the embedded CLIP.

CLIP score of an image: 100 cos(image, caption) (Hessel et al. 2104.08718 without the weight 2.5).

The official CLIP and Inception networks were not trained on 64x64 procedural scenes and cannot be
downloaded where the bench runs. The tiny one is built by ``open_clip.model.CLIP`` from open_clip's
own configuration and trained by ``recipes.clip`` with open_clip's loss. It gives the CLIP score and
the features of FID, KID, precision and recall. Tables name these ``CLIP (scenes)`` and
``FID (scenes-clip)``. On disk: ``clip.safetensors`` (float16) and ``clip.json`` (configuration,
vocabulary, pixel mean and deviation, SHA-256 of the weights, held-out figures).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from decoders.files import read_object
from decoders.models.loading.weights import load_into, read_state
from decoders.models.precision import full_float32
from decoders.models.prompts import WordTokenizer
from metrics import MetricError
from metrics.images import (
    AS_IS,
    MIN_IMAGES,
    Extractor,
    ImageSet,
    Preparation,
    byte_images,
    cached_features,
    centre_crop,
    features_of,
)

WEIGHTS_DIR = Path(__file__).resolve().parents[1] / "decoders" / "tiny" / "weights"
WEIGHTS_FILE, CONFIG_FILE = "clip.safetensors", "clip.json"
REFERENCE_SPLIT = "reference"  # of the scenes that pictures are compared with
_LOG = logging.getLogger(__name__)


class ImageText:
    """open_clip's image and text tower, which end on one sphere. name: as tables have it; caption:
    how it reads one. Pixels become (pixel - mean) / std."""

    name: str
    caption = ""
    mean: Any
    std: Any

    def __init__(self, model: Any, device: str | torch.device) -> None:
        self.model, self.device = model.to(device).eval(), torch.device(device)

    def preparation(self, size: int | None) -> Preparation:
        """size: side of the protocol's centre crop; None: images have the network's size."""
        raise NotImplementedError

    def pixels(self, images: Tensor) -> Tensor:
        """Prepared images [n, 3, S, S] -> float32 in [0, 1]."""
        return images.float() / 255 if images.dtype == torch.uint8 else images

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """n captions -> [n, L] int64. Raises MetricError for a caption that cannot be read."""
        raise NotImplementedError

    def image_features(self, images: Tensor) -> Tensor:
        """Prepared images [n, 3, S, S] -> unit features [n, E] float32. Raises as `pixels`."""
        pixels = self.pixels(images).to(self.device)
        return normalize(self.model.encode_image((pixels - self.mean) / self.std).float(), dim=-1)

    def note(self, captions: Sequence[str]) -> str:
        """A caution for readers of the scores of these captions; "" where there is none."""
        return ""

    def text_features(self, captions: Sequence[str]) -> Tensor:
        """n captions -> unit features [n, E] float32. Raises as `tokens`."""
        tokens = self.tokens(captions).to(self.device)
        return normalize(self.model.encode_text(tokens).float(), dim=-1)


def build_clip(
    embed_dim: int, vision: Mapping[str, Any], text: Mapping[str, Any], quick_gelu: bool = False
) -> Any:
    """open_clip's CLIP, random weights, from its own settings; needs no hub."""
    from open_clip.model import CLIP

    vision = dict(vision)
    if isinstance(vision["layers"], list):  # JSON has no tuples; open_clip tells a ResNet by one
        vision["layers"] = tuple(vision["layers"])
    return CLIP(embed_dim=embed_dim, vision_cfg=vision, text_cfg=dict(text), quick_gelu=quick_gelu)


def clip_score(
    clip: ImageText,
    images: ImageSet,
    captions: Sequence[str],
    batch: int = 64,
    label: str = "images",
) -> np.ndarray:
    """CLIP scores [n] float64 of n images and n captions, 100 cos. label: see `features_of`.
    Raises MetricError when the counts differ, and as `features_of`."""
    features = features_of(clip.image_features, images, batch, label)
    if len(features) != len(captions):
        raise MetricError(f"{len(features)} images but {len(captions)} captions; give one an image")
    starts = range(0, len(captions), batch)
    with torch.no_grad(), full_float32():
        texts = [clip.text_features(captions[at : at + batch]).cpu() for at in starts]
    cosines = (features * torch.cat(texts)).sum(1)
    scores: np.ndarray = 100 * cosines.double().numpy()
    return scores


# ---- the embedded CLIP of the scenes -------------------------------------------------------------


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


class ScenesClip(ImageText):
    """The network with its tokenizer and pixel normalisation, in evaluation mode unless trained."""

    name = "CLIP (scenes, 100 cos)"

    def __init__(self, config: ClipConfig, device: str | torch.device = "cpu") -> None:
        """A randomly initialised model of this configuration (torch's global generator)."""
        super().__init__(build_clip(config.embed_dim, config.vision, config.text), device)
        self.config, self.side = config, int(config.vision["image_size"])
        self.mean, self.std = config.mean, config.std
        self.tokenizer = WordTokenizer(config.words, int(config.text["context_length"]) - 2)
        self.sha256 = ""  # of the weights file; empty while untrained

    def preparation(self, size: int | None) -> Preparation:
        return AS_IS if size is None else centre_crop(self.side)

    def pixels(self, images: Tensor) -> Tensor:
        """uint8, or float in [0, 1]; MetricError for another shape."""
        if tuple(images.shape[1:]) != (3, self.side, self.side):
            raise MetricError(
                f"expected images [n, 3, {self.side}, {self.side}], found {list(images.shape)}; "
                "resize them first"
            )
        return super().pixels(images)

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """Start, words, end (which open_clip pools), padding, [n, L]. Raises DecoderError for a
        caption that is empty, too long or has other words than the scenes'."""
        start = len(self.tokenizer.index) + 1
        ids = torch.zeros(len(captions), self.tokenizer.prefix + 2, dtype=torch.int64)
        for row, caption in enumerate(captions):
            line = [start, *self.tokenizer.ids(caption), start + 1]  # the end has the largest id
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
    from decoders.tiny.render import scene_batch

    if count < MIN_IMAGES:
        raise MetricError(f"a reference needs at least {MIN_IMAGES} scenes, found {count}")

    def compute() -> Tensor:
        _LOG.info("extracting %s features of %d %s scenes", extractor.name, count, REFERENCE_SPLIT)
        parts = [range(count)[start : start + batch] for start in range(0, count, batch)]
        scenes = (
            byte_images(torch.from_numpy(scene_batch(REFERENCE_SPLIT, p).images)) for p in parts
        )
        return torch.cat([features_of(extractor, images, batch) for images in scenes])

    key = f"{extractor.clip.sha256} {scenes_hash(count)}"
    return cached_features(cache_dir, extractor, key, compute)


def scenes_hash(count: int) -> str:
    """SHA-256 that names the first `count` scenes of the reference split: their number, and the
    bytes of the first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.render import scene_batch

    probe = torch.from_numpy(scene_batch(REFERENCE_SPLIT, range(min(count, 8)), 0).images)
    key = hashlib.sha256(f"{REFERENCE_SPLIT} {count} 0".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()


def load(folder: Path | None = None, device: str | torch.device = "cpu") -> ScenesClip:
    """The trained model of a folder (None: embedded). Raises DecoderError when a file is missing,
    the SHA-256 differs from the configuration's, or a tensor's name or shape does not fit."""
    folder = WEIGHTS_DIR if folder is None else folder
    path, content = folder / WEIGHTS_FILE, read_object(folder / CONFIG_FILE)
    tensors = read_state(path, content["sha256"])
    config = ClipConfig(**{**content["config"], "words": tuple(content["config"]["words"])})
    clip = ScenesClip(config, device)
    load_into(clip.model, tensors, str(path))
    clip.sha256 = content["sha256"]
    return clip
