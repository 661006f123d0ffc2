"""Which network and image preparation each metric of the papers' protocol stands for.

The Inception is torch-fidelity's `inception-v3-compat` (the TensorFlow graph of 2015-12-05, which
clean-fid uses as well) on clean-fid's 299 x 299 input. VGG16's fc2 is taken before its ReLU, on the
whole image, with ImageNet's mean and deviation: what the papers' script does with torchvision's
network (Kynkaanniemi 1904.06991).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from decoders.models.weights import load_into, read_state
from metrics import MetricError
from metrics.features import Extractor
from metrics.official.checkpoint import Weights
from metrics.official.open_clip_model import KINDS, OpenClip
from metrics.preparations import Preparation, as_is, cleanfid, squeezed

VGG_SIDE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class InceptionFeatures(Extractor):
    """Images [n, 3, 299, 299] in [0, 255] -> features [n, 2048] float32: pool3."""

    name, layer = "inception, clean-resize", "2048"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        """weights: torch-fidelity's file. It unpickles whatever it is given, so it gets the tensors
        that were read safely, written anew in memory.

        Raises as `read_state`, and MetricError where the file is another network's.
        """
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        super().__init__()
        memory = io.BytesIO()
        torch.save(read_state(weights.path), memory)
        memory.seek(0)
        try:
            self.network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048"], feature_extractor_weights_path=memory
            )
        except RuntimeError as error:
            reason = str(error)[:400]
            raise MetricError(f"{weights.path} is not the FID Inception: {reason}") from error
        self.to(device).eval()

    def preparation(self, size: int | None) -> Preparation:
        return as_is() if size is None else cleanfid(size)

    def forward(self, images: Tensor) -> Tensor:
        hidden = (images.to(next(self.network.parameters()).device) - 128) / 128
        for name, stage in self.network.named_children():  # in the order of the forward pass
            if name != "fc":
                hidden = stage(hidden)
        return hidden.flatten(1)  # [n, 2048, 1, 1] -> [n, 2048]


class Vgg16Features(Extractor):
    """uint8 images [n, 3, 224, 224] -> features [n, 4096] float32."""

    name, layer = "vgg16 fc2, whole image", "fc2"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        """weights: torchvision's file. Raises as `read_state`, and DecoderError where the file is
        another network's."""
        from torchvision.models import vgg16

        super().__init__()
        with torch.device("meta"):  # 138 million weights need not be drawn to be overwritten
            network = vgg16(init_weights=False)
        network = network.to_empty(device="cpu")
        load_into(network, read_state(weights.path), str(weights.path))
        network.classifier = network.classifier[:4]  # Linear, ReLU, Dropout, Linear
        self.network = network.requires_grad_(False).eval()
        self.to(device).eval()

    def preparation(self, size: int | None) -> Preparation:
        return squeezed(VGG_SIDE)

    def forward(self, images: Tensor) -> Tensor:
        from torchvision.transforms.functional import normalize

        pixels = images.to(next(self.network.parameters()).device) / 255
        features: Tensor = self.network(normalize(pixels, _MEAN, _STD))
        return features


NETWORKS: dict[str, Callable[[Weights, str], Any]] = {
    "inception": InceptionFeatures,
    "vgg": Vgg16Features,
    **{key: partial(OpenClip, kind) for key, kind in KINDS.items()},
}
