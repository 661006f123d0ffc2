"""CLIP score and attribute preference: does the image show its caption?

CLIP score of an image: 100 cos(image, caption) (Hessel et al. 2104.08718 without the weight 2.5).
Attribute preference: the share of images for which CLIP prefers the right caption of two that
differ in one attribute; 0.5 is chance. A score alone is on an arbitrary scale, preference is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from metrics import MetricError
from metrics.images import ImageSet, features_of
from metrics.preparations import Preparation


class ImageText:
    """open_clip's image and text tower, which end on one sphere; the tiny CLIP and the official
    ones differ in `pixels` and `tokens`.

    name: as tables have it; caption: how it reads one. Pixels become (pixel - mean) / std.
    """

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
    *,
    batch: int = 64,
    label: str = "images",
) -> np.ndarray:
    """CLIP scores [n] float64 of n images and n captions, 100 cos. label: see `features_of`.

    Raises MetricError when the counts differ, for NaN and unknown words.
    """
    features = features_of(clip.image_features, images, batch, label)
    if len(features) != len(captions):
        raise MetricError(f"{len(features)} images but {len(captions)} captions; give one an image")
    starts = range(0, len(captions), batch)
    with torch.no_grad():
        texts = [clip.text_features(captions[at : at + batch]).cpu() for at in starts]
    cosines = (features * torch.cat(texts)).sum(1)
    scores: np.ndarray = 100 * cosines.double().numpy()
    return scores


def attribute_preference(
    clip: ImageText, images: ImageSet, pairs: Sequence[tuple[str, str, str]]
) -> float:
    """The share of n images with a higher score for the right caption than for the wrong one; a tie
    is wrong.

    pairs: n times (right caption, wrong caption, attribute), as
    ``decoders.tiny.scenes.counterfactual`` returns them. Raises as `clip_score`.
    """
    right, wrong = (clip_score(clip, images, [pair[side] for pair in pairs]) for side in (0, 1))
    return float((right > wrong).mean())
