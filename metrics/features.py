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

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY, register_feature_extractor

from metrics import MetricError
from metrics.images import Images, image_batches
from metrics.scenes_clip import ScenesClip, load

NAME, LAYER = "scenes-clip", "sphere"


class Extractor(FeatureExtractorBase):
    """uint8 images [n, 3, H, W] -> (features [n, E] float32,). What torch-fidelity asks of a class
    and not only of its instances is answered here."""

    layer: ClassVar[str]  # the one that it offers
    size: ClassVar[int]  # side of the network's input in pixels
    image_size: int | None = None  # of the images that it takes; None: any square

    @classmethod
    def get_provided_features_list(cls) -> tuple[str, ...]:
        return (cls.layer,)

    @classmethod
    def get_default_feature_layer_for_metric(cls, metric: str) -> str:
        if metric not in ("fid", "kid", "prc"):
            raise MetricError(
                f"{cls.__name__} has features for fid, kid and prc, not for {metric!r}"
            )
        return cls.layer

    @staticmethod
    def can_be_compiled() -> bool:
        return False

    @classmethod
    def get_dummy_input_for_compile(cls) -> Tensor:
        return torch.zeros(2, 3, cls.size, cls.size, dtype=torch.uint8)


class ScenesClipFeatures(Extractor):
    """uint8 images [n, 3, 64, 64] -> (features [n, E] float32,).

    feature_extractor_weights_path: folder of the weights (default: the embedded ones); clip: a
    model already loaded, which takes precedence.
    """

    layer, size = LAYER, 64

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

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        if input.dtype != torch.uint8:
            raise MetricError(f"expected uint8 images, found {input.dtype}")
        self.clip.device = next(self.network.parameters()).device
        return (self.clip.config.embed_dim**0.5 * self.clip.image_features(input),)


if NAME not in FEATURE_EXTRACTORS_REGISTRY:
    register_feature_extractor(NAME, ScenesClipFeatures)


def extract(extractor: Extractor, images: Images, *, batch: int = 64) -> Tensor:
    """Features [n, E] float32 on the CPU of n >= 2 images (tensor or set), in batches.

    extractor: in evaluation mode. Raises MetricError for bad images (see ``images.image_batches``)
    and for features that are not finite.
    """
    return torch.cat(list(feature_batches(extractor, images, batch=batch)))


def feature_batches(extractor: Extractor, images: Images, *, batch: int = 64) -> Iterator[Tensor]:
    """The features that `extract` would join, [<= batch, E], one batch of images held at a time."""
    done = 0
    for part in image_batches(images, extractor.image_size, batch):
        yield features_of(extractor, part, done)
        done += len(part)


def features_of(extractor: Extractor, images: Tensor, first: int) -> Tensor:
    """One batch of uint8 images [n, 3, S, S], from number `first` on -> [n, E] float32 on the CPU,
    all finite or MetricError."""
    with torch.no_grad():
        features: Tensor = extractor(images)[0].float().cpu()
    bad = ~torch.isfinite(features).all(1)
    if bad.any():
        raise MetricError(
            f"{int(bad.sum())} of {len(features)} images have features that are not finite, first "
            f"image {first + int(bad.nonzero()[0])}; the extractor's weights may be damaged"
        )
    return features
