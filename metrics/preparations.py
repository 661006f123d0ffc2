"""What is done to an image before a network sees it: crop, resize, pad, each with its name.

Why named: FID moves by several points with the resizing alone (Parmar et al. 2104.11222), so a
table must say which one it used, and a cache of reference features must not mix two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Preparation:
    """apply: an RGB image to an RGB image. name: what tables and cache keys call it."""

    name: str
    apply: Callable[[Image], Image]


def centre_crop(size: int) -> Preparation:
    """The papers' protocol (METHODS section 5): the largest centred square, Lanczos to `size`."""
    return Preparation(f"centre crop, Lanczos {size}", partial(_centre_crop, size))


def whole(size: int) -> Preparation:
    """The whole image to size x size, its aspect ratio lost: PIL's bilinear with antialiasing.

    What the released precision/recall script does to references of any shape.
    """
    return Preparation(f"whole image, bilinear {size}", partial(_whole, size))


def padded() -> Preparation:
    """Black bars to a square, nothing resized: for networks that resize the whole image."""
    return Preparation("whole image, padded to a square", _padded)


def as_is() -> Preparation:
    """Nothing; images must already have the network's size."""
    return Preparation("as is", _same)


def _centre_crop(size: int, image: Image) -> Image:
    from PIL.Image import Resampling

    side = min(image.size)
    left, top = (round((length - side) / 2) for length in image.size)  # half to even
    square = image.crop((left, top, left + side, top + side))
    return square if side == size else square.resize((size, size), Resampling.LANCZOS)


def _whole(size: int, image: Image) -> Image:
    from PIL.Image import Resampling

    return image.resize((size, size), Resampling.BILINEAR)


def _padded(image: Image) -> Image:
    from PIL.Image import new

    side = max(image.size)
    square = new("RGB", (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _same(image: Image) -> Image:
    return image
