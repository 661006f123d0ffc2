"""Recipe of the embedded targets: codes from a caption, some captions dropped for guidance.

Codes are made on the fly by the frozen tokenizer, so every image is seen once. The few codes that
show objects count for more in the loss at first, and like all others at the end, so that the
trained distribution is the data's. At first every code's state halfway up must also name what the
caption says: the loss alone hardly tells a code where to look for it.

A caption is worth little of the target's loss: an encoder that learned from it alone had dropped
the words of shapes (a linear probe named the shape of a scene's only object in 59 % of captions).
So encoder and caption projection learn to read first (`learn_to_read`): a state of the prefix,
normalised as its first layer does, must name every attribute of the scene at every word, by the
nearest of a few directions of fixed length. Objects are named by where they stand.

COrAL's loss is the mean of three: of the next group behind true codes; of the next one behind a
drafted group; and of the drafted group's own codes. Drafts are drawn from the first of these laws,
without guidance.

FlashAR begins with the weights of a target that predicts the next code. At first these stay as they
are and only what is new learns; then they learn too, at a lower rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import TextFeatures
from decoders.cache import GrowingCache
from decoders.models.llamagen_vq import LlamaGenVQ
from decoders.models.nets.flash import FlashTransformer
from decoders.models.nets.grouped import GroupedTransformer
from decoders.models.nets.transformer import Transformer, TransformerConfig
from decoders.models.prompts import WordEncoder
from decoders.noise import sample
from decoders.tiny import scenes
from decoders.tiny.render import SceneBatch, scene_batch
from decoders.tiny.scenes import SceneSpec, caption_tokens, scene_captions
from decoders.training.trainer import Figures, TrainConfig, Trainer, autocast
from recipes.vq import SceneBatches

# ---- reading ------------------------------------------------------------------------------------

FIRST_READ_SCENE = 8_000_000  # train-split indices of which nobody sees the images
NAMING_SHARPNESS = 2.0  # of the choice between directions; a state's entries are of size 1
NOTHING = "none"  # what is not there or not said
AXES = {None: NOTHING, "left": "across", "right": "across", "above": "down", "below": "down"}
_THING = {
    "shape": scenes.SHAPES,
    "texture": scenes.TEXTURES,
    "colour": tuple(scenes.COLOURS),
    "size": scenes.SIZES,
}
ANSWERS: dict[str, tuple[str, ...]] = {
    "axis": (NOTHING, "across", "down"),
    "kind": scenes.BACKGROUND_KINDS,
    "ground": tuple(scenes.BACKGROUND_COLOURS),
    "light": (NOTHING, *scenes.LIGHTS),
    **{f"near {name}": values for name, values in _THING.items()},
    **{f"far {name}": (NOTHING, *values) for name, values in _THING.items()},
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
    return [values.index(labels.get(name, NOTHING)) for name, values in ANSWERS.items()]


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
        scaled = NAMING_SHARPNESS * F.rms_norm(states.float(), states.shape[-1:])
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


def learn_to_read(text: WordEncoder, embedder: Any, config: TrainConfig, folder: Path) -> float:
    """Trains encoder and projection in place. Returns the share (0 to 1) of the attributes of
    held-out captions that a word's state then names rightly, those not mentioned included."""
    naming = Naming(embedder.cap_proj.fc2.out_features)
    parts = nn.ModuleList([text, embedder.cap_proj, naming]).to(text.words.weight.device)

    def losses(step: int, share: float) -> tuple[Tensor, Figures]:
        first = FIRST_READ_SCENE + step * config.batch
        return naming.loss(*word_states(text, embedder, "train", first, config.batch)), {}

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        states, labels = word_states(text, embedder, "valid", 0, config.held_out)
        return {"named": naming.accuracy(states, labels)}

    return Trainer(parts, config, folder).fit(losses, evaluate)["named"]


# ---- drawing ------------------------------------------------------------------------------------

TARGET_CONFIG = TransformerConfig(
    vocab=1024, width=384, layers=16, heads=6, ffn=1024, grid=16, prefix=32, text_width=128,
    prefix_rope="identity",
)  # fmt: skip
DROPPED_SHARE = 0.1  # share of captions dropped
FIRST_SCENE = 1_000_000  # train-split indices the tokenizer never saw
OBJECT_CODE_WEIGHT = 4.0  # weight of a code that shows an object, at the first step; 1 at the last
NAMING_WEIGHT = 0.3  # weight of naming what the caption says, at the first step; 0 at the last
NAMED_LAYERS_SHARE = 0.4  # share of the layers below the states that name it
FROZEN_SHARE = 0.4  # share of FlashAR's training in which the weights that it began with stay
ROWS_AT_ONCE = 48  # rows scored at once
LEAST_COVER = 0.1  # a code shows an object that covers this share of a pixel of its square


@dataclass(frozen=True)
class Batch:
    """Consecutive scenes: B captions, codes [B, L], shows [B, L] bool: codes that show an
    object; labels [B, attributes]: what the captions say, see `answers`."""

    captions: list[str]
    codes: Tensor
    shows: Tensor
    labels: Tensor


def encode_scenes(vq: LlamaGenVQ, scenes: SceneBatch) -> Batch:
    """Encodes scenes by the tokenizer, on its device."""
    device = vq.quantize.embedding.weight.device
    images = torch.from_numpy(scenes.images).to(device)
    with autocast(device):
        codes = vq.encode(images)  # [B, L]
    side = math.isqrt(codes.shape[1])
    cover = torch.from_numpy(scenes.cover).to(device)
    most = F.adaptive_max_pool2d(cover[:, None], side).flatten(1)  # [B, L]
    pairs = zip(scenes.captions, scenes.specs, strict=True)
    labels = torch.tensor([answers(*pair) for pair in pairs])
    return Batch(scenes.captions, codes, most > LEAST_COVER, labels.to(device))


