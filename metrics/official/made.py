"""The official networks' weight files with random numbers: for dry runs and tests, no figures.

Names, shapes and the form of the file are the public ones. A tensor is a window that runs over a
short row of numbers, as torch stores views: files of 600 MB shrink to less than one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.official.checkpoint import FILES

STEPS = (13, 7, 3, 1)  # from one entry to the next, along up to four dimensions


def window(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """A random tensor whose values repeat along its diagonals, of this standard deviation."""
    strides = STEPS[-len(shape) :]
    size = 1 + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    return (scale * torch.randn(size, generator=generator)).as_strided(shape, strides)


def windows(state: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Random weights with the names and shapes of a state: matrices and filters keep the size of
    what passes through them, scales are 1 and shifts 0."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            made[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif tensor.ndim > 1:
            fan = tensor[0].numel()
            made[name] = window(tuple(tensor.shape), (2 / fan) ** 0.5, generator)
        else:
            ones = name.endswith(("weight", "running_var", "logit_scale"))
            made[name] = torch.full(tensor.shape, float(ones))
    return made


def write_inception(path: Path) -> Path:
    """torch-fidelity's file of the FID Inception."""
    torch.save(windows(_inception().state_dict()), path)
    return path


def _inception() -> Any:
    """The network; what it is told to load is dropped."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Unloaded(FeatureExtractorInceptionV3):
        def load_state_dict(self, *words: Any, **settings: Any) -> Any:
            return None

    memory = io.BytesIO()
    torch.save({}, memory)
    memory.seek(0)
    return Unloaded("random", ["2048"], feature_extractor_weights_path=memory)


def write_vgg(path: Path) -> Path:
    """torchvision's VGG16."""
    from torchvision.models import vgg16

    with torch.device("meta"):
        state = vgg16(init_weights=False).state_dict()
    torch.save(windows(state), path)
    return path


def write_clip(path: Path, metric: str = "clip") -> Path:
    """A CLIP of open_clip's architecture for `clip`, `clip_g` or `hps`."""
    from metrics.official.open_clip_model import KINDS, architecture
    from metrics.scenes_clip import build_clip

    kind = KINDS[metric]
    config = architecture(kind.arch)
    with torch.device("meta"):
        quick = bool(config.get("quick_gelu", kind.quick_gelu))
        model = build_clip(config["embed_dim"], config["vision_cfg"], config["text_cfg"], quick)
    torch.save(windows(model.state_dict()), path)
    return path


def write_all(folder: Path, keys: list[str]) -> list[Path]:
    """Files of these keys of `checkpoint.FILES` under a folder, at their public places."""
    made = []
    for key in keys:
        file = FILES[key]
        path = folder / (file.other or file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if key == "inception":
            made.append(write_inception(path))
        elif key == "vgg":
            made.append(write_vgg(path))
        else:
            made.append(write_clip(path, key))
    return made
