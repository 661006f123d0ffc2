"""Random weights in the layouts of the official networks, small where the architecture allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_fidelity import feature_extractor_inceptionv3 as fidelity
from torch_fidelity.feature_extractor_base import FeatureExtractorBase

from metrics.official.checkpoint import Weights
from metrics.scenes_clip import build_clip

ARCH = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 16,
        "heads": 2,
        "layers": 1,
    },
}


class _Unloaded(fidelity.FeatureExtractorInceptionV3):
    """The true architecture with random weights: what it is told to load is dropped."""

    def load_state_dict(self, *words, **settings):
        return None


def inception_file(path: Path) -> Path:
    """The true Inception's layout, 95 MB."""
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fidelity, "load_state_dict_from_url", lambda *words, **settings: {})
        network = _Unloaded("random", ["2048"])
    for name, weight in network.named_parameters():
        if name.endswith("conv.weight"):  # torch's default would let activations die out
            torch.nn.init.kaiming_normal_(weight, nonlinearity="relu")
    torch.save(network.state_dict(), path)
    return path


def vgg_file(path: Path) -> dict[str, torch.Tensor]:
    """The true VGG16's layout in half precision, 277 MB; returns what was written."""
    from torchvision.models import vgg16

    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in vgg16(init_weights=False).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        reach = (6 / shape[1:].numel()) ** 0.5 if len(shape) > 1 else 0.1
        copies = 16 if len(shape) == 2 else 1  # drawing 120 million numbers takes seconds
        block = torch.empty((*shape[:-1], shape[-1] // copies)).uniform_(-reach, reach).half()
        state[name] = block.repeat(*[1] * (len(shape) - 1), copies)
    torch.save(state, path)
    return state


def clip_files(folder: Path, wrap: bool = False, quick_gelu: bool = False) -> tuple[Path, Path]:
    """(weights, architecture .json) of a small CLIP; wrap: under the key `state_dict`, as HPSv2."""
    torch.manual_seed(1)
    model = build_clip(ARCH["embed_dim"], ARCH["vision_cfg"], ARCH["text_cfg"], quick_gelu)
    state = model.state_dict()
    weights, arch = folder / "clip.pt", folder / "arch.json"
    torch.save({"state_dict": state} if wrap else state, weights)
    arch.write_text(json.dumps(ARCH))
    return weights, arch


class Tiles(FeatureExtractorBase):
    """Stands for a large network: the mean colour of 2 x 2 tiles, 12 numbers an image."""

    def __init__(self, weights: Weights, variant: str = "", network: object = None) -> None:
        self.layer = self.get_provided_features_list()[0]
        super().__init__("tiles", [self.layer])
        self.seen: list[int] = []  # images in each call

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return ("2048",)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen.append(len(input))
        return (torch.nn.functional.adaptive_avg_pool2d(input.float(), 2).flatten(1),)


def of(path: Path) -> Weights:
    return Weights(path, f"hash of {path.name}")
