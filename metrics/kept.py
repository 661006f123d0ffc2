"""Features that are kept in files, so that a network sees a picture once.

Two ways to find them. A *reference* is one file for all of its images (5,000 are read once, not for
every decoder), named by a hash of the files' names, sizes and times of change, or of the scenes,
and of the extractor, its weights and the preparation: another file, network or crop is another
cache. *Pictures of a run* are found one by one, by the SHA-256 of their content: workers extract
them and one process joins them, so that FID of all shards is that of the images taken together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from decoders.models.weights import opened_file
from metrics import MetricError
from metrics.features import (
    LAYER,
    NAME,
    Extractor,
    ScenesClipFeatures,
    extract,
    feature_batches,
    features_of,
)
from metrics.fid import Moments
from metrics.images import MIN_IMAGES, ImageSet, as_bytes

SPLIT = "reference"  # of the scenes that pictures are compared with
Tensors = dict[str, Tensor]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Of count images: the features [m, E] float32 (for KID, precision and recall), or, where those
    were not kept, only the moments (for FID)."""

    count: int
    rows: Tensor
    stored: Moments | None = None

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance in float64."""
        return self.stored or Moments.of(self.rows)


def reference_statistics(
    extractor: Extractor,
    images: ImageSet,
    cache_dir: Path,
    *,
    sha256: str,
    features: bool,
    batch: int = 64,
) -> Statistics:
    """Statistics of a set of image files under an extractor, cached.

    sha256: of the extractor's weights. features: keep every image's features (4 m E bytes), else
    mean and covariance alone, accumulated batch by batch. Raises MetricError for bad images and a
    source that is no files, DecoderError for a damaged cache.
    """
    kind = "features" if features else "moments"
    slug = re.sub(r"[^a-z0-9]+", "-", extractor.name.lower())
    name = f"{kind}-{slug}-{len(images)}-{cache_key(extractor, images, sha256)}.safetensors"
    if (cache_dir / name).is_file() and images.tick is not None:
        images.tick(len(images))

    def made() -> Tensors:
        _LOG.info("extracting %s of %d reference images", extractor.name, len(images))
        stream = feature_batches(extractor, images, batch=batch)
        if features:
            return {"features": torch.cat(list(stream))}
        found = Moments.stream(stream)
        return {"mean": torch.from_numpy(found.mean), "scatter": torch.from_numpy(found.scatter)}

    found = _cached(cache_dir / name, made)
    if features:
        return Statistics(len(images), found["features"])
    moments = Moments(len(images), found["mean"].numpy(), found["scatter"].numpy())
    return Statistics(len(images), Tensor(), moments)


def cache_key(extractor: Extractor, images: ImageSet, sha256: str) -> str:
    """16 hex digits: extractor, weights, preparation, and every file's name, size, time."""
    if isinstance(images.source, Tensor):
        raise MetricError("a reference is cached by its files; give a folder, not a tensor")
    key = hashlib.sha256("\n".join((extractor.name, sha256, images.prepare.name)).encode())
    for file in images.source:
        state = file.stat()
        key.update(f"\n{file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return key.hexdigest()[:16]


def scenes_statistics(
    extractor: ScenesClipFeatures, count: int, cache_dir: Path, *, batch: int = 64
) -> Statistics:
    """Features of the first `count` scenes of the reference split, cached in cache_dir by the
    weights and by what `scenes_hash` names."""
    from decoders.tiny.scenes import scene_batch

    if count < MIN_IMAGES:
        raise MetricError(f"a reference needs at least {MIN_IMAGES} scenes, found {count}")

    def batches() -> Iterator[Tensor]:
        for start in range(0, count, batch):
            scenes = scene_batch(SPLIT, range(start, min(start + batch, count)), 0)
            images = as_bytes(torch.from_numpy(scenes.images), extractor.clip.image_size)
            yield features_of(extractor, images, start)

    def made() -> Tensors:
        _LOG.info("extracting %s features of %d %s scenes", NAME, count, SPLIT)
        return {"features": torch.cat(list(batches()))}

    key = hashlib.sha256(f"{extractor.clip.sha256} {LAYER} {scenes_hash(count)}".encode())
    name = f"{NAME}-{SPLIT}-{count}-{key.hexdigest()[:16]}.safetensors"
    return Statistics(count, _cached(cache_dir / name, made)["features"])


def scenes_hash(count: int) -> str:
    """SHA-256 that names the first `count` scenes of the reference split: their number, and the
    bytes of the first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.scenes import scene_batch

    probe = torch.from_numpy(scene_batch(SPLIT, range(min(count, 8)), 0).images)
    key = hashlib.sha256(f"{SPLIT} {count} 0".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()


class KeptFeatures:
    """A folder of features: <network>-<key>/<name>.safetensors, each of some pictures. It does not
    matter which worker extracted a row, in which order, or whether the picture has changed since:
    then it is extracted again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def extract(
        self, extractor: Extractor, images: ImageSet, sha256: str, *, batch: int = 64
    ) -> Tensor:
        """As ``features.extract`` of files, [n, E]; only those that no file holds go through the
        network, and are kept. sha256: of the network's weights."""
        files = [Path(file) for file in images.source]
        made = f"{sha256} {extractor.layer} {images.prepare.name}"
        place = self.folder / f"{extractor.name}-{hashlib.sha256(made.encode()).hexdigest()[:12]}"
        names = [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files]
        known = _read(place)
        new = [at for at, name in enumerate(names) if name not in known]
        if new:
            # A metric refuses a single image, so a known one goes along.
            more = [at for at in range(len(files)) if at != new[0]] if len(new) < MIN_IMAGES else []
            asked = sorted([*new, *more[: MIN_IMAGES - 1]])
            part = dataclasses.replace(images, source=tuple(files[at] for at in asked))
            rows = extract(extractor, part, batch=batch)
            listed = json.dumps([names[at] for at in asked])
            path = place / f"{hashlib.sha256(listed.encode()).hexdigest()[:16]}.safetensors"
            _write(path, {"features": rows.contiguous()}, {"images": listed})
            known |= dict(zip((names[at] for at in asked), rows, strict=True))
        if images.tick is not None:
            images.tick(len(files) - len(new))
        return torch.stack([known[name] for name in names])


def _read(place: Path) -> dict[str, Tensor]:
    """Of every picture that a folder knows: its features [E]."""
    found: dict[str, Tensor] = {}
    for path in sorted(place.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = json.loads(file.metadata()["images"])
            found |= dict(zip(names, file.get_tensor("features"), strict=True))
    return found


def _cached(path: Path, make: Callable[[], Tensors]) -> Tensors:
    """The tensors of a file, which is made where it is not there."""
    if not path.is_file():
        made = make()
        _write(path, made)
        return made
    with opened_file(path, "delete it") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _write(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """Whole or absent, whoever is killed while writing it; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, part, metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
