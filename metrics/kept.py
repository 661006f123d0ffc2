"""Features that are kept in files, so that a network sees a picture once.

A reference is read once, not for every decoder. A picture is found by the SHA-256 of its content,
a scene by its number, so a picture that has changed since is another one. Another network, other
weights or another crop have a folder of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from decoders.models.weights import opened_file, sha256_of
from metrics import MetricError
from metrics.features import Extractor, ScenesClipFeatures, extract
from metrics.fid import Moments
from metrics.images import MIN_IMAGES, ImageSet

SPLIT = "reference"  # of the scenes that pictures are compared with
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Features [m, E] float32 of a reference."""

    rows: Tensor

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance in float64."""
        return Moments.of(self.rows)


class KeptFeatures:
    """A folder of features: <network>-<key>/<name>.safetensors, each of some pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def extract(
        self, extractor: Extractor, images: ImageSet, sha256: str, *, batch: int = 64
    ) -> Tensor:
        """As ``features.extract`` of files, [n, E]; only those that no file holds go through the
        network, and are kept. sha256: of the network's weights. Raises DecoderError for a damaged
        file of the folder."""
        files = [Path(file) for file in images.source]

        def make(rows: Sequence[int]) -> Tensor:
            part = dataclasses.replace(images, source=tuple(files[row] for row in rows))
            return extract(extractor, part, batch=batch)

        names = [sha256_of(file)[:16] for file in files]
        found, new = self.rows(extractor, f"{sha256} {images.prepare.name}", names, make)
        if images.tick is not None:
            images.tick(len(files) - new)
        return found

    def rows(
        self,
        extractor: Extractor,
        made: str,
        names: Sequence[str],
        make: Callable[[Sequence[int]], Tensor],
    ) -> tuple[Tensor, int]:
        """Features [n, E] of n pictures by their names, and how many of them are new: those that
        `make` returned for the numbers of pictures it was given, now kept. made: all that features
        depend on but for the network's name and layer."""
        key = _short(f"{extractor.layer} {made}")
        place = self.folder / f"{extractor.name}-{key}"
        known: dict[str, Tensor] = {}
        for path in sorted(place.glob("*.safetensors")):
            with opened_file(path, "delete it") as file:
                known |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        new = [row for row, name in enumerate(names) if name not in known]
        if new:
            kept = {names[row]: x.clone() for row, x in zip(new, make(new), strict=True)}
            _write(place / f"{_short(' '.join(kept))}.safetensors", kept)
            known |= kept
        return torch.stack([known[name] for name in names]), len(new)


def scenes_statistics(
    extractor: ScenesClipFeatures, count: int, cache_dir: Path, *, batch: int = 64
) -> Statistics:
    """Features of the first `count` scenes of the reference split, kept in cache_dir."""
    from decoders.tiny.scenes import scene_batch

    if count < MIN_IMAGES:
        raise MetricError(f"a reference needs at least {MIN_IMAGES} scenes, found {count}")

    def make(rows: Sequence[int]) -> Tensor:
        _LOG.info("extracting %s features of %d %s scenes", extractor.name, len(rows), SPLIT)
        parts = (rows[start : start + batch] for start in range(0, len(rows), batch))
        scenes = (torch.from_numpy(scene_batch(SPLIT, part, 0).images) for part in parts)
        return torch.cat([extract(extractor, images, batch=batch) for images in scenes])

    made = f"{extractor.clip.sha256} {scenes_hash(count)}"
    names = [f"{SPLIT} {number}" for number in range(count)]
    return Statistics(KeptFeatures(cache_dir).rows(extractor, made, names, make)[0])


def scenes_hash(count: int) -> str:
    """SHA-256 that names the first `count` scenes of the reference split: their number, and the
    bytes of the first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.scenes import scene_batch

    probe = torch.from_numpy(scene_batch(SPLIT, range(min(count, 8)), 0).images)
    key = hashlib.sha256(f"{SPLIT} {count} 0".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or absent, whoever is killed while writing it; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
