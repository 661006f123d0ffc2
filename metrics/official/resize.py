"""Resizing of uint8 batches before the official networks, each as that network's protocol has it.

Why not one: FID depends on it (Parmar et al. 2104.11222). PIL filters are antialiased when an image
shrinks; on float images they do not round to bytes in between.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metrics.images import from_pil, to_pil

BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
_THREADS = 4


def clean_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, H, W] -> float32 [n, 3, size, size] in [0, 255], nothing rounded.

    The mode "clean" of clean-fid 0.1.35: each channel as a float image, PIL's antialiased bicubic
    filter, clipped to [0, 255]; also where H = W = size, where it changes nothing.
    """

    def one(image: Tensor) -> Tensor:
        planes = [Image.fromarray(p) for p in image.float().numpy()]
        done = np.stack([np.asarray(p.resize((size, size), BICUBIC)) for p in planes])
        return torch.from_numpy(done.clip(0, 255))  # [3, size, size]

    return _each(images, one)


def tensor_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, H, W] -> float32 [n, 3, size, size] in [0, 255]: the bilinear filter of tensors,
    not antialiased, as many released evaluation codes resize."""
    from torch.nn.functional import interpolate

    return interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)


def tf_resize(images: Tensor, size: int) -> Tensor:
    """The same by TensorFlow 1's bilinear filter, whose corners lie elsewhere (torch-fidelity)."""
    from torch_fidelity.interpolate_compat_tensorflow import (
        interpolate_bilinear_2d_like_tensorflow1x as interpolate,
    )

    found: Tensor = interpolate(images.float(), size=(size, size), align_corners=False)
    return found


@dataclass(frozen=True)
class Resizing:
    """One way to a network's input. filter: in words; apply: uint8 [n, 3, H, W] and a side ->
    float32 [n, 3, side, side] in [0, 255]."""

    filter: str
    antialias: bool
    apply: Callable[[Tensor, int], Tensor]

    @property
    def antialiased(self) -> str:
        return "yes" if self.antialias else "no"


RESIZINGS = {
    "clean": Resizing("PIL bicubic on float channels", True, clean_resize),
    "tf": Resizing("TensorFlow 1 bilinear", False, tf_resize),
    "bilinear": Resizing("tensor bilinear", False, tensor_resize),
}


def pil_resize(images: Tensor, size: int, kind: Image.Resampling) -> Tensor:
    """uint8 [n, 3, H, W] -> uint8 [n, 3, size, size] by PIL's filter on RGB bytes."""
    if tuple(images.shape[2:]) == (size, size):
        return images
    return _each(images, lambda x: from_pil(to_pil(x).resize((size, size), kind)))


def float_resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, S, S] -> float32 [n, 3, size, size], about [0, 1]: torch's antialiased bicubic
    filter on float pixels, overshoot kept."""
    from torch.nn.functional import interpolate

    return interpolate(
        images.float() / 255, (size, size), mode="bicubic", align_corners=False, antialias=True
    )


def _each(images: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
    """`work` on every image of a batch, in threads; stacked."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return torch.stack(list(pool.map(work, images.cpu())))
