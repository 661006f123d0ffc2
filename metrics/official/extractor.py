"""What every official feature extractor tells torch-fidelity, which asks its classes and not only
its instances."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase


class OfficialFeatures(FeatureExtractorBase):
    """uint8 images [n, 3, H, W] -> features; `layers`: what it offers, the default first."""

    layers: ClassVar[tuple[str, ...]]
    size: ClassVar[int]  # side of the network's input in pixels

    @classmethod
    def get_provided_features_list(cls) -> tuple[str, ...]:
        return cls.layers

    @classmethod
    def get_default_feature_layer_for_metric(cls, metric: str) -> str:
        return cls.layers[0]

    @staticmethod
    def can_be_compiled() -> bool:
        return False

    @classmethod
    def get_dummy_input_for_compile(cls) -> Tensor:
        return torch.zeros(2, 3, cls.size, cls.size, dtype=torch.uint8)
