"""What a caption says, as questions with answers: the word encoder learns to read before the target
learns to draw, and the target's states are read again while it learns.

What a caption says about an object is worth some two nats an attribute, of the 580 of an image. An
encoder that learned from the target's loss alone had dropped the words of shapes and textures: a
linear probe named the shape of a scene's only object in 59 % of captions. Here encoder and caption
projection learn to say the whole scene at every word: a state of the prefix, normalised as its
first layer does, must name every attribute by the nearest of a few directions of fixed length, so
what it says is large. Objects are named by where they stand, not by their order in the caption.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.models.prompts import WordEncoder
from decoders.tiny.captions import (
    BACKGROUND_COLOURS,
    BACKGROUND_KINDS,
    COLOURS,
    LIGHTS,
    SHAPES,
    SIZES,
    TEXTURES,
    SceneSpec,
    caption_tokens,
)
from decoders.tiny.scenes import scene_captions
from decoders.training.trainer import Figures, TrainConfig, Trainer, autocast

OFFSET = 8_000_000  # train-split indices of which nobody sees the images
SHARPNESS = 2.0  # of the choice between directions; a state's entries are of size 1
NONE = "none"  # what is not there or not said
AXES = {None: NONE, "left": "across", "right": "across", "above": "down", "below": "down"}
_THING = {"shape": SHAPES, "texture": TEXTURES, "colour": tuple(COLOURS), "size": SIZES}
ANSWERS: dict[str, tuple[str, ...]] = {
    "axis": (NONE, "across", "down"),
    "kind": BACKGROUND_KINDS,
    "ground": tuple(BACKGROUND_COLOURS),
    "light": (NONE, *LIGHTS),
    **{f"near {name}": values for name, values in _THING.items()},
    **{f"far {name}": (NONE, *values) for name, values in _THING.items()},
}


def answers(caption: str, spec: SceneSpec) -> list[int]:
    """Returns the index in `ANSWERS` of every attribute. near: the object that stands left or
    above, or the only one; far: the other."""
    things = spec.objects[::-1] if spec.relation in ("right", "below") else spec.objects
    labels = {
        "axis": AXES[spec.relation],
        "kind": spec.background_kind,
        "ground": spec.background_colour,
    }
    if {"lit", "light"} & set(caption_tokens(caption)):
        labels["light"] = spec.light
    for where, thing in zip(("near", "far"), things, strict=False):
        labels |= {f"{where} {name}": getattr(thing, name) for name in _THING}
    return [values.index(labels.get(name, NONE)) for name, values in ANSWERS.items()]


class Naming(nn.Module):
    """Names every attribute from a state, by the nearest of a few directions of fixed length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.directions = nn.ParameterList(
            nn.Parameter(torch.randn(len(values), width)) for values in ANSWERS.values()
        )

    def forward(self, states: Tensor) -> list[Tensor]:
        """Computes float32 logits [..., values] of each attribute of `ANSWERS` from states [...,
        D]."""
        scaled = SHARPNESS * F.rms_norm(states.float(), states.shape[-1:])
        return [scaled @ F.normalize(table, dim=-1).T for table in self.directions]

    def accuracy(self, states: Tensor, labels: Tensor) -> float:
        """Returns the share of labels [..., attributes] that states [..., D] name rightly."""
        named = torch.stack([logits.argmax(-1) for logits in self(states)], -1)
        return float((named == labels).float().mean())

    def loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Computes mean nats per attribute; states [n, D], labels [n, attributes] int64."""
        pairs = zip(self(states), labels.T, strict=True)
        return torch.stack([F.cross_entropy(logits, right) for logits, right in pairs]).mean()


def word_states(
    text: WordEncoder, embedder: Any, split: str, first: int, count: int
) -> tuple[Tensor, Tensor]:
    """Computes the prefix's states [n, D] at the n words of `count` captions, and what the caption
    of each word says, int64 [n, attributes]."""
    pairs = scene_captions(split, range(first, first + count))
    device = text.words.weight.device
    ids, mask = (x.to(device) for x in text.tokenizer([caption for caption, _ in pairs]))
    with autocast(device):
        drop = torch.zeros(count, dtype=torch.bool, device=device)
        states = embedder(text(ids, mask), drop)  # [count, P, D]
    labels = torch.tensor([answers(*pair) for pair in pairs]).to(device)  # [count, attributes]
    return states[mask], labels[mask.nonzero()[:, 0]]


def learn(text: WordEncoder, embedder: Any, config: TrainConfig, folder: Path) -> float:
    """Trains encoder and projection in place. Returns the share (0 to 1) of the attributes of
    held-out captions that a word's state then names rightly, those not mentioned included."""
    naming = Naming(embedder.cap_proj.fc2.out_features)
    parts = nn.ModuleList([text, embedder.cap_proj, naming]).to(text.words.weight.device)

    def losses(step: int, share: float) -> tuple[Tensor, Figures]:
        first = OFFSET + step * config.batch
        return naming.loss(*word_states(text, embedder, "train", first, config.batch)), {}

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        states, labels = word_states(text, embedder, "valid", 0, config.held_out)
        return {"named": naming.accuracy(states, labels)}

    return Trainer(parts, config, folder).fit(losses, evaluate)["named"]
