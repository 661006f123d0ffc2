"""Images of a metric as a stream of uint8 batches: from a tensor or from a folder of PNGs.

Why: a folder of thousands of images must not be held in memory at once, and every metric should
refuse the same bad input in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from metrics.errors import MetricError
from metrics.scenes_clip import as_unit_float

Images = Tensor | Path
MIN_IMAGES = 2


def image_batches(images: Images, size: int | None, batch: int) -> Iterator[Tensor]:
    """Batches uint8 [<= batch, 3, size, size] in order (a folder: by file name).

    images: uint8 or float in [0, 1] [n, 3, size, size], or a folder of PNGs; floats are rounded to
    bytes, so that a tensor and its PNGs give the same figures. size None: any, but square and the
    same in a batch. Raises MetricError before the first batch for fewer than two images or a bad
    batch size, and for a bad image (shape, NaN, range) where it is met.
    """
    if batch < 1:
        raise MetricError(f"the batch size must be at least 1, found {batch}")
    files = [] if isinstance(images, Tensor) else png_files(images)
    found = len(images) if isinstance(images, Tensor) else len(files)
    if found < MIN_IMAGES:
        where = "the tensor" if isinstance(images, Tensor) else str(images)
        raise MetricError(f"a metric needs at least {MIN_IMAGES} images, found {found} in {where}")
    for start in range(0, found, batch):
        if isinstance(images, Tensor):
            part = images[start : start + batch]
        else:
            part = _stack(files[start : start + batch], size)
        yield as_bytes(part, part.shape[-1] if size is None else size)


def as_bytes(images: Tensor, size: int) -> Tensor:
    """Checked uint8 or float images as uint8 [n, 3, size, size]; floats are rounded."""
    unit = as_unit_float(images, size)
    return images if images.dtype == torch.uint8 else (unit * 255).round().to(torch.uint8)


def _stack(files: list[Path], size: int | None) -> Tensor:
    """PNG files as uint8 [n, 3, size, size]; the message of a wrong size names the file."""
    read = [read_png(file) for file in files]
    side = read[0].shape[-1] if size is None else size
    for file, image in zip(files, read, strict=True):
        if tuple(image.shape) != (3, side, side):
            raise MetricError(f"{file} is {list(image.shape)}, expected [3, {side}, {side}]")
    return torch.stack(read)


def png_files(folder: Path) -> list[Path]:
    """The PNGs of a folder by name; MetricError when it is no folder."""
    if not folder.is_dir():
        raise MetricError(f"{folder} is not a folder of PNG images")
    return sorted(folder.glob("*.png"))


def read_png(file: Path) -> Tensor:
    """One image file as uint8 [3, H, W]; MetricError when it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            pixels = np.array(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise MetricError(f"{file} is not a readable image: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)  # [H, W, 3] -> [3, H, W]
