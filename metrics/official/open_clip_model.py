"""CLIP and HPSv2.1 from open_clip's architectures and a local weight file; no hub is asked.

Score of an image: 100 cos(image, caption), the mean of which is reported. Published tables give
the cosine (0.32 for 32) or 100 cos (HPS); Hessel et al. 2104.08718 would write 2.5 max(cos, 0).
    CLIP (ViT-B/32, ViT-g/14): caption behind "A photo depicts ", image 224 px by PIL's bicubic
        filter; captions are cut at 77 tokens. OpenAI's weights need the quick GELU. The papers'
        script goes through floats and back and cuts off what is left, which lowers some bytes by
        one: its score differs in the third digit.
    HPSv2.1 (ViT-H/14, 2306.09341): caption alone, the whole image, float bicubic filter.
Everything runs in float32 (the released scripts use 16 bit on a GPU: differences below 0.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.models.weights import load_into, read_state
from metrics import MetricError
from metrics.clip import ImageText, build_clip
from metrics.official.checkpoint import Weights
from metrics.preparations import Preparation, as_is, openai_clip, padded

PREFIX = "A photo depicts "
FORMULA = "100 cos"


@dataclass(frozen=True)
class ClipKind:
    """One official score. arch: open_clip's name. whole: images are not cropped, but padded."""

    label: str
    arch: str
    prefix: str = PREFIX
    quick_gelu: bool = False
    whole: bool = False


KINDS = {
    "clip": ClipKind("CLIP ViT-B/32", "ViT-B-32", quick_gelu=True),
    "clip_g": ClipKind("CLIP ViT-g/14", "ViT-g-14"),
    "hps": ClipKind("HPSv2.1", "ViT-H-14", prefix="", whole=True),
}


class OpenClip(ImageText):
    """An official network with its tokenizer and pixel protocol."""

    def __init__(self, kind: ClipKind, weights: Weights, device: str = "cpu") -> None:
        """Raises as `read_state`, and DecoderError where the file is another network's."""
        import open_clip
        from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
        from open_clip.tokenizer import SimpleTokenizer

        config = open_clip.get_model_config(kind.arch)
        vision, text = config["vision_cfg"], config["text_cfg"]
        model = build_clip(config["embed_dim"], vision, text, kind.quick_gelu)
        self.kind, self.side = kind, int(vision["image_size"])
        self.name = f"{kind.label} ({FORMULA})"
        self.caption = f"caption behind {kind.prefix!r}" if kind.prefix else "caption alone"
        self.tokenizer = SimpleTokenizer(context_length=int(text["context_length"]))
        load_into(model, read_state(weights.path), str(weights.path))
        super().__init__(model.requires_grad_(False), device)
        self.mean, self.std = (
            torch.tensor(x, device=device).view(3, 1, 1)
            for x in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
        )

    def preparation(self, size: int | None) -> Preparation:
        if self.kind.whole:
            return padded(self.side)
        return as_is() if size is None else openai_clip(size, self.side)

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
