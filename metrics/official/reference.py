"""Statistics of a reference folder, cached: 5,000 images are read once, not for every decoder.

A cache file is an .npz, named by a hash of the files' names, sizes and times of change, of the
extractor and its weights, and of the preparation: another file, network or crop is another cache.
"""

from __future__ import annotations

import hashlib
import logging
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrics.cache import write_whole
from metrics.errors import MetricError
from metrics.features import feature_batches
from metrics.images import ImageSet
from metrics.moments import Moments

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Of count images: moments (for FID), and the features [m, E] float32 where they were kept
    (for KID, precision and recall)."""

    count: int
    features: Tensor | None = None
    stored: Moments | None = None

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance in float64."""
        if self.stored is not None:
            return self.stored
        return Moments.of(self.rows)

    @property
    def rows(self) -> Tensor:
        """The features; MetricError where only moments were kept."""
        if self.features is None:
            raise MetricError("only mean and covariance of the reference were kept, no features")
        return self.features


def reference_statistics(
    extractor: Any,
    images: ImageSet,
    cache_dir: Path,
    *,
    layer: str,
    sha256: str,
    features: bool,
    batch: int = 64,
) -> Statistics:
    """Statistics of a set of image files under an extractor (``features.extract``), cached.

    sha256: of the extractor's weights. features: keep every image's features (4 m E bytes), else
    mean and covariance alone, accumulated batch by batch. Raises MetricError for bad images, a
    source that is no files, a damaged cache.
    """
    kind = "features" if features else "moments"
    slug = re.sub(r"[^a-z0-9]+", "-", extractor.name.lower())
    path = (
        cache_dir / f"{kind}-{slug}-{len(images)}-{cache_key(extractor, images, layer, sha256)}.npz"
    )
    if path.is_file():
        if images.tick is not None:
            images.tick(len(images))
        return _read(path, features)
    _LOG.info("extracting %s of %d reference images", extractor.name, len(images))
    stream: Iterator[Tensor] = feature_batches(extractor, images, layer=layer, batch=batch)
    if features:
        rows = torch.cat(list(stream))
        found, content = Statistics(len(rows), rows), {"features": rows.numpy()}
    else:
        moments = Moments.stream(stream)
        found = Statistics(moments.count, stored=moments)
        content = {
            "count": np.array(moments.count),
            "mean": moments.mean,
            "scatter": moments.scatter,
        }
    write_whole(path, lambda part: _save(part, content))
    return found


def cache_key(extractor: Any, images: ImageSet, layer: str, sha256: str) -> str:
    """16 hex digits: extractor, weights, layer, preparation, and every file's name, size, time."""
    if isinstance(images.source, Tensor):
        raise MetricError("a reference is cached by its files; give a folder, not a tensor")
    head = (extractor.name, sha256, layer, images.prepare.name)
    key = hashlib.sha256("\n".join(head).encode())
    for file in images.source:
        state = file.stat()
        key.update(f"\n{file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return key.hexdigest()[:16]


def _save(path: Path, content: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # a name alone would get a further .npz
        np.savez(file, **content)  # type: ignore[arg-type]


def _read(path: Path, features: bool) -> Statistics:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            if features:
                rows = torch.from_numpy(content["features"])
                return Statistics(len(rows), rows)
            moments = Moments(int(content["count"]), content["mean"], content["scatter"])
            return Statistics(moments.count, stored=moments)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise MetricError(f"the cache {path} cannot be read ({error}); delete it") from error
