"""Inception-v3 features of FID and KID: pool3, 2048 numbers an image, named resizings.

The network is torch-fidelity's `inception-v3-compat` (the TensorFlow graph of 2015-12-05, which
clean-fid uses as well); only the way to its 299 x 299 input differs:
    inception, clean-resize: PIL bicubic, antialiased, on float channels (clean-fid's mode "clean")
    inception, tf-resize:    TensorFlow 1's bilinear, not antialiased (torch-fidelity's own)
    inception, bilinear-resize: that of tensors, not antialiased
Figures of two of them must not be compared.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from metrics.errors import MetricError
from metrics.official.checkpoint import Weights, read_state
from metrics.official.extractor import OfficialFeatures
from metrics.official.resize import RESIZINGS

LAYER = "2048"
SIZE = 299


class InceptionFeatures(OfficialFeatures):
    """uint8 images [n, 3, H, W], square -> (features [n, 2048] float32,)."""

    layers, size = (LAYER,), SIZE

    def __init__(self, weights: Weights, resize: str = "clean", network: Any = None) -> None:
        """weights: torch-fidelity's file. network: that of another `InceptionFeatures`, shared.

        Raises MetricError where the file does not fit (see ``checkpoint.read_state``).
        """
        super().__init__(f"inception, {resize}-resize", [LAYER])
        if resize not in RESIZINGS:
            raise MetricError(f"resize must be one of {', '.join(RESIZINGS)}, found {resize!r}")
        self.resize = resize
        self.network = _network(weights) if network is None else network

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        return (self.of_pixels(RESIZINGS[self.resize].apply(input, SIZE)),)

    def of_pixels(self, pixels: Tensor) -> Tensor:
        """Features [n, 2048] of float pixels [n, 3, 299, 299] in [0, 255], resized before."""
        hidden = (pixels.to(next(self.network.parameters()).device) - 128) / 128
        for name, stage in self.network.named_children():  # in the order of the forward pass
            if name != "fc":
                hidden = stage(hidden)
        return hidden.flatten(1)  # [n, 2048, 1, 1] -> [n, 2048]


def _network(weights: Weights) -> FeatureExtractorInceptionV3:
    """torch-fidelity's network. It unpickles whatever it is given, so it gets the tensors that were
    read safely, written anew in memory."""
    memory = io.BytesIO()
    torch.save(read_state(weights.path), memory)
    memory.seek(0)
    try:
        return FeatureExtractorInceptionV3(
            "inception-v3-compat", [LAYER], feature_extractor_weights_path=memory
        )
    except RuntimeError as error:
        raise MetricError(f"{weights.path} is not the FID Inception: {str(error)[:400]}") from error
