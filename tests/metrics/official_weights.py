"""Random weights in the layouts of the official networks, small where the architecture allows."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from metrics.features import Extractor
from metrics.official.checkpoint import Weights
from metrics.scenes_clip import build_clip

ARCH = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def clip_files(folder: Path, wrap: bool = False, quick_gelu: bool = False) -> tuple[Path, Path]:
    """(weights, architecture .json) of a small CLIP; wrap: under the key `state_dict`, as HPSv2."""
    torch.manual_seed(1)
    model = build_clip(ARCH["embed_dim"], ARCH["vision_cfg"], ARCH["text_cfg"], quick_gelu)
    state = model.state_dict()
    weights, arch = folder / "clip.pt", folder / "arch.json"
    torch.save({"state_dict": state} if wrap else state, weights)
    arch.write_text(json.dumps(ARCH))
    return weights, arch


class Tiles(Extractor):
    """Stands for a large network: the mean colour of 2 x 2 tiles, 12 numbers an image."""

    layer, size = "2048", 224

    def __init__(self, weights: Weights, variant: str = "", network: object = None) -> None:
        super().__init__("tiles", [self.layer])
        self.seen: list[int] = []  # images in each call

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen.append(len(input))
        return (torch.nn.functional.adaptive_avg_pool2d(input.float(), 2).flatten(1),)


def of(path: Path) -> Weights:
    return Weights(path, f"hash of {path.name}")
