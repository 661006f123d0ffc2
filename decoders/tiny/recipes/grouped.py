"""Recipe of the targets of `decoders.tiny.targets`: the embedded target's at a smaller size, with
the text encoder that was trained along with that one, frozen.

COrAL's loss is the mean of three: of the next group behind true codes; of the next one behind a
drafted group; and of the drafted group's own codes. Drafts are drawn from the first of these laws,
without guidance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import TextFeatures
from decoders.models.grouped import Grouped, GroupedConfig, Line
from decoders.models.text.words import WordEncoder
from decoders.models.vq.llamagen_vq import LlamaGenVQ
from decoders.noise import sample
from decoders.tiny.recipes import target
from decoders.tiny.recipes.scenes import SceneBatches, stream
from decoders.tiny.scenes import scene_batch
from decoders.tiny.targets import TARGETS
from decoders.training.trainer import Figures, TrainConfig, Trainer, mixed

SIZE = {"width": 128, "layers": 4, "heads": 4, "ffn": 384}


def config_for(name: str) -> GroupedConfig:
    """The configuration of one of `TARGETS`: the embedded target's, smaller."""
    return GroupedConfig(**asdict(target.CONFIG) | SIZE | TARGETS[name][1])


def losses(
    model: Grouped, text: TextFeatures, codes: Tensor, drop: Tensor, seed: int
) -> dict[str, Tensor]:
    """Cross-entropy in nats of every code, [B, L] float32, by its law: `next`, and of a target that
    refines `refined` [B, L - 1] and `behind` [B, L - 1 - N]."""
    kept = Line() if model.cfg.refines else None
    with mixed(codes.device):
        logits = model.logits(model(text, codes, drop, kept)).float()  # [B, L, V]
        found = {"next": nats(logits, codes)}
        if kept is None:
            return found
        u = torch.rand(codes[:, 1:].shape, generator=torch.Generator().manual_seed(seed))
        drafts = sample(logits.detach()[:, 1:].softmax(-1), u.to(codes.device))  # [B, L - 1]
        hidden = model.drafted(text, drafts, drop, kept)  # [B, L - 1, D]
        own = model.logits(model.refined(hidden)).float()
        later = model.logits(hidden[:, : -model.cfg.span]).float()
    found["refined"] = nats(own, codes[:, 1:])
    found["behind"] = nats(later, codes[:, 1 + model.cfg.span :])
    return found


def nats(logits: Tensor, codes: Tensor) -> Tensor:
    """logits [B, T, V], codes [B, T] -> [B, T]."""
    return F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none").view_as(codes)


@torch.no_grad()
def evaluate(model: Grouped, text: WordEncoder, vq: LlamaGenVQ, count: int) -> dict[str, float]:
    """Nats per code of held-out images, with their captions and with none."""
    means: dict[str, list[Tensor]] = {}
    for first in range(0, count, target.PART):
        scenes = scene_batch("valid", range(first, min(first + target.PART, count)))
        batch = target.encoded(vq, scenes)
        features = text.encode(batch.captions)
        for ending, without in (("", False), ("_uncond", True)):
            drop = torch.full((len(batch.codes),), without, device=batch.codes.device)
            for name, each in losses(model, features, batch.codes, drop, first).items():
                key = f"valid_nats{'' if name == 'next' else '_' + name}{ending}"
                means.setdefault(key, []).append(each.mean(1))
    return {key: float(torch.cat(each).mean()) for key, each in means.items()}


def train(
    name: str, vq: LlamaGenVQ, text: WordEncoder, config: TrainConfig, folder: Path
) -> tuple[Grouped, dict[str, Any]]:
    """Trains one of `TARGETS`; returns it with the figures of the model card."""
    torch.manual_seed(config.seed)
    model = Grouped(config_for(name))
    named = target.Named(model)
    trainer = Trainer(nn.ModuleDict({"model": model, "named": named}), config, folder)
    batches = stream(SceneBatches(config.batch, target.OFFSET), trainer.left)

    def step_losses(step: int, share: float) -> Iterator[tuple[Tensor, Figures]]:
        batch, drop = target.encoded(vq, next(batches)), target.dropped(config, step)
        weights = batch.weights(target.OBJECTS + (1 - target.OBJECTS) * share)  # [B, L]
        parts = losses(model, text.encode(batch.captions), batch.codes, drop, step)
        size = weights.shape[1]
        means = {
            key: (each * weights[:, size - each.shape[1] :]).mean() for key, each in parts.items()
        }
        naming = named.loss(batch.said, drop)  # of a target that refines, at its drafts
        figures = {key: mean.detach() for key, mean in (means | {"naming": naming}).items()}
        loss = torch.stack([*means.values()]).mean()
        yield loss + target.NAMING * (1 - share) * naming, figures

    figures = trainer.fit(step_losses, lambda: evaluate(model, text, vq, config.held_out))
    named.hook.remove()
    return model, trainer.spent() | figures
