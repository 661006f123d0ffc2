"""What is done to an image before a network sees it: crops with their names, and the resizing of
each official network's protocol.

Why named: FID moves by several points with the resizing alone (Parmar et al. 2104.11222), so a
table must say which one it used, and a cache of reference features must not mix two of them. PIL
filters are antialiased when an image shrinks; on float images they do not round to bytes between.
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
from torch.nn.functional import interpolate

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
        side = min(image.size)
        left, top = (round((length - side) / 2) for length in image.size)  # half to even
        square = image.crop((left, top, left + side, top + side))
        return square if side == size else square.resize((size, size), LANCZOS)

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


def clean_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, H, W] -> float32 [n, 3, size, size] in [0, 255], nothing rounded.

    The mode "clean" of clean-fid 0.1.35: each channel as a float image, PIL's antialiased bicubic
    filter, clipped to [0, 255]; also where H = W = size, where it changes nothing.
    """

    def one(image: Tensor) -> Tensor:
        planes = [Image.fromarray(p) for p in image.float().numpy()]
        done = np.stack([np.asarray(p.resize((size, size), BICUBIC)) for p in planes])
        return torch.from_numpy(done.clip(0, 255))  # [3, size, size]

    return torch.stack(in_threads(one, images.cpu()))


def tensor_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, H, W] -> float32 [n, 3, size, size] in [0, 255]: the bilinear filter of tensors,
    not antialiased, as many released evaluation codes resize."""
    return interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)


def tf_resize(images: Tensor, size: int) -> Tensor:
    """The same by TensorFlow 1's bilinear filter, whose corners lie elsewhere (torch-fidelity)."""
    from torch_fidelity.interpolate_compat_tensorflow import (
        interpolate_bilinear_2d_like_tensorflow1x as resize,
    )

    found: Tensor = resize(images.float(), size=(size, size), align_corners=False)
    return found


@dataclass(frozen=True)
class Resizing:
    """One way to the Inception's input. filter: in words; apply: uint8 [n, 3, H, W] and a side ->
    float32 [n, 3, side, side] in [0, 255]; antialiased: yes or no."""

    filter: str
    antialiased: str
    apply: Callable[[Tensor, int], Tensor]


RESIZINGS = {
    "clean": Resizing("PIL bicubic on float channels", "yes", clean_resize),
    "tf": Resizing("TensorFlow 1 bilinear", "no", tf_resize),
    "bilinear": Resizing("tensor bilinear", "no", tensor_resize),
}


def pil_resize(images: Tensor, size: int, kind: Image.Resampling) -> Tensor:
    """uint8 [n, 3, H, W] -> uint8 [n, 3, size, size] by PIL's filter on RGB bytes."""
    if tuple(images.shape[2:]) == (size, size):
        return images
    work = in_threads(lambda x: from_pil(to_pil(x).resize((size, size), kind)), images.cpu())
    return torch.stack(work)


def float_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, S, S] -> float32 [n, 3, size, size], about [0, 1]: torch's antialiased bicubic
    filter on float pixels, overshoot kept."""
    unit = images.float() / 255
    return interpolate(unit, (size, size), mode="bicubic", align_corners=False, antialias=True)


def in_threads(work: Callable[[Any], Tensor], images: Iterable[Any]) -> list[Tensor]:
    """`work` on every image of a batch; PIL lets threads run at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, images))
