"""Where a stage of the recipes starts: from nothing, from written weights, or from a smaller model
that is grown (`grow`)."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from decoders.models.eagle_net import EagleNet
from decoders.models.transformer import TransformerConfig
from decoders.tiny.bundle import CARD, config_of, load_drafter, load_part, part_of
from decoders.tiny.growth import grow, grow_drafter
from decoders.tiny.recipes.plan import Plan, enter_all, written_card
from decoders.tiny.recipes.target import LARGE, Start, TextToCodes


def borrow(plan: Plan) -> None:
    """Enters the small model's tokenizer in a card of the large one's that has none."""
    path = plan.weights / CARD
    if path.exists() and "vq" in written_card(plan.weights):
        return
    card = written_card(plan.grows_from)
    file = part_of(card, "vq", plan.grows_from / CARD).file or "vq.safetensors"
    plan.weights.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(plan.grows_from / file, plan.weights)
    enter_all(plan.weights, {"vq": card["vq"] | {"file": relative}})


def of_target(plan: Plan) -> Start | None:
    """What the target's training goes on from: nothing, the written target, or the small one,
    grown."""
    if plan.warm:
        return written_target(plan.weights)
    if not plan.large:
        return None
    start = written_target(plan.grows_from)
    torch.manual_seed(plan.seed)
    model = TextToCodes(LARGE)
    model.text.load_state_dict(start.model.text.state_dict())
    grow(start.model.target, model.target)
    return Start(model, start.images, start.reads)


def written_target(weights: Path) -> Start:
    """The written text encoder and target, how many images they have seen, and whether the encoder
    has learned to read (if not, it begins anew)."""
    card, path = written_card(weights), weights / CARD
    model = TextToCodes(config_of(TransformerConfig, part_of(card, "target", path).config, path))
    figures = card["target"]["figures"]
    reads = "valid_naming" in figures
    if reads:
        load_part(weights, card, "text", model.text)
    load_part(weights, card, "target", model.target)
    return Start(model.requires_grad_(True).train(), int(figures["images"]), reads)


def grown_drafter(plan: Plan) -> EagleNet:
    """The small model's drafter, grown for the large target."""
    old, _ = load_drafter(plan.grows_from, written_card(plan.grows_from))
    net = EagleNet(LARGE)
    grow_drafter(old, net)
    return net.eval().requires_grad_(False)
