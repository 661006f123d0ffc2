"""Image features through torch-fidelity's extractors; the tiny CLIP is named ``scenes-clip``.

Why: FID, KID, precision and recall are torch-fidelity's; registering the tiny CLIP's image tower
makes `torch_fidelity.calculate_metrics(feature_extractor="scenes-clip", ...)` work like any other,
and Inception and VGG16 (``official``) work here in the same way. The tiny CLIP's features are the
image embeddings on the sphere of radius sqrt(E): 64 numbers of order 1 an image, so that a few
hundred images make a covariance of full rank, and KID's kernel (x.y / E + 1)^3 is (cos + 1)^3. An
embedding's length is dropped: the contrastive loss never sees it, and it made KID a figure about
its outliers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY, register_feature_extractor

from metrics.cache import write_whole
from metrics.errors import MetricError
from metrics.images import Images, as_bytes, image_batches
from metrics.scenes_clip import ScenesClip, load

NAME, LAYER = "scenes-clip", "sphere"
SPLIT = "reference"  # of the scenes that pictures are compared with
_LOG = logging.getLogger(__name__)


class ScenesClipFeatures(FeatureExtractorBase):
    """uint8 images [n, 3, 64, 64] -> (features [n, E] float32,).

    feature_extractor_weights_path: folder of the weights (default: the embedded ones); clip: a
    model already loaded, which takes precedence.
    """

    def __init__(
        self,
        name: str = NAME,
        features_list: list[str] | tuple[str, ...] = (LAYER,),
        feature_extractor_weights_path: str | None = None,
        clip: ScenesClip | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, list(features_list))
        folder = feature_extractor_weights_path
        self.clip = load(Path(folder) if folder else None) if clip is None else clip
        self.image_size = self.clip.image_size
        self.network = self.clip.model  # registered, so that .cuda() and .eval() reach it

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return (LAYER,)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        if metric not in ("fid", "kid", "prc"):
            raise MetricError(f"{NAME} has features for fid, kid and prc, not for {metric!r}")
        return LAYER

    @staticmethod
    def can_be_compiled() -> bool:
        return False

    @staticmethod
    def get_dummy_input_for_compile() -> Tensor:
        return torch.zeros(2, 3, 64, 64, dtype=torch.uint8)

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        if input.dtype != torch.uint8:
            raise MetricError(f"expected uint8 images, found {input.dtype}")
        self.clip.device = next(self.network.parameters()).device
        return (self.clip.config.embed_dim**0.5 * self.clip.image_features(input),)


if NAME not in FEATURE_EXTRACTORS_REGISTRY:
    register_feature_extractor(NAME, ScenesClipFeatures)


def extract(
    extractor: FeatureExtractorBase, images: Images, *, layer: str = LAYER, batch: int = 64
) -> Tensor:
    """Features [n, E] float32 on the CPU of n >= 2 images (tensor, folder or set), in batches.

    extractor: any torch-fidelity extractor, in evaluation mode, that provides `layer`. Raises
    MetricError for bad images (see ``images.image_batches``) and for features that are not finite.
    """
    return torch.cat(list(feature_batches(extractor, images, layer=layer, batch=batch)))


def feature_batches(
    extractor: FeatureExtractorBase, images: Images, *, layer: str = LAYER, batch: int = 64
) -> Iterator[Tensor]:
    """The features that `extract` would join, [<= batch, E], one batch of images held at a time."""
    size = getattr(extractor, "image_size", None)
    done = 0
    for part in image_batches(images, size, batch):
        yield _finite(_forward(extractor, part, layer), done)
        done += len(part)


def reference_features(
    extractor: ScenesClipFeatures,
    count: int,
    cache_dir: Path,
    *,
    seed: int = 0,
    batch: int = 64,
    split: str = SPLIT,
) -> Tensor:
    """Features [count, E] of the first `count` scenes of the reference split, cached in cache_dir.

    The cache file is named by a hash of the weights, the split, count, seed and the pixels of the
    first scenes (a changed renderer gives another file); it is written atomically.
    """
    from safetensors.torch import load_file, save_file

    from decoders.tiny.scenes import scene_batch

    if count < 2:
        raise MetricError(f"a reference needs at least 2 scenes, found {count}")
    probe = scene_batch(split, range(min(count, 8)), seed).images
    key = hashlib.sha256(f"{_weights_key(extractor)} {LAYER} {split} {count} {seed}".encode())
    key.update(probe.tobytes())
    path = cache_dir / f"{NAME}-{split}-{count}-{key.hexdigest()[:16]}.safetensors"
    if path.is_file():
        return load_file(path)["features"]
    _LOG.info("extracting %s features of %d %s scenes", NAME, count, split)
    parts = []
    for start in range(0, count, batch):
        scenes = scene_batch(split, range(start, min(start + batch, count)), seed)
        images = as_bytes(torch.from_numpy(scenes.images), extractor.image_size)
        parts.append(_forward(extractor, images, LAYER))
    features = _finite(torch.cat(parts), 0)
    write_whole(path, lambda part: save_file({"features": features}, part))
    return features


def reference_hash(count: int, *, seed: int = 0, split: str = SPLIT) -> str:
    """SHA-256 that names the first `count` scenes of a split: their number, and the bytes of the
    first ones (a changed renderer gives another). The same on every machine."""
    from decoders.tiny.scenes import scene_batch

    probe = torch.from_numpy(scene_batch(split, range(min(count, 8)), seed).images)
    key = hashlib.sha256(f"{split} {count} {seed}".encode())
    key.update((probe * 255).round().to(torch.uint8).numpy().tobytes())
    return key.hexdigest()


def _forward(extractor: FeatureExtractorBase, images: Tensor, layer: str) -> Tensor:
    """One batch of uint8 images [n, 3, S, S] -> [n, E] float32 on the CPU."""
    with torch.no_grad():
        found: Tensor = extractor.convert_features_tuple_to_dict(extractor(images))[layer]
    return found.float().cpu()


def _finite(features: Tensor, first: int) -> Tensor:
    """Features [n, E] of the images from number `first` on, all finite or MetricError."""
    bad = ~torch.isfinite(features).all(1)
    if bad.any():
        raise MetricError(
            f"{int(bad.sum())} of {len(features)} images have features that are not finite, first "
            f"image {first + int(bad.nonzero()[0])}; the extractor's weights may be damaged"
        )
    return features


def _weights_key(extractor: ScenesClipFeatures) -> str:
    """SHA-256 of the weights: of their file, or of the tensors of an untrained model."""
    if extractor.clip.sha256:
        return extractor.clip.sha256
    state = hashlib.sha256()
    for name, tensor in extractor.network.state_dict().items():
        state.update(name.encode() + tensor.cpu().numpy().tobytes())
    return state.hexdigest()
