"""Weight files of the official networks with random numbers, for dry runs and tests, no figures;
and small networks in their place.

Names, shapes and the form of the file are the public ones. A tensor is a window that runs over a
short row of numbers, as torch stores views: files of 600 MB shrink to less than one.
"""

import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor

from decoders.tiny.render import scene_batch
from metrics.clip import build_clip
from metrics.fid import Moments, distance_to
from metrics.images import Extractor, Preparation, centre_crop, to_pil
from metrics.networks import CLIP_KINDS, NETWORKS, PUBLIC_FILES, ClipKind, OpenClip, Weights

STEPS = (13, 7, 3, 1)  # from one entry to the next, along up to four dimensions
ARCH = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def fid(generated: Tensor, reference: Tensor) -> float:
    return distance_to(Moments.of(reference))(Moments.of(generated))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth spots of random colours."""
    random = np.random.default_rng(seed)
    spots = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((width, height), Image.Resampling.BILINEAR)


def write_scenes(folder: Path, split: str, count: int) -> list[str]:
    """0.png, 1.png, ... of scenes in a new folder; returns their captions."""
    folder.mkdir(parents=True)
    scenes = scene_batch(split, range(count))
    for number, image in enumerate(torch.from_numpy(scenes.images)):
        to_pil((image * 255).round().to(torch.uint8)).save(folder / f"{number}.png")
    return list(scenes.captions)


def windows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Random weights with the names and shapes of a state: matrices and filters keep the size of
    what passes through them, scales are 1 and shifts 0."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            made[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif tensor.ndim > 1:
            scale, strides = (2 / tensor[0].numel()) ** 0.5, STEPS[-tensor.ndim :]
            size = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, strides, strict=True))
            row = scale * torch.randn(size, generator=generator)
            made[name] = row.as_strided(tensor.shape, strides)
        else:
            ones = name.endswith(("weight", "running_var", "logit_scale"))
            made[name] = torch.full(tensor.shape, float(ones))
    return made


def network(key: str) -> Any:
    """The network of a key of `networks.FILES`, whatever its weights."""
    if key == "inception":
        return _inception()
    with torch.device("meta"):
        if key == "vgg":
            from torchvision.models import vgg16

            return vgg16(init_weights=False)
        config = open_clip.get_model_config(CLIP_KINDS[key].arch)
        return build_clip(config["embed_dim"], config["vision_cfg"], config["text_cfg"])


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
    """The weight file of a key of `networks.FILES`."""
    torch.save(windows(network(key).state_dict()), path)
    return path


def write_all(folder: Path, keys: list[str]) -> list[Path]:
    """Files of these keys under a folder, at their public places."""
    places = {key: folder / (PUBLIC_FILES[key].other or PUBLIC_FILES[key].path) for key in keys}
    for path in places.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return [write(path, key) for key, path in places.items()]


def clip_file(folder: Path, wrap: bool = False, quick_gelu: bool = False) -> Path:
    """Weights of a small CLIP; wrap: under the key `state_dict`, as HPSv2."""
    torch.manual_seed(1)
    model = build_clip(ARCH["embed_dim"], ARCH["vision_cfg"], ARCH["text_cfg"], quick_gelu)
    state, weights = model.state_dict(), folder / "clip.pt"
    torch.save({"state_dict": state} if wrap else state, weights)
    return weights


def small_kind(key: str) -> ClipKind:
    """An official score on the architecture of `clip_file`."""
    if "small" not in open_clip.list_models():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "small.json"
            path.write_text(json.dumps(ARCH))
            open_clip.add_model_config(path)
    return replace(CLIP_KINDS[key], arch="small")


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks in place of the official ones."""
    for key in NETWORKS:
        made = partial(OpenClip, small_kind(key)) if key in CLIP_KINDS else Tiles
        monkeypatch.setitem(NETWORKS, key, made)


class Tiles(Extractor):
    """Stands for a large network: the mean colour of 2 x 2 tiles, 12 numbers an image."""

    name, layer = "tiles", "2048"

    def __init__(self, weights: Weights | None = None, *_: object) -> None:
        super().__init__()

    def preparation(self, size: int | None) -> Preparation:
        return centre_crop(size or 16)

    def forward(self, images: Tensor) -> Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(images.float(), 2).flatten(1)

    def classes(self, features: Tensor) -> Tensor:
        return features.double().softmax(1)


def of(path: Path) -> Weights:
    return Weights(path, f"hash of {path.name}")
