"""Images of a metric as a stream of uint8 batches: from a tensor, a folder of PNGs, or any files.

Why: a folder of thousands of images must not be held in memory at once, and every metric should
refuse the same bad input in the same words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metrics.errors import MetricError
from metrics.preparations import Preparation
from metrics.scenes_clip import as_unit_float

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_IMAGES = 2
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
Source = Tensor | tuple[Path, ...]


@dataclass(frozen=True)
class ImageSet:
    """Images of any size, prepared when they are read; never more than a batch is held.

    source: files in order, or uint8 [n, 3, H, W]. threads prepare a batch together (PIL lets them
    run at once). tick: called with the number of images after each batch.
    """

    source: Source
    prepare: Preparation
    threads: int = 4
    tick: Callable[[int], object] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def part(self, start: int, stop: int) -> Tensor:
        """Images start..stop - 1, prepared: uint8 [<= stop - start, 3, S, S].

        Raises MetricError for a file that cannot be read and where two images of a batch, once
        prepared, differ in size; the message names the file.
        """
        items = self.source[start:stop]
        with ThreadPoolExecutor(self.threads) as pool:
            found = list(pool.map(self._read, items))
        for row, image in enumerate(found):
            if image.shape != found[0].shape or image.shape[1] != image.shape[2]:
                where = f"image {start + row}" if isinstance(items, Tensor) else str(items[row])
                raise MetricError(
                    f"{where} is {list(image.shape)} after `{self.prepare.name}`, expected a square"
                    f" as large as its neighbours {list(found[0].shape)}; give images of one size"
                )
        if self.tick is not None:
            self.tick(len(found))
        return torch.stack(found)

    def _read(self, item: Path | Tensor) -> Tensor:
        image = open_rgb(item) if isinstance(item, Path) else to_pil(item)
        return from_pil(self.prepare.apply(image))


Images = Tensor | Path | ImageSet


def image_batches(images: Images, size: int | None, batch: int) -> Iterator[Tensor]:
    """Batches uint8 [<= batch, 3, size, size] in order (a folder: by file name).

    images: uint8 or float in [0, 1] [n, 3, size, size], a folder of PNGs, or an `ImageSet`; floats
    are rounded to bytes, so that a tensor and its PNGs give the same figures. size None: any, but
    square and the same in a batch. Raises MetricError before the first batch for fewer than two
    images or a bad batch size, and for a bad image (shape, NaN, range) where it is met.
    """
    if batch < 1:
        raise MetricError(f"the batch size must be at least 1, found {batch}")
    files = png_files(images) if isinstance(images, Path) else []
    found = len(files) if isinstance(images, Path) else len(images)
    if found < MIN_IMAGES:
        where = str(images) if isinstance(images, Path) else "the set"
        raise MetricError(f"a metric needs at least {MIN_IMAGES} images, found {found} in {where}")
    for start in range(0, found, batch):
        if isinstance(images, Tensor):
            part = images[start : start + batch]
        elif isinstance(images, ImageSet):
            part = images.part(start, start + batch)
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


def image_files(folder: Path) -> tuple[Path, ...]:
    """The images directly in a folder, numbers in their names in numeric order (2 before 10).

    Raises MetricError when it is no folder or holds fewer than two.
    """
    if not folder.is_dir():
        raise MetricError(f"{folder} is not a folder of images")
    files = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES]
    if len(files) < MIN_IMAGES:
        raise MetricError(
            f"{folder} holds {len(files)} images ({', '.join(SUFFIXES)}), at least {MIN_IMAGES} "
            "are needed; folders inside it are not searched"
        )
    return tuple(sorted(files, key=_natural))


def files_hash(files: Sequence[Path]) -> str:
    """One SHA-256 of the contents of files, in any order and under any names."""
    each = sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return hashlib.sha256("".join(each).encode()).hexdigest()


def _natural(file: Path) -> tuple[list[tuple[bool, int, str]], str]:
    pieces = re.findall(r"\d+|\D+", file.name.lower())
    return [(p[0].isdigit(), int(p) if p[0].isdigit() else 0, p) for p in pieces], file.name


def read_png(file: Path) -> Tensor:
    """One image file as uint8 [3, H, W]; MetricError when it cannot be read."""
    return from_pil(open_rgb(file))


def open_rgb(file: Path) -> Image:
    """An image file decoded to RGB; MetricError when it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise MetricError(f"{file} is not a readable image: {error}") from error


def from_pil(image: Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # [H, W, 3] -> [3, H, W]


def to_pil(image: Tensor) -> Image:
    """uint8 [3, H, W] as an RGB image; MetricError for another shape or dtype."""
    from PIL import Image

    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise MetricError(f"expected uint8 [3, H, W], found {image.dtype} {list(image.shape)}")
    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())  # [3, H, W] -> [H, W, 3]
