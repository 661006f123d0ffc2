"""The tiny CLIP of the "scenes" images: open_clip's own model, a word tokenizer, checked weights.

Why: the official CLIP and Inception networks were not trained on 64x64 procedural scenes and cannot
be downloaded where the bench runs. This one is built by ``open_clip.model.CLIP`` from open_clip's
own configuration and trained by ``metrics.train_clip`` with open_clip's loss. It gives the
CLIP score, attribute preference and the features of FID, KID, precision and recall. Tables name
these ``CLIP (scenes)`` and ``FID (scenes-clip)``.

On disk: ``clip.safetensors`` (float16) and ``clip.json`` (model configuration, vocabulary, pixel
mean and deviation, SHA-256 of the weights, held-out figures).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.models.text.words import WordTokenizer
from decoders.models.weights import load_into, read_json, read_state, write_tensors
from metrics import MetricError
from metrics.clip import ImageText, build_clip
from metrics.images import as_unit_float
from metrics.preparations import Preparation, as_is, centre_crop

WEIGHTS_DIR = Path(__file__).resolve().parents[1] / "decoders" / "tiny" / "weights"
WEIGHTS_FILE, CONFIG_FILE = "clip.safetensors", "clip.json"
FORMAT = 1
_SPECIALS = 3  # pad (0), start (V + 1), end (V + 2); the end is the largest id: open_clip's pooling


@dataclass(frozen=True)
class ClipConfig:
    """Everything that shapes the network; ``vision`` and ``text`` are open_clip's own settings."""

    embed_dim: int
    vision: dict[str, Any]
    text: dict[str, Any]
    words: tuple[str, ...]
    mean: float = 0.5  # pixels in [0, 1] become (pixel - mean) / std
    std: float = 0.25
    held_out: dict[str, Any] = field(default_factory=dict)  # figures, for the reader only

    @property
    def image_size(self) -> int:
        """Side of the square image in pixels."""
        return int(self.vision["image_size"])


class ScenesClip(ImageText):
    """The network with its tokenizer and pixel normalisation, in evaluation mode unless trained."""

    name = "CLIP (scenes, 100 cos)"

    def __init__(self, config: ClipConfig, device: str | torch.device = "cpu") -> None:
        """A randomly initialised model of this configuration (torch's global generator)."""
        vocab, words = int(config.text["vocab_size"]), len(config.words)
        if vocab != words + _SPECIALS:
            raise MetricError(
                f"text.vocab_size is {vocab}, but {words} words and {_SPECIALS} specials make "
                f"{words + _SPECIALS}"
            )
        super().__init__(build_clip(config.embed_dim, config.vision, config.text), device)
        self.config = config
        self.mean, self.std = config.mean, config.std
        self.words = WordTokenizer(config.words, int(config.text["context_length"]) - 2)
        self.sha256 = ""  # of the weights file; empty while untrained

    def preparation(self, size: int | None) -> Preparation:
        return as_is() if size is None else centre_crop(self.config.image_size)

    def pixels(self, images: Tensor) -> Tensor:
        """uint8, or float in [0, 1]; MetricError for a wrong shape, dtype or range."""
        return as_unit_float(images, self.config.image_size)

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """Start, words, end, padding, [n, L]. Raises DecoderError for a caption that is empty, too
        long or has other words than the scenes'."""
        start = len(self.words.index) + 1
        ids = torch.zeros(len(captions), self.words.prefix + 2, dtype=torch.int64)
        for row, caption in enumerate(captions):
            line = [start, *self.words.ids(caption), start + 1]  # the end: see `_SPECIALS`
            ids[row, : len(line)] = torch.tensor(line)
        return ids


def load(folder: Path | None = None, device: str | torch.device = "cpu") -> ScenesClip:
    """The trained model from ``clip.json`` and ``clip.safetensors`` of a folder (None: embedded).

    Raises DecoderError when a file is missing, the SHA-256 differs from the configuration's, or a
    tensor's name or shape does not fit; MetricError for another format. Nothing is unpickled.
    """
    folder = WEIGHTS_DIR if folder is None else folder
    path, described = folder / WEIGHTS_FILE, folder / CONFIG_FILE
    content = read_json(described)
    if content.get("format") != FORMAT:
        raise MetricError(f"{described} has format {content.get('format')!r}, expected {FORMAT}")
    tensors = read_state(path, content["sha256"])
    config = ClipConfig(**{**content["config"], "words": tuple(content["config"]["words"])})
    clip = ScenesClip(config, device)
    load_into(clip.model, tensors, str(path))
    clip.sha256 = content["sha256"]
    return clip


def save(clip: ScenesClip, folder: Path, held_out: dict[str, Any]) -> str:
    """Writes both files (float16 weights), each atomically; returns the SHA-256 of the weights."""
    part = folder / (WEIGHTS_FILE + ".part")
    digest = write_tensors(clip.model.state_dict(), part, torch.float16)
    config = asdict(clip.config) | {"held_out": held_out}
    body = {"format": FORMAT, "sha256": digest, "config": config}
    described = folder / (CONFIG_FILE + ".part")
    described.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / WEIGHTS_FILE)
    described.replace(folder / CONFIG_FILE)
    return digest
