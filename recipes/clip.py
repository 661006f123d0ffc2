"""Recipe of the tiny CLIP: open_clip's model and loss on scenes, with one-attribute hard negatives.

Why: the bench asks whether an image shows *this* caption and not one that differs in a single
attribute. A batch is made of families: a scene and three twins in which one attribute has other
values, with the same pixel randomness and template, so that in the contrastive loss (Radford et al.
2103.00020) a scene's strongest competitors differ from it in exactly that attribute.

That loss alone was still at chance on texture, shape and relation after 60,000 images, so a linear
head on the shared space, dropped after training, also names the scene's attributes from the image
and from the caption (`_naming_loss`). One step of 128 images takes about 0.6 s on one core.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from decoders.models.loading.weights import write_tensors
from decoders.tiny.render import render, scene_batch
from decoders.tiny.scenes import (
    ATTRIBUTES,
    SceneSpec,
    alter,
    counterfactual,
    describe,
    scene_captions,
    vocabulary,
)
from decoders.training.trainer import Figures, TrainConfig, Trainer, autocast
from metrics import MetricError
from metrics.clip import CONFIG_FILE, WEIGHTS_FILE, ClipConfig, ImageText, ScenesClip, clip_score
from metrics.images import ImageSet, byte_images
from recipes.stages import Recipe
from recipes.target import ANSWERS, answers

SPECIAL_TOKENS = 3  # pad (0), start (V + 1), end (V + 2), the largest id, which open_clip pools
CONTEXT_TOKENS = 40  # longest caption of the grammar: 36 words, plus start and end
FAMILY_SIZE = 4  # a scene and its twins
_TRIES = 16  # draws of twins before the attribute counts as having too few values
_THING = ("size", "texture", "colour", "shape")
_COLUMNS = ("axis", "kind", "ground", *(f"near {name}" for name in _THING))
_CLASSES = [len(ANSWERS[name]) for name in (*_COLUMNS, *_COLUMNS[3:])]  # columns of `labels_of`
_HEAD_SCALE, _NAMING = 8.0, 0.5  # of the unit features before the head; weight of its loss
_WEIGHTS = {  # how often a twin differs in it: more where learning is slow
    "colour": 0.5,
    "shape": 1.5,
    "texture": 2.0,
    "relation": 3.0,
    "size": 1.0,
    "background": 0.7,
}
_SECOND_OBJECT = 0.3  # share of two-object families whose second object is altered


def default_config() -> ClipConfig:
    """A small ModifiedResNet, which learns textures in few steps, and a 3-layer text tower."""
    tokens = tuple(vocabulary())
    return ClipConfig(
        embed_dim=64,
        vision={"layers": [1, 2, 2, 1], "width": 24, "head_width": 32, "image_size": 64},
        text={
            "context_length": CONTEXT_TOKENS,
            "vocab_size": len(tokens) + SPECIAL_TOKENS,
            "width": 128,
            "heads": 4,
            "layers": 3,
            "no_causal_mask": True,  # an adjective and a relation are read from both sides
        },
        words=tokens,
    )


def make(**settings: Any) -> None:
    """`train recipe=clip`: trains, and writes the files. settings: the fields of `Recipe`. Raises
    DecoderError."""
    recipe = Recipe(**settings)
    train(recipe.config("clip"), recipe.work / "clip", recipe.weights)


def train(
    config: TrainConfig, folder: Path, weights: Path, shape: ClipConfig | None = None
) -> dict[str, Any]:
    """Trains in a folder, writes ``clip.safetensors`` and ``clip.json`` to another, returns
    held-out figures. shape: None, `default_config`."""
    if config.batch < 2 * FAMILY_SIZE or config.batch % FAMILY_SIZE:
        raise MetricError(
            f"train.clip.batch must be a multiple of {FAMILY_SIZE} (a scene and its twins) and at "
            f"least {2 * FAMILY_SIZE}, found {config.batch}"
        )
    torch.manual_seed(config.seed)
    clip = ScenesClip(shape or default_config())
    head = torch.nn.Linear(clip.config.embed_dim, sum(_CLASSES))
    parts = torch.nn.ModuleDict({"clip": clip.model, "head": head})
    trainer = Trainer(parts, config, folder)
    batches = trainer.batches(Families(config.batch // FAMILY_SIZE, config.seed))

    def losses(step: int, share: float) -> tuple[Tensor, Figures]:
        return _loss(parts, clip, *next(batches))

    figures = trainer.fit(losses, lambda: held_out_figures(clip, config.held_out))
    save(clip, weights, figures)
    return figures


def save(clip: ScenesClip, folder: Path, held_out: dict[str, Any]) -> None:
    """Writes clip.safetensors (float16) and clip.json."""
    digest = write_tensors(clip.model.state_dict(), folder / WEIGHTS_FILE, torch.float16)
    config = asdict(clip.config) | {"held_out": held_out}
    text = json.dumps({"sha256": digest, "config": config}, indent=1)
    (folder / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def attribute_preference(
    clip: ImageText, images: ImageSet, pairs: Sequence[tuple[str, str, str]]
) -> float:
    """The share of n images with a higher score for the right caption than for the wrong one; a tie
    is wrong, 0.5 is chance. A score alone is on an arbitrary scale, this is not.

    pairs: n times (right caption, wrong caption, attribute), as
    ``decoders.tiny.scenes.counterfactual`` returns them. Raises as `clip_score`.
    """
    right, wrong = (clip_score(clip, images, [pair[side] for pair in pairs]) for side in (0, 1))
    return float((right > wrong).mean())


def held_out_figures(clip: ScenesClip, count: int) -> dict[str, float]:
    """Figures on the first `count` scenes of the split valid. preference: right over wrong caption,
    the attribute drawn by `counterfactual`; preference_ATTRIBUTE: on every scene that has it."""
    indices = list(range(count))
    scenes = scene_batch("valid", indices)
    images = torch.from_numpy(scenes.images)
    pairs = [counterfactual("valid", i) for i in indices]
    figures = {"preference": attribute_preference(clip, byte_images(images), pairs)}
    for name in ATTRIBUTES:
        rows = [i for i in indices if name != "relation" or scenes.specs[i].relation is not None]
        pairs = [counterfactual("valid", i, attribute=name) for i in rows]
        figures[f"preference_{name}"] = attribute_preference(clip, byte_images(images[rows]), pairs)
    return {name: round(value, 4) for name, value in figures.items()}


@dataclass(frozen=True)
class Families(Dataset[Any]):
    """`count` scenes per step of the split train, each followed by its three twins: images
    [4 * count, 3, 64, 64] float32 in [0, 1], their captions and `labels_of` them. A step's are a
    function of its number and the seed."""

    count: int
    seed: int

    def __getitem__(self, step: int) -> tuple[np.ndarray, list[str], Tensor]:
        specs: list[SceneSpec] = []
        captions: list[str] = []
        pixels: list[np.random.Generator] = []
        first = step * self.count
        drawn = scene_captions("train", range(first, first + self.count), self.seed)
        for index, (_, spec) in enumerate(drawn, start=first):
            for member in family(spec, np.random.default_rng([self.seed, index, 0])):
                specs.append(member)
                captions.append(describe(member, np.random.default_rng([self.seed, index, 1])))
                pixels.append(np.random.default_rng([self.seed, index, 2]))
        return render(specs, pixels)[0], captions, labels_of(specs)


def family(spec: SceneSpec, rng: np.random.Generator) -> list[SceneSpec]:
    """Four scenes that differ from one another in one attribute, the given one first. An attribute
    with fewer than four possible values (size) is crossed with a second one instead: each of its
    two values with each of two values of the other."""
    attributes = [a for a in ATTRIBUTES if a != "relation" or spec.relation is not None]
    weights = np.array([_WEIGHTS[a] for a in attributes])
    attribute, other = rng.choice(attributes, size=2, replace=False, p=weights / weights.sum())
    second = len(spec.objects) == 2 and rng.random() < _SECOND_OBJECT
    members = [spec]
    for _ in range(_TRIES):
        twin = _changed(spec, attribute, second, rng)
        if twin not in members:
            members.append(twin)
        if len(members) == FAMILY_SIZE:
            return members
    key = int(rng.integers(2**31))
    crossed = [_changed(m, other, second, np.random.default_rng(key)) for m in members[:2]]
    return members[:2] + crossed


def _changed(spec: SceneSpec, attribute: str, second: bool, rng: np.random.Generator) -> SceneSpec:
    """The scene with one attribute changed: the scene's, the first object's or the second's."""
    if not second or attribute in ("relation", "background"):
        return alter(spec, attribute, rng)
    swapped = alter(replace(spec, objects=spec.objects[::-1]), attribute, rng)
    return replace(swapped, objects=swapped.objects[::-1])


