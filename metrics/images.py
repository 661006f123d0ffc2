"""Images for a network: folders and tensors in batches, prepared as each protocol does, and their
features (cached for a reference).

Why: a folder of thousands of images must not be held in memory at once, and every metric should
refuse the same bad input in the same way. Preparations (crop, resize, by the libraries of each
official protocol) have names: FID moves by several points with the resizing alone (Parmar et al.
2104.11222), so a table must say which one it used, and a cache of reference features must not mix
two of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from decoders.files import HIDDEN_FILE_HINT, PICTURE_ENDINGS, is_picture, no_file, open_rgb
from decoders.models.loading.checkpoint import some
from decoders.models.loading.weights import kept_features, sha256_of
from decoders.models.precision import full_float32
from metrics import MetricError

BICUBIC, BILINEAR, LANCZOS = (Image.Resampling[n] for n in ("BICUBIC", "BILINEAR", "LANCZOS"))
MIN_IMAGES = 2
READING_THREADS = 4  # PIL lets threads run at once
PROGRESS_AFTER_SECONDS = 3.0


@dataclass(frozen=True)
class Preparation:
    """apply: an RGB image to what a network takes, [3, S, S] uint8 or float32. name: as tables and
    cache keys have it."""

    name: str
    apply: Callable[[Image.Image], Tensor]


def from_pil(image: Image.Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)  # [H, W, 3] -> [3, H, W]


AS_IS = Preparation("as is", from_pil)  # images must already have the network's size


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


@dataclass(frozen=True)
class ImageSet:
    """Images of any size, prepared when they are read; never more than a batch is held. source:
    files in order, or uint8 [n, 3, H, W]."""

    source: Tensor | tuple[Path, ...]
    prepare: Preparation

    def __len__(self) -> int:
        return len(self.source)

    def part(self, start: int, stop: int) -> Tensor:
        """Images start..stop - 1, prepared: [<= stop - start, 3, S, S]. Raises DecoderError for a
        file that cannot be read, MetricError where prepared images of a batch differ in size."""
        items = self.source[start:stop]
        with ThreadPoolExecutor(READING_THREADS) as pool:
            prepared = list(pool.map(self._read, items))
        for row, image in enumerate(prepared):
            if image.shape != prepared[0].shape or image.shape[1] != image.shape[2]:
                where = f"image {start + row}" if isinstance(items, Tensor) else str(items[row])
                raise MetricError(
                    f"{where} is {list(image.shape)} after `{self.prepare.name}`, expected a square"
                    f" as large as its neighbours {list(prepared[0].shape)}; give images of one "
                    "size"
                )
        return torch.stack(prepared)

    def _read(self, item: Path | Tensor) -> Tensor:
        return self.prepare.apply(open_rgb(item) if isinstance(item, Path) else to_pil(item))


def to_pil(image: Tensor) -> Image.Image:
    """uint8 [3, H, W] as an RGB image."""
    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())  # [3, H, W] -> [H, W, 3]


def byte_images(pixels: Tensor) -> ImageSet:
    """Float images [n, 3, S, S] in [0, 1], rounded to bytes as their PNGs would be."""
    return ImageSet((pixels * 255).round().to(torch.uint8), AS_IS)


class Extractor(nn.Module):
    """The network that gives images the features of FID, KID, precision and recall: prepared images
    [n, 3, S, S] -> [n, E] float32. name: as tables have it; layer: of the network."""

    name: str
    layer: str

    def preparation(self, size: int | None) -> Preparation:
        """size: side of the protocol's centre crop; None: images have the network's size."""
        raise NotImplementedError


def features_of(
    network: Callable[[Tensor], Tensor], images: ImageSet, batch: int = 64, label: str = "images"
) -> Tensor:
    """Features [n, E] float32 on the CPU of n images by a network of [b, 3, S, S]. label: names the
    progress bar, which appears after `PROGRESS_AFTER_SECONDS`. Raises as `ImageSet.part`, and
    MetricError for no images and for features that are not finite."""
    if not len(images):
        raise MetricError("a metric needs images, found none")
    with torch.no_grad(), full_float32():
        parts = [
            network(images.part(start, start + batch)).float().cpu()
            for start in tqdm(range(0, len(images), batch), label, delay=PROGRESS_AFTER_SECONDS)
        ]
    features = torch.cat(parts)
    bad = ~torch.isfinite(features).all(1)
    if bad.any():
        raise MetricError(
            f"{int(bad.sum())} of {len(features)} images have features that are not finite, first "
            f"image {int(bad.nonzero()[0])}; the network's weights may be damaged"
        )
    return features


def cached_features(
    folder: Path, extractor: Extractor, key: str, compute: Callable[[], Tensor]
) -> Tensor:
    """Features [n, E] of a reference, computed once and kept in a file. key: all that they depend
    on (weights, crop, pictures) but for the network. Raises DecoderError for a damaged file."""
    digest = hashlib.sha256(f"{extractor.layer} {key}".encode()).hexdigest()[:16]
    return kept_features(folder / f"{extractor.name}-{digest}.safetensors", compute)


def image_files(folder: Path) -> tuple[Path, ...]:
    """The images directly in a folder, numbers in their names in numeric order (2 before 10).
    Raises MetricError when it is no folder, holds fewer than two, or one that is no file."""
    if not folder.is_dir():
        what = "is not a folder of images" if folder.exists() else "does not exist"
        raise MetricError(f"{folder} {what}")
    inside = list(folder.iterdir())
    files = [file for file in inside if is_picture(file)]
    if odd := [f"{file.name} is {kind}" for file in files if (kind := no_file(file))]:
        raise MetricError(
            f"pictures are expected in {folder}, but {some(odd)}; remove them, or rename them "
            "without the ending of a picture"
        )
    if len(files) < MIN_IMAGES:
        hint = HIDDEN_FILE_HINT
        if folders := sorted(path.name for path in inside if path.is_dir()):
            hint = f"folders inside it are not searched, name one of them: {', '.join(folders)}"
        raise MetricError(
            f"{folder} holds {len(files)} images ({', '.join(PICTURE_ENDINGS)}), at least "
            f"{MIN_IMAGES} are needed; {hint}"
        )

    def natural(file: Path) -> tuple[list[str | int], str]:
        pieces = re.split(r"(\d+)", file.name.lower())  # text and digits in turns
        return [int(p) if at % 2 else p for at, p in enumerate(pieces)], file.name

    return tuple(sorted(files, key=natural))


def files_hash(files: Sequence[Path]) -> str:
    """One SHA-256 of the contents of files, in any order and under any names."""
    return hashlib.sha256("".join(sorted(map(sha256_of, files))).encode()).hexdigest()
