"""`train recipe=tiny`: trains the embedded models, stage by stage, and writes weights and card.

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint if it was interrupted, and adds its entry to ``weights/models.json``:
configuration, SHA-256, data, steps, seconds, held-out figures. Loss curves go to
``<work>/<stage>.csv``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, ImageModel
from decoders.kinds import unknown
from decoders.models.transformer import cast
from decoders.models.weights import write_weights
from decoders.tiny.bundle import check_together, load, load_part
from decoders.tiny.recipes import drafter, grouped, target, vq
from decoders.tiny.recipes.card import enter, write_card
from decoders.tiny.recipes.plan import Plan, written_card
from decoders.tiny.targets import TARGETS
from decoders.training.optimise import fast_dtype

logger = logging.getLogger(__name__)
TARGET_DATA = f"scenes, split train from index {target.OFFSET}, every image seen once"
DRAFTER_DATA = f"scenes, split train from index {drafter.OFFSET}"


def make(stages: Sequence[str], **settings: Any) -> None:
    """Runs the stages in order. settings: the fields of `Plan`. Raises DecoderError."""
    plan = Plan(**settings)
    runners: dict[str, Callable[[Plan], None]] = {
        "vq": _vq,
        "target": _target,
        "drafter": _drafter,
        "eagle3": _eagle3,
        **{name: partial(_grouped, name) for name in TARGETS},
    }
    for stage in stages:
        if stage not in runners:
            raise DecoderError(unknown("stage", stage, runners))
    for stage in (s for s in runners if s in stages):
        logger.info("training %s", stage)
        runners[stage](plan)
        write_card(plan.weights)


def _vq(plan: Plan) -> None:
    model, figures = vq.train(plan.work / "vq", **plan.settings("vq"))
    data = f"scenes, split train, batches of {vq.BATCH}"
    enter(plan, {"vq": _entry(plan, "vq", model, vq.CONFIG, data, figures, torch.float16)})


def _entry(
    plan: Plan,
    name: str,
    module: nn.Module,
    config: Any,
    data: str,
    figures: dict[str, Any],
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Writes the weights of a part; returns what the card says of it. config: a dataclass, or what
    stands for one."""
    return {
        "config": config if isinstance(config, dict) else asdict(config),
        "sha256": write_weights(module, plan.weights / f"{name}.safetensors", dtype),
        "data": data,
        "figures": figures,
    }


def _target(plan: Plan) -> None:
    tokenizer, _ = load_part(plan.weights, written_card(plan.weights), "vq")
    model, figures = target.train(
        tokenizer,
        plan.work / "target",
        device=plan.device,
        compiled=plan.compile,
        **plan.settings("target"),
    )
    parts = {"text": model.text, "target": model.target}
    entries = {
        name: _entry(plan, name, part, part.cfg, TARGET_DATA, figures)
        for name, part in parts.items()
    }
    entries["target"]["sampling"] = {"cfg": drafter.CFG}
    enter(plan, entries)


def _grouped(name: str, plan: Plan) -> None:
    """A target of its own schedule, behind the written tokenizer and text encoder."""
    card = written_card(plan.weights)
    tokenizer, text = (load_part(plan.weights, card, part)[0] for part in ("vq", "text"))
    model, figures = grouped.train(name, tokenizer, text, plan.work / name, **plan.settings(name))
    entry = _entry(plan, name, model, model.cfg, TARGET_DATA, figures)
    enter(plan, {name: entry | {"sampling": {"cfg": drafter.CFG}}})


def _drafter(plan: Plan) -> None:
    model = _loaded(plan)
    net, figures = drafter.train(model, plan.work / "drafter", **plan.settings("drafter"))
    enter(plan, {"eagle": _entry(plan, "eagle", net, net.cfg, DRAFTER_DATA, figures)})


def _eagle3(plan: Plan) -> None:
    card = written_card(plan.weights)
    check_together(plan.weights, card, ["eagle"])
    eagle, _ = load_part(plan.weights, card, "eagle")
    model = _loaded(plan)
    model.drafters["eagle"] = cast(eagle, model.device, model.dtype)
    net, figures = drafter.train_eagle3(model, plan.work / "eagle3", **plan.settings("eagle3"))
    config = {"parameters": sum(p.numel() for p in net.parameters())}
    entry = _entry(plan, "eagle3", net, config, DRAFTER_DATA, figures)
    enter(plan, {"eagle3": entry | {"start": "eagle"}})


def _loaded(plan: Plan) -> ImageModel:
    """The written model without drafters, to train one for."""
    dtype = fast_dtype(torch.device(plan.device))
    return load(plan.device, str(dtype).removeprefix("torch."), str(plan.weights), drafters=False)
