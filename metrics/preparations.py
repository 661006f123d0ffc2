"""What is done to an image before a network sees it: crops with their names, and the resizing of
each official network's protocol, by the libraries of those protocols.

Why named: FID moves by several points with the resizing alone (Parmar et al. 2104.11222), so a
table must say which one it used, and a cache of reference features must not mix two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metrics import MetricError

BICUBIC, BILINEAR, LANCZOS = (Image.Resampling[n] for n in ("BICUBIC", "BILINEAR", "LANCZOS"))
_THREADS = 4


@dataclass(frozen=True)
class Preparation:
    """apply: an RGB image to an RGB image. name: what tables and cache keys call it."""

    name: str
    apply: Callable[[Image.Image], Image.Image]


def centre_crop(size: int) -> Preparation:
    """The papers' protocol (METHODS section 5): the largest centred square, Lanczos to `size`."""

    def crop(image: Image.Image) -> Image.Image:
        from torchvision.transforms.functional import center_crop

        square = center_crop(image, [min(image.size)])
        return square if square.width == size else square.resize((size, size), LANCZOS)

    return Preparation(f"centre crop, Lanczos {size}", crop)


def whole(size: int) -> Preparation:
    """The whole image to size x size, its aspect ratio lost: PIL's bilinear with antialiasing.

    What the released precision/recall script does to references of any shape.
    """
    name = f"whole image, bilinear {size}"
    return Preparation(name, lambda image: image.resize((size, size), BILINEAR))


def padded() -> Preparation:
    """Black bars to a square, nothing resized: for networks that resize the whole image."""

    def pad(image: Image.Image) -> Image.Image:
        side = max(image.size)
        square = Image.new("RGB", (side, side))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square

    return Preparation("whole image, padded to a square", pad)


def as_is() -> Preparation:
    """Nothing; images must already have the network's size."""
    return Preparation("as is", lambda image: image)


def from_pil(image: Image.Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # [H, W, 3] -> [3, H, W]


def to_pil(image: Tensor) -> Image.Image:
    """uint8 [3, H, W] as an RGB image; MetricError for another shape or dtype."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise MetricError(f"expected uint8 [3, H, W], found {image.dtype} {list(image.shape)}")
    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())  # [3, H, W] -> [H, W, 3]


def clean_resize(images: Tensor) -> Tensor:
    """uint8 [n, 3, H, W] -> float32 [n, 3, 299, 299] in [0, 255] by clean-fid: PIL's antialiased
    bicubic filter on float channels, nothing rounded."""
    from cleanfid.resize import build_resizer

    resize = build_resizer("clean")  # [H, W, 3] -> [299, 299, 3]
    arrays = images.permute(0, 2, 3, 1).cpu().numpy()
    resized = in_threads(lambda image: torch.from_numpy(resize(image)), arrays)
    return torch.stack(resized).permute(0, 3, 1, 2)


def pil_resize(images: Tensor, size: int, kind: Image.Resampling) -> Tensor:
    """uint8 [n, 3, H, W] -> uint8 [n, 3, size, size] by PIL's filter on RGB bytes."""
    if tuple(images.shape[2:]) == (size, size):
        return images
    work = in_threads(lambda x: from_pil(to_pil(x).resize((size, size), kind)), images.cpu())
    return torch.stack(work)


def in_threads(work: Callable[[Any], Tensor], images: Iterable[Any] | np.ndarray) -> list[Tensor]:
    """`work` on every image of a batch; PIL lets threads run at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, images))
