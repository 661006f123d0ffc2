"""CLIP score and attribute preference: does the image show its caption?

CLIP score of an image: 100 cos(image, caption) (Hessel et al. 2104.08718 without the weight 2.5).
Attribute preference: the share of images for which CLIP prefers the right caption of two that
differ in one attribute; 0.5 is chance. A score alone is on an arbitrary scale, preference is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from metrics import MetricError
from metrics.images import Images, features_of
from metrics.preparations import Preparation
from metrics.stats import Interval, student_mean


class ImageText:
    """open_clip's image and text tower, which end on one sphere; the tiny CLIP and the official
    ones differ in `pixels` and `tokens`.

    image_size: side of the images that it takes unprepared, if any. name: as tables have it;
    caption: how it reads one. Pixels become (pixel - mean) / std.
    """

    image_size: int | None = None
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

    def check(self, captions: Sequence[str]) -> None:
        """Raises the MetricError that `text_features` would, before anything is computed."""
        self.tokens(captions)

    def note(self, captions: Sequence[str]) -> str:
        """What a reader of their scores must know of them; "" for nothing."""
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


@dataclass(frozen=True)
class ClipScore:
    """per_image: [n] float64, 100 cos; mean: with its interval over images."""

    per_image: np.ndarray
    mean: Interval


def clip_score(
    clip: ImageText, images: Images, captions: Sequence[str], *, batch: int = 64
) -> ClipScore:
    """CLIP score of n images (tensor or set) and n captions.

    Raises MetricError when the counts differ, for fewer than 2 images, NaN or unknown words.
    """
    features = image_embeddings(clip, images, batch=batch)
    _same_count(features, captions, "captions")
    cosines = (features * text_embeddings(clip, captions, batch=batch)).sum(1)
    per_image = 100 * cosines.double().numpy()
    return ClipScore(per_image, student_mean(per_image))


def attribute_preference(
    clip: ImageText, images: Images, pairs: Sequence[tuple[str, str, str]]
) -> float:
    """The share of images that prefer the right caption, of n (right caption, wrong caption,
    attribute); a tie is wrong.

    Pairs are what ``decoders.tiny.scenes.counterfactual`` returns. Raises as `clip_score`.
    """
    features = image_embeddings(clip, images)
    _same_count(features, pairs, "caption pairs")
    right = text_embeddings(clip, [p[0] for p in pairs])
    wrong = text_embeddings(clip, [p[1] for p in pairs])
    return float(((features * right).sum(1) > (features * wrong).sum(1)).double().mean())


def retrieval_at_1(clip: ImageText, images: Images, captions: Sequence[str]) -> tuple[float, float]:
    """(image to text, text to image) shares of n pairs whose own partner is the nearest one."""
    features = image_embeddings(clip, images)
    _same_count(features, captions, "captions")
    cosines = features @ text_embeddings(clip, captions).T  # [n, n]
    own = torch.arange(len(captions))
    to_text = float((cosines.argmax(1) == own).double().mean())
    return to_text, float((cosines.argmax(0) == own).double().mean())


def image_embeddings(clip: ImageText, images: Images, *, batch: int = 64) -> Tensor:
    """Unit image features [n, E] float32 on the CPU, streamed in batches."""
    return features_of(clip.image_features, images, clip.image_size, batch)


def text_embeddings(clip: ImageText, captions: Sequence[str], *, batch: int = 256) -> Tensor:
    """Unit text features [n, E] float32 on the CPU."""
    with torch.no_grad():
        parts = [
            clip.text_features(captions[i : i + batch]).cpu()
            for i in range(0, len(captions), batch)
        ]
    return torch.cat(parts)


def _same_count(features: Tensor, others: Sequence[object], what: str) -> None:
    if len(features) != len(others):
        raise MetricError(f"{len(features)} images but {len(others)} {what}; give one an image")
