"""Recipe of the embedded drafter: EAGLE on the frozen target's features
(decoders.training.eagle)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel
from decoders.drafters.eagle import EagleNet
from decoders.models.transformer import Transformer
from decoders.models.vq.llamagen_vq import LlamaGenVQ
from decoders.tiny.recipes.loop import Run, fit, optimisers
from decoders.tiny.recipes.target import batch_of
from decoders.training.eagle import EagleLoss, Paired, eagle_loss, paired_states

BATCH = 12
STEPS = 1500
OFFSET = 5_000_000  # train-split indices that tokenizer and target never saw
CFG = 3.0  # between fidelity to the caption and variety; also what the drafter is trained under
MUON_LR, ADAM_LR, DECAY = 0.02, 2e-3, 0.01


def target_of(model: ImageModel) -> Transformer:
    """The target as the class whose states this recipe can compute."""
    if not isinstance(model.target, Transformer):
        raise DecoderError(
            f"the EAGLE recipe trains on LlamaGen targets, found {type(model.target).__name__}"
        )
    return model.target


def states_of(model: ImageModel, vq: LlamaGenVQ, split: str, first: int, count: int) -> Paired:
    captions, codes = batch_of(vq, split, first, count)
    with torch.no_grad():
        return paired_states(target_of(model), model.text.encode(captions), codes)


@torch.no_grad()
def held_out(
    net: EagleNet, model: ImageModel, vq: LlamaGenVQ, loss: EagleLoss, count: int = 96
) -> dict[str, float]:
    """Loss parts on the ``valid`` split; ``overlap`` is the exact rule's single-draft
    acceptance."""
    generator = torch.Generator().manual_seed(1)
    quiet = EagleLoss(loss.cfg, loss.soft_weight, 0.0)
    parts: list[dict[str, float]] = []
    for first in range(0, count, 24):
        states = states_of(model, vq, "valid", first, 24)
        parts.append(eagle_loss(net, target_of(model), states, quiet, generator)[1])
    return {f"valid_{k}": sum(p[k] for p in parts) / len(parts) for k in parts[0]}


def train(
    vq: LlamaGenVQ,
    model: ImageModel,
    out_dir: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    resume: bool = True,
    budget_seconds: float | None = None,
) -> tuple[EagleNet, dict[str, Any]]:
    """Trains the drafter; returns it with its model-card figures."""
    torch.manual_seed(seed)
    net = EagleNet(target_of(model).cfg).to(model.device)
    with torch.no_grad():
        net.embed_tokens.weight.copy_(target_of(model).tok_embeddings.weight)
    run = Run("eagle", out_dir, steps=steps, seed=seed, resume=resume)
    loss = EagleLoss(cfg=CFG)

    def step_loss(made: tuple[int, Paired]) -> tuple[Tensor, dict[str, float]]:
        step, states = made
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return eagle_loss(net, target_of(model), states, loss, generator)

    seconds = fit(
        run,
        net,
        optimisers(net, ADAM_LR, MUON_LR, DECAY),
        lambda step: (step, states_of(model, vq, "train", OFFSET + step * BATCH, BATCH)),
        step_loss,
        evaluate=lambda: held_out(net, model, vq, loss),
        budget_seconds=budget_seconds,
    )
    done = int(run.history[-1]["step"]) + 1
    return net, {
        "images": done * BATCH,
        "steps": done,
        "seconds": seconds,
        **held_out(net.eval(), model, vq, loss, 192),
    }
