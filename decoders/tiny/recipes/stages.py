"""`train recipe=tiny`: trains the embedded models, stage by stage, and writes weights and card.

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint if it was interrupted, and adds its entry to ``weights/models.json``. Checkpoint
and loss curve go to ``<work>/<stage>``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from decoders.api import DecoderError, Sampling
from decoders.errors import unknown
from decoders.kinds import fitted
from decoders.models.grouped import Grouped, GroupedConfig
from decoders.models.text.words import WordEncoder, WordEncoderConfig
from decoders.models.transformer import Transformer, cast
from decoders.propose.drafters.eagle import EagleLearner
from decoders.propose.drafters.eagle3 import Eagle3Learner
from decoders.tiny.bundle import check_together, load
from decoders.tiny.recipes import reading, target, vq
from decoders.tiny.recipes.recipe import Recipe
from decoders.tiny.scenes import vocabulary
from decoders.tiny.scenes.source import Scenes
from decoders.tiny.targets import TARGETS
from decoders.training.data import DataConfig, StateData
from decoders.training.drafter import train_drafter
from decoders.training.losses import LossConfig
from decoders.training.states import transformer_of
from decoders.training.trainer import fast_dtype

logger = logging.getLogger(__name__)
CFG = 3.0  # between fidelity to the caption and variety; also what the drafter is trained under
SMALL = {"width": 128, "layers": 4, "heads": 4, "ffn": 384}  # of the targets of `TARGETS`


def make(stages: Sequence[str], drafters: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
    """Runs the stages in order. drafters: by stage, `loss` (fields of `LossConfig`) and `data`
    (fields of `DataConfig`). settings: the fields of `Recipe`. Raises DecoderError."""
    recipe = Recipe(**settings)
    runners: dict[str, Callable[[Recipe], None]] = {
        "vq": _vq,
        "target": _target,
        **{name: partial(_drafter, name, drafters[name]) for name in ("drafter", "eagle3")},
        **{name: partial(_small, name) for name in TARGETS},
    }
    for stage in stages:
        if stage not in runners:
            raise DecoderError(unknown("stage", stage, runners))
    for stage in (s for s in runners if s in stages):
        logger.info("training %s", stage)
        runners[stage](recipe)


def _vq(recipe: Recipe) -> None:
    config = recipe.config("vq")
    model, figures = vq.train(config, recipe.work / "vq")
    about = {"data": f"scenes, split train, batches of {config.batch}", "figures": figures}
    recipe.write(config, {"vq": (model, vq.CONFIG)}, about, torch.float16)


def _target(recipe: Recipe) -> None:
    """The target and its text encoder, which learns to read first."""
    config, folder, cfg = recipe.config("target"), recipe.work / "target", target.CONFIG
    torch.manual_seed(config.seed)
    words = WordEncoderConfig(tuple(vocabulary()), width=cfg.text_width, prefix=cfg.prefix)
    text, model = WordEncoder(words), Transformer(cfg)
    read = reading.learn(text, model.cls_embedding, recipe.config("reading"), folder / "reading")
    logger.info("the encoder names %.1f %% of what held-out captions say", 100 * read)
    about = _about(target.train(model, text, recipe.part("vq"), config, folder))
    recipe.write(config, {"text": (text, words), "target": (model, cfg)}, about)


def _small(name: str, recipe: Recipe) -> None:
    """One of `TARGETS`, behind the written tokenizer and text encoder."""
    config = recipe.config("grouped")
    torch.manual_seed(config.seed)
    model = Grouped(GroupedConfig(**asdict(target.CONFIG) | SMALL | TARGETS[name][1]))
    given = recipe.part("text"), recipe.part("vq")
    about = _about(target.train(model, *given, config, recipe.work / name))
    recipe.write(config, {name: (model, model.cfg)}, about)


def _about(figures: dict[str, Any]) -> dict[str, Any]:
    data = f"scenes, split train from index {target.OFFSET}, every image seen once"
    return {"data": data, "figures": figures, "sampling": {"cfg": CFG}}


def _drafter(name: str, settings: Mapping[str, Any], recipe: Recipe) -> None:
    """EAGLE, or EAGLE-3, which begins as the written EAGLE."""
    config, second = recipe.config(name), name == "eagle3"
    loss = fitted(f"drafters.{name}.loss", settings["loss"], LossConfig)
    states = fitted(f"drafters.{name}.data", settings["data"], DataConfig)
    dtype = str(fast_dtype(torch.device("cpu"))).removeprefix("torch.")
    model = load("cpu", dtype, str(recipe.weights), drafters=False)
    if second:
        check_together(recipe.weights, recipe.card(), ["eagle"])
        model.drafters["eagle"] = cast(recipe.part("eagle"), model.device, model.dtype)
    torch.manual_seed(config.seed)
    learner: Any = Eagle3Learner(model, "eagle") if second else EagleLearner(model, None)
    source = Scenes(model)
    data = StateData(
        transformer_of(model), source, True, states, config.batch, config.seed, reads=learner.reads
    )
    done = train_drafter(learner, data, Sampling(cfg=CFG), loss, config, recipe.work / name)
    steps, net = done.trainer.step, learner.net.eval()
    figures = {"images": data.images(steps), "steps": steps, "seconds": done.trainer.seconds}
    figures |= {f"valid_{key}": value for key, value in done.acceptance.figures().items()}
    about = {"data": f"scenes, split train from index {source.offset}", "figures": figures}
    shape = {"parameters": sum(p.numel() for p in net.parameters())} if second else net.cfg
    recipe.write(config, {"eagle3" if second else "eagle": (net, shape)}, about)
