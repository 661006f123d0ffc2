"""Images of a metric as a stream of uint8 batches: from a tensor or from files.

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

import torch
from torch import Tensor

from metrics import MetricError
from metrics.preparations import Preparation, from_pil, to_pil
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


Images = Tensor | ImageSet


def image_batches(images: Images, size: int | None, batch: int) -> Iterator[Tensor]:
    """Batches uint8 [<= batch, 3, size, size] in order.

    images: uint8 or float in [0, 1] [n, 3, size, size], or an `ImageSet`; floats are rounded to
    bytes, so that a tensor and its PNGs give the same figures. size None: any, but square and the
    same in a batch. Raises MetricError before the first batch for fewer than two images or a bad
    batch size, and for a bad image (shape, NaN, range) where it is met.
    """
    if batch < 1:
        raise MetricError(f"the batch size must be at least 1, found {batch}")
    if len(images) < MIN_IMAGES:
        raise MetricError(f"a metric needs at least {MIN_IMAGES} images, found {len(images)}")
    for start in range(0, len(images), batch):
        stop = start + batch
        part = images[start:stop] if isinstance(images, Tensor) else images.part(start, stop)
        yield as_bytes(part, part.shape[-1] if size is None else size)


def as_bytes(images: Tensor, size: int) -> Tensor:
    """Checked uint8 or float images as uint8 [n, 3, size, size]; floats are rounded."""
    unit = as_unit_float(images, size)
    return images if images.dtype == torch.uint8 else (unit * 255).round().to(torch.uint8)


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


def _natural(file: Path) -> tuple[list[tuple[bool, int, str]], str]:
    pieces = re.findall(r"\d+|\D+", file.name.lower())
    return [(p[0].isdigit(), int(p) if p[0].isdigit() else 0, p) for p in pieces], file.name


def files_hash(files: Sequence[Path]) -> str:
    """One SHA-256 of the contents of files, in any order and under any names."""
    each = sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return hashlib.sha256("".join(each).encode()).hexdigest()


def open_rgb(file: Path) -> Image:
    """An image file decoded to RGB; MetricError when it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise MetricError(f"{file} is not a readable image: {error}") from error