class CaptionProbe(nn.Module):
    """Reads the caption's attributes off the target's states, after `NAMED_LAYERS_SHARE` of its
    layers. Its loss makes the target attend to the caption."""

    def __init__(self, target: Transformer) -> None:
        super().__init__()
        config = target.config
        self.naming = Naming(config.width)
        self.states = torch.empty(0)

        def keep(layer: nn.Module, inputs: object, states: tuple[Tensor, Tensor]) -> None:
            self.states = states[0][:, config.prefix - 1 :]  # [B, L, D], of the last forward

        read_layer = target.layers[round(NAMED_LAYERS_SHARE * config.layers) - 1]
        self.hook = read_layer.register_forward_hook(keep)

    def loss(self, labels: Tensor, drop: Tensor) -> Tensor:
        """Computes nats per attribute at the codes of the last forward, without the rows that have
        no caption. labels [B, attributes], drop [B] bool."""
        states = self.states[~drop]  # [b, L, D]
        each = labels[~drop][:, None].expand(-1, states.shape[1], -1)  # [b, L, attributes]
        return self.naming.loss(states.flatten(0, 1), each.flatten(0, 1))


def losses(
    model: Transformer, text: TextFeatures, codes: Tensor, drop: Tensor, seed: int
) -> dict[str, Tensor]:
    """Computes the cross-entropy in nats of every code, [B, L] float32, by its law: `next`, and of
    a target that refines `refined` [B, L - 1] and `behind` [B, L - 1 - N]."""
    with autocast(codes.device):
        if not isinstance(model, GroupedTransformer) or not model.config.refines:
            return {"next": nats(model.logits(model(text, codes, drop)), codes)}
        cache = GrowingCache()
        logits = model.logits(model(text, codes, drop, cache)).float()  # [B, L, V]
        u = torch.rand(codes[:, 1:].shape, generator=torch.Generator().manual_seed(seed))
        drafts = sample(logits.detach()[:, 1:].softmax(-1), u.to(codes.device))  # [B, L - 1]
        hidden = model.drafted(text, drafts, drop, cache)  # [B, L - 1, D]
        span = model.config.span
        return {
            "next": nats(logits, codes),
            "refined": nats(model.logits(model.refined(hidden)), codes[:, 1:]),
            "behind": nats(model.logits(hidden[:, :-span]), codes[:, 1 + span :]),
        }


def nats(logits: Tensor, codes: Tensor) -> Tensor:
    """Computes cross-entropies [B, T] float32 of logits [B, T, V] at codes [B, T]."""
    flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, codes.flatten(), reduction="none").view_as(codes)


@torch.no_grad()
def evaluate(
    model: Transformer, text: WordEncoder, probe: CaptionProbe, vq: LlamaGenVQ, count: int
) -> dict[str, float]:
    """Measures on the split valid: nats per code with its captions and with none, and the share of
    what they say that the states name."""
    means: dict[str, list[Tensor]] = {}
    for first in range(0, count, ROWS_AT_ONCE):
        batch = encode_scenes(
            vq, scene_batch("valid", range(first, min(first + ROWS_AT_ONCE, count)))
        )
        features = text.encode(batch.captions)
        for ending, without in (("_uncond", True), ("", False)):
            drop = torch.full((len(batch.codes),), without, device=batch.codes.device)
            for name, each in losses(model, features, batch.codes, drop, first).items():
                key = f"valid_nats{'' if name == 'next' else '_' + name}{ending}"
                means.setdefault(key, []).append(each.mean(1))
        share = torch.full(
            (len(batch.codes),), probe.naming.accuracy(probe.states, batch.labels[:, None])
        )
        means.setdefault("valid_naming", []).append(share)
    return {key: float(torch.cat(each).mean()) for key, each in means.items()}


def train(
    model: Transformer, text: WordEncoder, vq: LlamaGenVQ, config: TrainConfig, folder: Path
) -> dict[str, Any]:
    """Trains a target, and its text encoder unless that is frozen, on the tokenizer's device;
    returns its figures."""
    device = vq.quantize.embedding.weight.device
    probe = CaptionProbe(model)
    parts = nn.ModuleDict({"model": model, "text": text, "probe": probe}).to(device)
    before = model.backbone() if isinstance(model, FlashTransformer) else []
    trainer = Trainer(parts, config, folder, slow=before)
    batches = trainer.batches(SceneBatches(config.batch, FIRST_SCENE))

    def step_losses(step: int, share: float) -> tuple[Tensor, Figures]:
        for parameter in before:
            parameter.requires_grad_(share >= FROZEN_SHARE)
        batch = encode_scenes(vq, next(batches))
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        drop = (torch.rand(config.batch, generator=generator) < DROPPED_SHARE).to(device)  # [B]
        heavier = OBJECT_CODE_WEIGHT + (1 - OBJECT_CODE_WEIGHT) * share
        weights = torch.where(batch.shows, heavier, 1.0)  # [B, L]
        weights = weights / weights.mean()
        ids, mask = (x.to(device) for x in text.tokenizer(batch.captions))
        every = losses(model, text(ids, mask), batch.codes, drop, step)
        size = weights.shape[1]
        means = {k: (each * weights[:, size - each.shape[1] :]).mean() for k, each in every.items()}
        naming = probe.loss(batch.labels, drop)  # of a target that refines, at its drafts
        figures = {key: mean.detach() for key, mean in (means | {"naming": naming}).items()}
        return torch.stack([*means.values()]).mean() + NAMING_WEIGHT * (1 - share) * naming, figures

    figures = trainer.fit(step_losses, lambda: evaluate(model, text, probe, vq, config.held_out))
    probe.hook.remove()
    return figures
