"""Recipe of the embedded target: next-code prediction on scenes, captions dropped for guidance.

The text encoder learns to read first (`reading`) and is then trained with it. Codes are made on the
fly by the frozen tokenizer, so every image is seen once. Most codes of a scene are background
texture, whose noise no caption predicts. The few codes that show objects count for more in the loss
at first, and like all others at the end, so that the trained distribution is the data's. And at
first every code's state halfway up must also name what the caption says, as an attribute is worth
two nats of an image's 580: the loss alone hardly tells a code where to look for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import TextFeatures
from decoders.models.text.words import WordEncoder, WordEncoderConfig
from decoders.models.transformer import Transformer, TransformerConfig
from decoders.models.vq.llamagen_vq import LlamaGenVQ
from decoders.tiny.recipes import reading
from decoders.tiny.recipes.scenes import SceneBatches, stream
from decoders.tiny.scenes import SceneBatch, scene_batch, vocabulary
from decoders.training.trainer import Figures, TrainConfig, Trainer, mixed

logger = logging.getLogger(__name__)
CONFIG = TransformerConfig(
    vocab=1024,
    width=384,
    layers=16,
    heads=6,
    ffn=1024,
    grid=16,
    prefix=32,
    text_width=128,
    prefix_rope="identity",
)
DROP = 0.1  # share of captions dropped
OFFSET = 1_000_000  # train-split indices the tokenizer never saw
OBJECTS = 4.0  # weight of a code that shows an object, at the first step; 1 at the last
NAMING = 0.3  # weight of naming what the caption says, at the first step; 0 at the last
NAMED = 0.4  # share of the layers below the states that name it
PART = 48  # rows scored at once
SHOWS = 0.1  # a code shows an object that covers this share of a pixel of its square


class TextToCodes(nn.Module):
    """Text encoder and target as one module, so that one checkpoint holds both."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.text = WordEncoder(
            WordEncoderConfig(tuple(vocabulary()), width=cfg.text_width, prefix=cfg.prefix)
        )
        self.target = Transformer(cfg)

    def features(self, captions: list[str]) -> TextFeatures:
        ids, mask = self.text.tokenizer(captions)
        device = self.target.output.weight.device
        return self.text(ids.to(device), mask.to(device))


@dataclass(frozen=True)
class Batch:
    """Consecutive scenes: B captions, codes [B, L], shows [B, L] bool: codes that show an
    object; said [B, attributes]: what the captions say, see `reading.answers`."""

    captions: list[str]
    codes: Tensor
    shows: Tensor
    said: Tensor

    def weights(self, objects: float) -> Tensor:
        """[B, L] float32 of mean 1, where a code that shows an object weighs `objects` times."""
        weights = torch.where(self.shows, objects, 1.0)
        return weights / weights.mean()


def encoded(vq: LlamaGenVQ, scenes: SceneBatch) -> Batch:
    """Scenes as the tokenizer's codes."""
    device = next(vq.parameters()).device
    images = torch.from_numpy(scenes.images).to(device)
    with mixed(device):
        codes = vq.encode(images)  # [B, L]
    cover = torch.from_numpy(scenes.cover).to(device)
    side = math.isqrt(codes.shape[1])
    most = F.adaptive_max_pool2d(cover[:, None], side).flatten(1)  # [B, L]
    pairs = zip(scenes.captions, scenes.specs, strict=True)
    said = torch.tensor([reading.answers(*pair) for pair in pairs]).to(device)
    return Batch(scenes.captions, codes, most > SHOWS, said)


