"""VGG16 features of precision and recall: fc2, 4096 numbers an image (Kynkaanniemi 1904.06991).

fc2 is taken before its ReLU, at 224 px by PIL's antialiased bilinear filter, ImageNet's mean and
deviation: what the papers' released script does with torchvision's network. `fc2_relu` is
torch-fidelity's default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.official.checkpoint import Weights, load_module
from metrics.official.extractor import OfficialFeatures
from metrics.official.resize import BILINEAR, pil_resize

LAYER = "fc2"
SIZE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Vgg16Features(OfficialFeatures):
    """uint8 images [n, 3, H, W], square -> (features [n, 4096] float32,)."""

    layers, size = ("fc2", "fc2_relu"), SIZE

    def __init__(self, weights: Weights, layer: str = LAYER) -> None:
        """weights: torchvision's file. Raises MetricError where it does not fit."""
        from torchvision.models import vgg16

        super().__init__(f"vgg16 {layer}", [layer])
        with torch.device("meta"):  # 138 million weights need not be drawn to be overwritten
            network = vgg16(init_weights=False)
        network = network.to_empty(device="cpu")
        load_module(network, weights.path)
        kept = 5 if layer == "fc2_relu" else 4  # Linear, ReLU, Dropout, Linear, ReLU
        network.classifier = network.classifier[:kept]
        self.network = network.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1), persistent=False)

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        pixels = pil_resize(input, SIZE, BILINEAR).to(self.mean.device).float() / 255
        return (self.network((pixels - self.mean) / self.std),)
