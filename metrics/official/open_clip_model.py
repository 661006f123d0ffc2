"""CLIP and HPSv2.1 from open_clip's architectures and a local weight file; no hub is asked.

Score of an image: 100 cos(image, caption), the mean of which is reported. Published tables give
the cosine (0.32 for 32) or 100 cos (HPS); Hessel et al. 2104.08718 would write 2.5 max(cos, 0).
    CLIP (ViT-B/32, ViT-g/14): caption behind "A photo depicts ", image 224 px by PIL's bicubic
        filter; captions are cut at 77 tokens. OpenAI's weights need the quick GELU.
    HPSv2.1 (ViT-H/14, 2306.09341): caption alone, the whole image, float bicubic filter.
Everything runs in float32 (the released scripts use 16 bit on a GPU: differences below 0.1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.errors import did_you_mean
from decoders.models.checkpoint import read_state
from decoders.models.weights import load_into
from metrics import MetricError
from metrics.clip import ImageText, build_clip
from metrics.official.checkpoint import Weights
from metrics.preparations import BICUBIC, pil_resize

PREFIX = "A photo depicts "
_CONFIG_KEYS = ("embed_dim", "vision_cfg", "text_cfg")


@dataclass(frozen=True)
class ClipKind:
    """One official score. arch: open_clip's name. float_pixels: resize floats, not bytes."""

    label: str
    arch: str
    prefix: str = PREFIX
    quick_gelu: bool = False
    float_pixels: bool = False


KINDS = {
    "clip": ClipKind("CLIP ViT-B/32", "ViT-B-32", quick_gelu=True),
    "clip_g": ClipKind("CLIP ViT-g/14", "ViT-g-14"),
    "hps": ClipKind("HPSv2.1", "ViT-H-14", prefix="", float_pixels=True),
}


class OpenClip(ImageText):
    """An official network with its tokenizer and pixel protocol; takes any square."""

    def __init__(
        self, kind: ClipKind, weights: Weights, *, arch: str | None = None, device: str = "cpu"
    ) -> None:
        """arch: another architecture of open_clip, by name or as a JSON file of its settings.

        Raises MetricError for an unknown architecture, and as `read_state`.
        """
        from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
        from open_clip.tokenizer import SimpleTokenizer

        model, config = build(kind, arch)
        text = config["text_cfg"]
        self.kind, self.side = kind, int(config["vision_cfg"]["image_size"])
        self.tokenizer = SimpleTokenizer(context_length=int(text["context_length"]))
        if text["vocab_size"] != self.tokenizer.vocab_size:
            raise MetricError(
                f"the architecture has {text['vocab_size']} words, CLIP's tokenizer "
                f"{self.tokenizer.vocab_size}"
            )
        load_into(model, read_state(weights.path), str(weights.path))
        super().__init__(model.requires_grad_(False), device)
        self.mean, self.std = (
            torch.tensor(x, device=device).view(3, 1, 1)
            for x in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
        )

    def pixels(self, images: Tensor) -> Tensor:
        if self.kind.float_pixels:
            from torchvision.transforms import functional as F

            side = [self.side, self.side]
            return F.resize(images.float() / 255, side, F.InterpolationMode.BICUBIC, antialias=True)
        return pil_resize(images, self.side, BICUBIC).float() / 255

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """The prefix put before each, cut at the context's length; MetricError for an empty one."""
        for row, caption in enumerate(captions):
            if not caption.strip():
                raise MetricError(f"caption {row} is empty; a score needs its text")
        tokens: Tensor = self.tokenizer([self.kind.prefix + caption for caption in captions])
        return tokens  # [n, L]

    def note(self, captions: Sequence[str]) -> str:
        most = int(self.tokenizer.context_length) - 2  # besides start and end
        long = sum(len(self.tokenizer.encode(self.kind.prefix + text)) > most for text in captions)
        if not long:
            return ""
        return f"{long} of {len(captions)} captions cut at {most + 2} tokens, the rest not scored"


def build(kind: ClipKind, arch: str | None = None) -> tuple[Any, dict[str, Any]]:
    """The network, random weights, and the settings of its architecture."""
    config = architecture(arch or kind.arch)
    quick = bool(config.get("quick_gelu", kind.quick_gelu))
    return build_clip(config["embed_dim"], config["vision_cfg"], config["text_cfg"], quick), config


def architecture(name: str) -> dict[str, Any]:
    """open_clip's settings (embed_dim, vision_cfg, text_cfg) by name or from a .json file.

    Raises MetricError for an unknown name (nearest ones shown) and for what is no plain CLIP.
    """
    import open_clip

    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise MetricError(f"the architecture {path} does not exist")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise MetricError(f"{path} is not JSON: {error}") from error
    else:
        config = open_clip.get_model_config(name)
        if config is None:
            near = did_you_mean(name, open_clip.list_models()) or "."
            raise MetricError(
                f"open_clip has no architecture {name!r}{near} "
                "A .json file of open_clip's settings is taken as well"
            )
    if not isinstance(config, dict) or set(config) - {"quick_gelu"} != set(_CONFIG_KEYS):
        raise MetricError(
            f"{name} is no plain CLIP: its settings must be {', '.join(_CONFIG_KEYS)}, found "
            f"{', '.join(map(str, config))}"
        )
    return config
