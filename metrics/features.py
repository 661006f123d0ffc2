"""Networks that give images the features of FID, KID, precision and recall; the tiny CLIP's image
tower is ``scenes-clip``.

Its features are the image embeddings on the sphere of radius sqrt(E): 64 numbers of order 1 per
image, so that a few hundred images make a covariance of full rank, and KID's kernel (x.y / E + 1)^3
is (cos + 1)^3. An embedding's length is dropped: the contrastive loss never sees it, and it made
KID a figure about its outliers.
"""

from __future__ import annotations

from torch import Tensor, nn

from metrics.preparations import Preparation
from metrics.scenes_clip import ScenesClip

NAME, LAYER = "scenes-clip", "sphere"


class Extractor(nn.Module):
    """Prepared images [n, 3, S, S] -> features [n, E] float32.

    name: as tables have it; layer: of the network.
    """

    name: str
    layer: str

    def preparation(self, size: int | None) -> Preparation:
        """size: side of the protocol's centre crop; None: images have the network's size."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class ScenesClipFeatures(Extractor):
    """Features of images that have the network's size."""

    name, layer = NAME, LAYER

    def __init__(self, clip: ScenesClip) -> None:
        super().__init__()
        self.clip = clip

    def preparation(self, size: int | None) -> Preparation:
        return self.clip.preparation(size)

    def forward(self, images: Tensor) -> Tensor:
        return self.clip.config.embed_dim**0.5 * self.clip.image_features(images)
