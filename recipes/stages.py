"""`train recipe=tiny`: trains the embedded models, stage by stage, and writes weights and card.

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint in ``<work>/<stage>``, and adds its entry to ``weights/models.json``: what the
part was trained on, for how long and how good it is.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, Sampling
from decoders.errors import unknown
from decoders.execution.gpu import card_fault
from decoders.files import read_object
from decoders.kinds import Amount, Seed, validate, validate_fields
from decoders.models.loading.checkpoint import cast
from decoders.models.loading.weights import write_tensors
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer, transformer_of
from decoders.models.prompts import WordEncoder, WordEncoderConfig
from decoders.propose.drafters.dflash import DFlashLearner
from decoders.propose.drafters.dspark import DSparkLearner
from decoders.propose.drafters.eagle import EagleLearner
from decoders.propose.drafters.eagle3 import Eagle3Learner
from decoders.propose.drafters.medusa import MedusaLearner
from decoders.tiny.bundle import (
    CARD_FILE,
    PART_CLASSES,
    TARGETS,
    TRAINED_WITH,
    WEIGHTS_FOLDER,
    Scenes,
    check_together,
    load,
    load_part,
)
from decoders.tiny.scenes import vocabulary
from decoders.training.drafter import LossConfig, train_drafter
from decoders.training.states import DataConfig
from decoders.training.trainer import TrainConfig, fast_dtype
from recipes import target, vq

logger = logging.getLogger(__name__)
CFG = 3.0  # between fidelity to the caption and variety; also what the drafter is trained under
# What a drafter's stage trains: the part's name, its learner, and the part that it begins as.
LEARNERS: dict[str, tuple[str, Callable[..., Any], str | None]] = {
    "drafter": ("eagle", EagleLearner, None),
    "eagle3": ("eagle3", Eagle3Learner, "eagle"),
    "dflash": ("dflash", DFlashLearner, None),
    "dspark": ("dspark", DSparkLearner, None),
    "medusa": ("medusa", MedusaLearner, None),
}
SMALL = {"width": 128, "layers": 4, "heads": 4, "ffn": 384}  # of the targets of `TARGETS`


@dataclass(frozen=True)
class Recipe:
    """The settings of conf/recipe_config.yaml, which explains them. train: by name, the fields of
    `TrainConfig`; shape: fields of the target's `TransformerConfig`. Raises DecoderError."""

    work: Path
    weights: Path
    train: dict[str, dict[str, Any]]
    seed: Seed = 0
    steps: Amount | None = None
    device: str | None = None
    shape: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_fields(self, "")
        for name in ("work", "weights"):
            object.__setattr__(self, name, Path(getattr(self, name)))

    def config(self, name: str) -> TrainConfig:
        """Returns how a part is trained. `steps` comes before the recipe's own."""
        values = self.train[name] | {"seed": self.seed}
        if self.steps is not None:
            values |= {"steps": self.steps, "budget_seconds": None}
        config: TrainConfig = validate(f"train.{name}", values, TrainConfig)
        return config

    @property
    def torch_device(self) -> torch.device:
        """The device of the training."""
        return torch.device(self.device or ("cpu" if card_fault() else "cuda"))

    def part(self, name: str) -> Any:
        """Loads a written part, frozen, to the device of the training."""
        card = read_object(self.weights / CARD_FILE)
        return load_part(self.weights, card, name)[0].to(self.torch_device)

    def write(
        self,
        config: TrainConfig,
        parts: Mapping[str, tuple[nn.Module, Any]],
        about: Mapping[str, Any],
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Writes the weights of the parts that a stage made (module, and its shape: a dataclass or
        a mapping) and their entries, all at once; other entries stay. about: data and figures."""
        path = self.weights / CARD_FILE
        card = read_object(path) if path.exists() else {}
        machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        for name, (module, shape) in parts.items():
            file = self.weights / f"{name}.safetensors"
            sha256 = write_tensors(module.state_dict(), file, dtype)
            shape = shape if isinstance(shape, dict) else asdict(shape)
            card[name] = {"config": shape, "sha256": sha256, "settings": asdict(config)}
            card[name] |= {"trained_on": machine, **about}
        for name in parts:
            card[name]["trained_with"] = {part: card[part]["sha256"] for part in TRAINED_WITH[name]}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
        partial.replace(path)


def make(stages: Sequence[str], drafters: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
    """Runs the stages in order. drafters: by stage, `loss` (fields of `LossConfig`) and `data`
    (fields of `DataConfig`). settings: the fields of `Recipe`. Raises DecoderError."""
    recipe = Recipe(**settings)
    runners: dict[str, Callable[[Recipe], None]] = {
        "vq": _vq,
        "target": partial(_target, "target"),
        **{name: partial(_drafter, name, drafters[name]) for name in LEARNERS},
        **{name: partial(_target, name) for name in TARGETS},
    }
    if not stages:
        raise DecoderError(f"stages is empty: expected some of {', '.join(runners)}")
    for stage in stages:
        if stage not in runners:
            raise DecoderError(unknown("stage", stage, runners))
    if "vq" not in stages and not (recipe.weights / CARD_FILE).exists():
        # The shipped tokenizer: a target of another size has the same codes, and the metrics'
        # networks the same pictures.
        entry = read_object(WEIGHTS_FOLDER / CARD_FILE)["vq"]
        recipe.weights.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(WEIGHTS_FOLDER / "vq.safetensors", recipe.weights / "vq.safetensors")
        (recipe.weights / CARD_FILE).write_text(json.dumps({"vq": entry}, indent=1) + "\n")
    for stage in (s for s in runners if s in stages):
        logger.info("training %s", stage)
        runners[stage](recipe)


def _vq(recipe: Recipe) -> None:
    config = recipe.config("vq")
    model, figures = vq.train(config, recipe.work / "vq", recipe.torch_device)
    about = {"data": f"scenes, split train, batches of {config.batch}", "figures": figures}
    recipe.write(config, {"vq": (model, vq.VQ_CONFIG)}, about, torch.float16)


def _target(name: str, recipe: Recipe) -> None:
    """Trains the target and its text encoder, which learns to read first; or one of `TARGETS`
    behind the written encoder; FlashAR also behind the written target of its size that predicts
    the next code."""
    small, folder, device = name in TARGETS, recipe.work / name, recipe.torch_device
    config = recipe.config("grouped" if small else "target")
    torch.manual_seed(config.seed)
    parts: dict[str, tuple[nn.Module, Any]]
    model: Any
    if small:
        kind, shape = PART_CLASSES[name]
        model = kind(shape(**asdict(target.TARGET_CONFIG) | SMALL | TARGETS[name]))
        if name == "flash":
            model.begin_as(recipe.part("plain"))
        text, parts = recipe.part("text"), {name: (model, model.config)}
    else:
        shape = validate("shape", asdict(target.TARGET_CONFIG) | recipe.shape, TransformerConfig)
        tokens = tuple(vocabulary())
        encoder = WordEncoderConfig(tokens, width=shape.text_width, prefix=shape.prefix)
        text, model = WordEncoder(encoder).to(device), Transformer(shape).to(device)
        read = target.learn_to_read(
            text, model.cls_embedding, recipe.config("reading"), folder / "reading"
        )
        logger.info("the encoder names %.1f %% of what held-out captions say", 100 * read)
        parts = {"text": (text, encoder), "target": (model, shape)}
    figures = target.train(model, text, recipe.part("vq"), config, folder)
    data = f"scenes, split train from index {target.FIRST_SCENE}, every image seen once"
    recipe.write(config, parts, {"data": data, "figures": figures, "sampling": {"cfg": CFG}})


def _drafter(name: str, settings: Mapping[str, Any], recipe: Recipe) -> None:
    """Trains one of `LEARNERS`."""
    config, (part, learners, start) = recipe.config(name), LEARNERS[name]
    loss = validate(f"drafters.{name}.loss", settings["loss"], LossConfig)
    states = validate(f"drafters.{name}.data", settings["data"], DataConfig)
    dtype = str(fast_dtype(recipe.torch_device)).removeprefix("torch.")
    model = load(str(recipe.torch_device), dtype, str(recipe.weights), drafters=False)
    if start is not None:
        check_together(recipe.weights, read_object(recipe.weights / CARD_FILE), [start])
        model.drafters[start] = cast(recipe.part(start), model.device, model.dtype)
    torch.manual_seed(config.seed)
    learner: Any = learners(model, start)
    source, sampling, work = Scenes(model), Sampling(cfg=CFG), recipe.work / name
    done = train_drafter(
        learner, transformer_of(model), source, sampling, loss, states, config, work
    )
    steps, net = done.trainer.step, learner.net.eval()
    figures = {"images": done.data.images(steps), "steps": steps, "seconds": done.trainer.seconds}
    figures |= {f"valid_{key}": value for key, value in done.acceptance.figures().items()}
    about = {"data": f"scenes, split train from index {source.offset}", "figures": figures}
    shape = {"parameters": sum(p.numel() for p in net.parameters())}
    recipe.write(config, {part: (net, net.config if part in PART_CLASSES else shape)}, about)
