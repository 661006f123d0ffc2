"""`make tiny`: trains the embedded models from nothing, stage by stage, and writes weights and
card.

The large target and its drafter (``size=large``) start as the small ones, grown (`grow`).

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint if it was interrupted, and adds its entry to ``weights/models.json``:
configuration, SHA-256, data, steps, seconds, held-out figures. Loss curves go to
``<work>/<stage>.csv``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoders.api import DecoderError
from decoders.tiny.recipes.plan import (
    STAGES,
    Plan,
    enter,
    keep_shipped,
    plan_of,
    require_stages,
    trained_on,
    written_card,
)

logger = logging.getLogger(__name__)


def make(stages: Sequence[str] = STAGES, **settings: str) -> None:
    """Runs the stages in order. Settings: work=, weights=, device=, resume=, seed=, steps=,
    minutes=, warm=, rate=, compile=, overwrite=, size=, small=."""
    plan = plan_of(settings)
    keep_shipped(plan)
    require_stages(stages, plan)
    from decoders.tiny.recipes import starts
    from decoders.tiny.recipes.card import write_card

    runners: dict[str, Callable[[Plan], None]] = {"vq": _vq, "target": _target, "drafter": _drafter}
    for stage in stages:
        if stage not in runners:
            raise DecoderError(f"unknown stage {stage!r}: expected some of {', '.join(STAGES)}")
    if plan.large:
        starts.borrow(plan)
    for stage in (s for s in STAGES if s in stages):
        logger.info("training %s", stage)
        runners[stage](plan)
        write_card(plan.weights, plan.root)


def _vq(plan: Plan) -> None:
    import torch

    from decoders.models.weights import write_weights
    from decoders.tiny.recipes import vq

    start = None
    if plan.warm:
        seen = int(written_card(plan.weights)["vq"]["figures"]["images"])
        start = vq.Start(load_vq(plan.weights).requires_grad_(True).train(), seen)
    model, figures = vq.train(plan.folder("vq"), start=start, **plan.settings("vq"))
    digest = write_weights(model, plan.weights / "vq.safetensors", torch.float16)
    entry = {
        "config": asdict(vq.CONFIG),
        "sha256": digest,
        "trained_on": trained_on(),
        "data": f"scenes, split train, batches of {vq.BATCH}",
        "figures": figures,
    }
    enter(plan, {"vq": entry})


def load_vq(weights: Path) -> Any:
    """The written tokenizer alone (the target's weights may not exist yet)."""
    from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
    from decoders.tiny.bundle import CARD, config_of, load_part

    card = written_card(weights)
    vq = LlamaGenVQ(config_of(VQConfig, card["vq"]["config"], weights / CARD))
    load_part(weights, card, "vq", vq)
    return vq


def _target(plan: Plan) -> None:
    from decoders.models.weights import write_weights
    from decoders.tiny.recipes import drafter, starts, target

    model, figures = target.train(
        load_vq(plan.weights),
        plan.folder("target"),
        device=plan.device,
        start=starts.of_target(plan),
        rate=plan.rate,
        compiled=plan.compile,
        **plan.settings("target"),
    )
    shared = {
        "trained_on": trained_on(),
        "figures": figures,
        "data": f"scenes, split train from index {target.OFFSET}, every image seen once",
    }
    text = write_weights(model.text, plan.weights / "text.safetensors")
    digest = write_weights(model.target, plan.weights / "target.safetensors")
    entries = {
        "text": {"config": asdict(model.text.cfg), "sha256": text, **shared},
        "target": {
            "config": asdict(model.target.cfg),
            "sha256": digest,
            "sampling": {"cfg": drafter.CFG},
            **shared,
        },
    }
    enter(plan, entries)


def _drafter(plan: Plan) -> None:
    import torch

    from decoders.models.transformer import cast
    from decoders.models.weights import write_weights
    from decoders.tiny.bundle import load, load_drafter
    from decoders.tiny.recipes import drafter, starts
    from decoders.training.precision import fast_dtype

    dtype = fast_dtype(torch.device(plan.device))
    model = load(plan.device, str(dtype).removeprefix("torch."), str(plan.weights), drafters=False)
    if plan.warm:  # it may go on from a drafter of an earlier target
        net, _ = load_drafter(plan.weights, written_card(plan.weights))
        model.drafters["eagle"] = cast(net, model.device, model.dtype)
    elif plan.large:
        model.drafters["eagle"] = cast(starts.grown_drafter(plan), model.device, model.dtype)
    net, figures = drafter.train(
        model, plan.folder("drafter"), warm="eagle" in model.drafters, **plan.settings("drafter")
    )
    digest = write_weights(net, plan.weights / "eagle.safetensors")
    entry = {
        "config": asdict(net.cfg),
        "sha256": digest,
        "trained_on": trained_on(),
        "data": f"scenes, split train from index {drafter.OFFSET}",
        "figures": figures,
    }
    enter(plan, {"eagle": entry})
