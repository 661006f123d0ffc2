"""Features of a reference, computed once and kept in a file.

The file's name is a hash of all that they depend on: network, weights, crop and pictures.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from decoders.models.weights import opened_file
from metrics import MetricError
from metrics.features import Extractor, ScenesClipFeatures
from metrics.fid import Moments
from metrics.images import MIN_IMAGES, byte_images, features_of

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


def cached_features(
    folder: Path, extractor: Extractor, key: str, compute: Callable[[], Tensor]
) -> Tensor:
    """Features [n, E], from the file of this key if there is one. key: all that they depend on but
    for the network's name and layer. Raises DecoderError for a damaged file."""
    digest = hashlib.sha256(f"{extractor.layer} {key}".encode()).hexdigest()[:16]
    path = folder / f"{extractor.name}-{digest}.safetensors"
    if path.exists():
        with opened_file(path, "delete it") as file:
            features: Tensor = file.get_tensor("features")
            return features
    features = compute()
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file({"features": features}, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return features


def scenes_statistics(
    extractor: ScenesClipFeatures, count: int, cache_dir: Path, *, batch: int = 64
) -> Statistics:
    """Features of the first `count` scenes of the reference split, kept in cache_dir."""
    from decoders.tiny.scenes import scene_batch

    if count < MIN_IMAGES:
        raise MetricError(f"a reference needs at least {MIN_IMAGES} scenes, found {count}")

    def compute() -> Tensor:
        _LOG.info("extracting %s features of %d %s scenes", extractor.name, count, SPLIT)
        parts = [range(count)[start : start + batch] for start in range(0, count, batch)]
        scenes = (byte_images(torch.from_numpy(scene_batch(SPLIT, p).images)) for p in parts)
        return torch.cat([features_of(extractor, images, batch) for images in scenes])

    key = f"{extractor.clip.sha256} {scenes_hash(count)}"
    return Statistics(cached_features(cache_dir, extractor, key, compute))


def scenes_hash(count: int) -> str:
    """SHA-256 that names the first `count` scenes of the reference split: their number, and the
    bytes of the first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.scenes import scene_batch

    probe = torch.from_numpy(scene_batch(SPLIT, range(min(count, 8)), 0).images)
    key = hashlib.sha256(f"{SPLIT} {count} 0".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()