def labels_of(specs: Sequence[SceneSpec]) -> Tensor:
    """Class numbers of all that a viewer could name, [n, len(_CLASSES)] int64; -100 for nothing.
    Arrangement (alone, side by side, stacked), background kind and colour, then size, texture,
    colour and shape of the left or upper object and of the right or lower one. Which object the
    caption says first is not visible, hence the order by place."""
    rows = []
    for spec in specs:
        answer = dict(zip(ANSWERS, answers("", spec), strict=True))
        far = [answer[f"far {name}"] - 1 for name in _THING]  # 0 says that there is no object
        rows.append([*(answer[name] for name in _COLUMNS), *(i if i >= 0 else -100 for i in far)])
    return torch.tensor(rows)


def _loss(
    parts: torch.nn.ModuleDict,
    clip: ScenesClip,
    images: Tensor,
    captions: list[str],
    labels: Tensor,
) -> tuple[Tensor, Figures]:
    """open_clip's contrastive loss over the batch's B x B pairs, plus the naming loss; nats."""
    from open_clip.loss import ClipLoss

    with torch.no_grad():
        clip.model.logit_scale.clamp_(0, math.log(100))
    with autocast(clip.device):
        pictures = clip.image_features(images)  # [B, E]
        texts = clip.text_features(captions)  # [B, E]
    contrastive: Tensor = ClipLoss()(pictures, texts, clip.model.logit_scale.exp())
    by_image, by_text = (
        _naming_loss(parts["head"](_HEAD_SCALE * x), labels) for x in (pictures, texts)
    )
    figures = {"contrastive": contrastive, "naming_image": by_image, "naming_text": by_text}
    loss = contrastive + _NAMING * (by_image + by_text) / 2
    return loss, {name: value.detach() for name, value in figures.items()}


def _naming_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the attributes of `labels_of`; logits [B, sum of _CLASSES]."""
    pairs = zip(logits.split(_CLASSES, dim=1), labels.unbind(1), strict=True)
    losses = [torch.nn.functional.cross_entropy(part, named) for part, named in pairs]
    return torch.stack(losses).nansum()  # NaN: no scene of the batch has a second object
