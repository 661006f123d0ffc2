"""`train recipe=tiny`: trains the embedded models, stage by stage, and writes weights and card.

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint if it was interrupted, and adds its entry to ``weights/models.json``:
configuration, SHA-256, data, steps, seconds, held-out figures. Checkpoint and loss curve go to
``<work>/<stage>``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, Sampling
from decoders.errors import unknown
from decoders.kinds import fitted
from decoders.models.transformer import cast
from decoders.models.weights import write_weights
from decoders.propose.drafters.eagle3 import Eagle3Learner
from decoders.propose.drafters.eagle_learner import EagleLearner
from decoders.tiny.bundle import check_together, load, load_part
from decoders.tiny.recipes import grouped, target, vq
from decoders.tiny.recipes.card import enter, write_card
from decoders.tiny.recipes.plan import Plan
from decoders.tiny.scenes.source import Scenes
from decoders.tiny.targets import TARGETS
from decoders.training.data import DataConfig, StateData
from decoders.training.drafter import DrafterTraining
from decoders.training.losses import LossConfig
from decoders.training.states import transformer_of
from decoders.training.trainer import fast_dtype

logger = logging.getLogger(__name__)
CFG = 3.0  # between fidelity to the caption and variety; also what the drafter is trained under
TARGET_DATA = f"scenes, split train from index {target.OFFSET}, every image seen once"


def make(stages: Sequence[str], drafters: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
    """Runs the stages in order. drafters: by stage, `loss` (fields of `LossConfig`) and `data`
    (fields of `DataConfig`). settings: the fields of `Plan`. Raises DecoderError."""
    plan = Plan(**settings)
    runners: dict[str, Callable[[Plan], None]] = {
        "vq": _vq,
        "target": _target,
        **{name: partial(_drafter, name, drafters[name]) for name in ("drafter", "eagle3")},
        **{name: partial(_grouped, name) for name in TARGETS},
    }
    for stage in stages:
        if stage not in runners:
            raise DecoderError(unknown("stage", stage, runners))
    for stage in (s for s in runners if s in stages):
        logger.info("training %s", stage)
        runners[stage](plan)
        write_card(plan.weights)


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


def _vq(plan: Plan) -> None:
    config = plan.config("vq")
    model, figures = vq.train(config, plan.work / "vq")
    data = f"scenes, split train, batches of {config.batch}"
    entry = _entry(plan, "vq", model, vq.CONFIG, data, figures, torch.float16)
    enter(plan, {"vq": entry}, config)


def _target(plan: Plan) -> None:
    tokenizer, _ = load_part(plan.weights, plan.written(), "vq")
    config, read = plan.config("target"), plan.config("reading")
    model, figures = target.train(
        tokenizer, config, read, plan.work / "target", plan.device, plan.compile
    )
    parts = {"text": model.text, "target": model.target}
    entries = {
        name: _entry(plan, name, part, part.cfg, TARGET_DATA, figures)
        for name, part in parts.items()
    }
    entries["target"]["sampling"] = {"cfg": CFG}
    enter(plan, entries, config)


def _grouped(name: str, plan: Plan) -> None:
    """A target of its own schedule, behind the written tokenizer and text encoder."""
    card, config = plan.written(), plan.config("grouped")
    tokenizer, text = (load_part(plan.weights, card, part)[0] for part in ("vq", "text"))
    model, figures = grouped.train(name, tokenizer, text, config, plan.work / name)
    entry = _entry(plan, name, model, model.cfg, TARGET_DATA, figures)
    enter(plan, {name: entry | {"sampling": {"cfg": CFG}}}, config)


def _drafter(name: str, settings: Mapping[str, Any], plan: Plan) -> None:
    """EAGLE, or EAGLE-3, which begins as the written EAGLE."""
    config = plan.config(name)
    loss = fitted(f"drafters.{name}.loss", settings["loss"], LossConfig)
    states = fitted(f"drafters.{name}.data", settings["data"], DataConfig)
    dtype = fast_dtype(torch.device(plan.device))
    model = load(plan.device, str(dtype).removeprefix("torch."), str(plan.weights), drafters=False)
    if name == "eagle3":
        card = plan.written()
        check_together(plan.weights, card, ["eagle"])
        eagle, _ = load_part(plan.weights, card, "eagle")
        model.drafters["eagle"] = cast(eagle, model.device, model.dtype)
    torch.manual_seed(config.seed)
    learner = Eagle3Learner(model, "eagle") if name == "eagle3" else EagleLearner(model, None)
    source = Scenes(model)
    data = StateData(
        transformer_of(model), source, True, states, config.batch, config.seed, reads=learner.reads
    )
    training = DrafterTraining(learner, data, Sampling(cfg=CFG), loss, config, plan.work / name)
    done = training.run()
    net = learner.net.eval()
    figures = {
        "images": data.images(done.steps),
        "steps": done.steps,
        "seconds": done.seconds,
        **{f"valid_{key}": value for key, value in done.acceptance.figures().items()},
    }
    about = f"scenes, split train from index {source.offset}"
    if name == "eagle3":
        shape = {"parameters": sum(p.numel() for p in net.parameters())}
        entry = _entry(plan, name, net, shape, about, figures) | {"start": "eagle"}
        enter(plan, {name: entry}, config)
    else:
        enter(plan, {"eagle": _entry(plan, "eagle", net, net.cfg, about, figures)}, config)
