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


def windows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Random weights with the names and shapes of a state: matrices and filters keep the size of
    what passes through them, scales are 1 and shifts 0."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            made[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif tensor.ndim > 1:
            made[name] = window(tuple(tensor.shape), (2 / tensor[0].numel()) ** 0.5, generator)
        else:
            ones = name.endswith(("weight", "running_var", "logit_scale"))
            made[name] = torch.full(tensor.shape, float(ones))
    return made


def network(key: str) -> Any:
    """The network of a key of `checkpoint.FILES`, whatever its weights."""
    if key == "inception":
        return _inception()
    with torch.device("meta"):
        if key == "vgg":
            from torchvision.models import vgg16

            return vgg16(init_weights=False)
        from metrics.official.open_clip_model import KINDS, architecture
        from metrics.scenes_clip import build_clip

        kind = KINDS[key]
        config = architecture(kind.arch)
        quick = bool(config.get("quick_gelu", kind.quick_gelu))
        return build_clip(config["embed_dim"], config["vision_cfg"], config["text_cfg"], quick)


def _inception() -> Any:
    """torch-fidelity's network; what it shall load is dropped."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Unloaded(FeatureExtractorInceptionV3):
        def load_state_dict(self, *words: Any, **settings: Any) -> Any:
            return None

    memory = io.BytesIO()
    torch.save({}, memory)
    memory.seek(0)
    return Unloaded("random", ["2048"], feature_extractor_weights_path=memory)


def write(path: Path, key: str) -> Path:
    """The weight file of a key of `checkpoint.FILES`."""
    torch.save(windows(network(key).state_dict()), path)
    return path


def write_all(folder: Path, keys: list[str]) -> list[Path]:
    """Files of these keys under a folder, at their public places."""
    places = {key: folder / (FILES[key].other or FILES[key].path) for key in keys}
    for path in places.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return [write(path, key) for key, path in places.items()]
