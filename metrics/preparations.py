"""Image preprocessing (crop, resize) before a network, by the libraries of each official protocol.

Why named: FID moves by several points with the resizing alone (Parmar et al. 2104.11222), so a
table must say which one it used, and a cache of reference features must not mix two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metrics import MetricError

BICUBIC, BILINEAR, LANCZOS = (Image.Resampling[n] for n in ("BICUBIC", "BILINEAR", "LANCZOS"))


@dataclass(frozen=True)
class Preparation:
    """apply: an RGB image to what a network takes, [3, S, S] uint8 or float32. name: as tables and
    cache keys have it."""

    name: str
    apply: Callable[[Image.Image], Tensor]


def as_is() -> Preparation:
    """Nothing; images must already have the network's size."""
    return Preparation("as is", from_pil)


def from_pil(image: Image.Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # [H, W, 3] -> [3, H, W]


def centre_crop(size: int, then: Callable[[Image.Image], Tensor] = from_pil) -> Preparation:
    """The papers' protocol (METHODS section 5): the largest centred square, Lanczos to `size`; then
    what the network needs."""

    def crop(image: Image.Image) -> Tensor:
        from torchvision.transforms.functional import center_crop

        square = center_crop(image, [min(image.size)])
        square = square if square.width == size else square.resize((size, size), LANCZOS)
        return then(square)

    return Preparation(f"centre crop, Lanczos {size}", crop)


def cleanfid(size: int) -> Preparation:
    """The crop, then clean-fid's 299 x 299: PIL's antialiased bicubic filter on float channels, not
    rounded, in [0, 255]."""
    from cleanfid.resize import build_resizer

    resize = build_resizer("clean")  # [H, W, 3] -> [299, 299, 3]
    return centre_crop(
        size, lambda image: torch.from_numpy(resize(np.asarray(image))).permute(2, 0, 1)
    )


def openai_clip(size: int, side: int) -> Preparation:
    """The crop, then CLIP's own resizing to side x side: PIL's bicubic filter on bytes."""
    return centre_crop(size, lambda image: from_pil(image.resize((side, side), BICUBIC)))


def squeezed(side: int) -> Preparation:
    """The whole image to side x side, its aspect ratio lost, by PIL's bilinear filter: what the
    papers' script of precision and recall does with images and references of any shape."""
    return Preparation(
        f"whole image, bilinear {side}",
        lambda image: from_pil(image.resize((side, side), BILINEAR)),
    )


def padded(side: int) -> Preparation:
    """The whole image, its longer side resized to `side` by a bicubic filter on floats, between
    black bars: hpsv2's transform, in [0, 1]."""

    def pad(image: Image.Image) -> Tensor:
        from torchvision.transforms import functional as F

        scale = side / max(image.size)
        width, height = (max(1, round(extent * scale)) for extent in image.size)
        bicubic = F.InterpolationMode.BICUBIC
        pixels = F.resize(F.to_tensor(image), [height, width], bicubic, antialias=True)
        left, top = (side - width) // 2, (side - height) // 2
        bars: Tensor = F.pad(pixels, [left, top, side - width - left, side - height - top])
        return bars  # [3, S, S]

    return Preparation(f"whole image, padded to {side}", pad)


def to_pil(image: Tensor) -> Image.Image:
    """uint8 [3, H, W] as an RGB image; MetricError for another shape or dtype."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise MetricError(f"expected uint8 [3, H, W], found {image.dtype} {list(image.shape)}")
    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())  # [3, H, W] -> [H, W, 3]
