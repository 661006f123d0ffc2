"""Recipe of the targets of `decoders.tiny.targets`: the embedded target's at a smaller size, with
the text encoder that was trained along with that one, frozen.

COrAL's loss is the mean of three: of the next group behind true codes; of the next one behind a
drafted group; and of the drafted group's own codes. Drafts are drawn from the first of these laws,
without guidance.
"""

from __future__ import annotations

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
from decoders.tiny.targets import TARGETS
from decoders.training.loop import Loop, fit
from decoders.training.optimise import mixed, optimisers

SIZE = {"width": 128, "layers": 4, "heads": 4, "ffn": 384}
STEPS = 6000
EVALUATE = 80  # steps between looks at held-out images
HELD_OUT = 96, 480  # images while it is trained, and behind it


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
def held_out(
    model: Grouped, text: WordEncoder, batch: target.Batch, parts: int = target.PART
) -> dict[str, float]:
    """Nats a code of held-out images, with their captions and with none."""
    features = text.encode(batch.captions)
    found: dict[str, list[Tensor]] = {}
    for start in range(0, len(batch.codes), parts):
        rows = slice(start, start + parts)
        codes = batch.codes[rows]
        for ending, dropped in (("", False), ("_uncond", True)):
            drop = torch.full((len(codes),), dropped, device=codes.device)
            for name, each in losses(model, features.rows(rows), codes, drop, start).items():
                key = f"valid_nats{'' if name == 'next' else '_' + name}{ending}"
                found.setdefault(key, []).append(each.mean(1))
    return {key: float(torch.cat(each).mean()) for key, each in found.items()}


def train(
    name: str,
    vq: LlamaGenVQ,
    text: WordEncoder,
    out_dir: Path,
    *,
    seed: int = 0,
    **settings: Any,
) -> tuple[Grouped, dict[str, Any]]:
    """Trains one of `TARGETS`; returns it with the figures of the model card. settings: as of
    `target.train`."""
    torch.manual_seed(seed)
    model = Grouped(config_for(name))
    loop = Loop(
        name, out_dir, warmup=12, save_every=30, evaluate_every=EVALUATE,
        **{"steps": STEPS} | settings,
    )  # fmt: skip
    named = target.Named(model)
    some, every = (target.batch_of(vq, "valid", 0, count) for count in HELD_OUT)

    def step_loss(work: tuple[int, target.Batch], share: float) -> tuple[Tensor, dict[str, Tensor]]:
        step, batch = work
        number = seed * 1_000_003 + step
        generator = torch.Generator().manual_seed(number)
        drop = torch.rand(len(batch.codes), generator=generator) < target.DROP
        weights = batch.weights(target.OBJECTS + (1 - target.OBJECTS) * share)  # [B, L]
        features = text.encode(batch.captions)
        found = losses(model, features, batch.codes, drop, number)
        size = weights.shape[1]
        means = {key: (each * weights[:, size - each.shape[1] :]).mean()
                 for key, each in found.items()}  # fmt: skip
        naming = named.loss(batch.said, drop)  # of a target that refines, at its drafts
        figures = {key: mean.detach() for key, mean in (means | {"naming": naming}).items()}
        loss = torch.stack([*means.values()]).mean()
        return loss + target.NAMING * (1 - share) * naming, figures

    parts = nn.ModuleDict({"model": model.float(), "named": named})

    def batch(step: int) -> tuple[int, target.Batch]:
        first = target.OFFSET + step * target.BATCH
        return step, target.batch_of(vq, "train", first, target.BATCH)

    optims = optimisers(parts, target.ADAM_LR, target.MUON_LR, target.DECAY)
    fit(loop, parts, optims, batch, step_loss, evaluate=lambda: held_out(model, text, some))
    named.hook.remove()
    spent = {"images": loop.done * target.BATCH, "steps": loop.done, "seconds": loop.seconds}
    return model, spent | held_out(model.eval(), text, every)