class Named(nn.Module):
    """What the target's states at the codes, NAMED of the layers up, say of the caption."""

    def __init__(self, target: Transformer) -> None:
        super().__init__()
        cfg = target.cfg
        self.naming = reading.Naming(cfg.width)
        self.prefix = cfg.prefix
        self.states = torch.empty(0)
        asked = target.layers[round(NAMED * cfg.layers) - 1]
        self.hook = asked.register_forward_hook(self._keep)

    def _keep(self, layer: nn.Module, given: object, states: Tensor) -> None:
        self.states = states  # [B, P + L - 1, D]

    def share(self, said: Tensor) -> float:
        """Which share of the attributes the states of the last forward name rightly, at all
        codes."""
        states = self.states[:, self.prefix - 1 :]  # [B, L, D]
        return float((self.naming.named(states) == said[:, None]).float().mean())

    def loss(self, said: Tensor, drop: Tensor) -> Tensor:
        """Nats an attribute at the codes of the last forward; rows without caption are not asked.
        said [B, attributes], drop [B] bool."""
        states = self.states[:, self.prefix - 1 :][~drop]  # [b, L, D]
        each = said[~drop][:, None].expand(-1, states.shape[1], -1)  # [b, L, attributes]
        return self.naming.loss(states.flatten(0, 1), each.flatten(0, 1))


def next_code_loss(
    model: TextToCodes,
    captions: list[str],
    codes: Tensor,
    drop: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Mean cross-entropy in nats per code, float32; codes [B, L], drop [B] bool, weights [B, L] of
    mean 1."""
    with mixed(codes.device):
        hidden = model.target(model.features(captions), codes, drop)  # [B, L, D]
        logits = model.target.logits(hidden)  # [B, L, V]
    logits = logits.float().flatten(0, 1)  # [B L, V]
    if weights is None:
        return F.cross_entropy(logits, codes.flatten())
    each = F.cross_entropy(logits, codes.flatten(), reduction="none")  # [B L]
    return (each * weights.flatten()).mean()


@torch.no_grad()
def evaluate(model: TextToCodes, named: Named, vq: LlamaGenVQ, count: int) -> dict[str, float]:
    """On the split valid: cross-entropy (nats) with its captions and with none, and the share of
    what they say that the states name."""
    figures: dict[str, list[float]] = {"nats_uncond": [], "nats": [], "naming": []}
    for first in range(0, count, PART):
        scenes = scene_batch("valid", range(first, min(first + PART, count)))
        batch = encoded(vq, scenes)
        for name, without in (("nats_uncond", True), ("nats", False)):
            drop = torch.full((len(batch.codes),), without, device=batch.codes.device)
            figures[name].append(float(next_code_loss(model, batch.captions, batch.codes, drop)))
        figures["naming"].append(named.share(batch.said))
    return {f"valid_{name}": sum(v) / len(v) for name, v in figures.items()}


def train(
    vq: LlamaGenVQ,
    config: TrainConfig,
    read: TrainConfig,
    folder: Path,
    device: str = "cpu",
    compiled: bool = False,
) -> tuple[TextToCodes, dict[str, Any]]:
    """Trains target and text encoder; returns them with the figures of the model card. read: how
    the encoder learns to read. compiled: the layers are, once, which takes half a minute and then
    half the time per step."""
    torch.manual_seed(config.seed)
    model, vq = TextToCodes(CONFIG).to(device), vq.eval().to(device)
    share_named = reading.learn(model.text, model.target.cls_embedding, read, folder / "reading")
    logger.info("the encoder names %.1f %% of what held-out captions say", 100 * share_named)
    named = Named(model.target).to(device)
    for layer in model.target.layers if compiled else ():
        layer.compile(dynamic=False)
    trainer = Trainer(nn.ModuleDict({"model": model, "named": named}), config, folder)
    batches = stream(SceneBatches(config.batch, OFFSET), trainer.left)

    def losses(step: int, share: float) -> Iterator[tuple[Tensor, Figures]]:
        batch = encoded(vq, next(batches))
        drop = dropped(config, step).to(batch.codes.device)
        weights = batch.weights(OBJECTS + (1 - OBJECTS) * share)
        loss = next_code_loss(model, batch.captions, batch.codes, drop, weights)
        naming = named.loss(batch.said, drop)
        figures = {"codes": loss.detach(), "naming": naming.detach()}
        yield loss + NAMING * (1 - share) * naming, figures

    figures = trainer.fit(losses, lambda: evaluate(model, named, vq, config.held_out))
    named.hook.remove()
    return model, trainer.spent() | figures


def dropped(config: TrainConfig, step: int) -> Tensor:
    """Which captions of a step's batch are dropped, [B] bool."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    return torch.rand(config.batch, generator=generator) < DROP
