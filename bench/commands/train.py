"""`python -m bench train`: trains a drafter for a model, by the trainer of `decoders.training`.

Why here: what to train, on what, and where it goes is configuration; the training itself knows
neither Hydra nor plots.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from bench.config.arguments import key_of
from bench.config.hydra_edge import composed, hydra_session
from bench.config.schema import BackendConfig, LoaderConfig, SamplingConfig, StudyConfig
from bench.console import say
from bench.errors import ConfigError
from bench.files import prepare_file, prepare_folder
from bench.measure.device import prepare, provenance
from bench.report.table import table_of_texts, terminal
from bench.run.contender import load_model
from decoders.api import completed
from decoders.compose import PartSpec, build_part, resolve
from decoders.kinds import validate
from decoders.models.nets.transformer import transformer_of
from decoders.training.drafter import AcceptanceRates, LossConfig, train_drafter
from decoders.training.states import DataConfig, Learner
from decoders.training.trainer import TrainConfig

DRAFTER, RECORD = "drafter", "training.json"


@dataclass(frozen=True)
class TrainStudy:
    """Everything a training needs to know, resolved. loss holds `cfg: None` for the model's own."""

    name: str
    run_dir: str
    model: LoaderConfig
    backend: BackendConfig
    learner: PartSpec
    source: LoaderConfig
    data: DataConfig
    loss: dict[str, Any]
    train: TrainConfig
    sampling: SamplingConfig


def cmd_train(arguments: Sequence[str]) -> int:
    """Train a drafter, or the embedded models by their recipe.
    Resumes an interrupted training. Writes the drafter, curve.csv and training.json (acceptance by
    depth) to run_dir. `list settings` shows all settings of a training and of a recipe.

    settings:
      drafter=NAME            what is trained (`list drafter`), or your own
      model=NAME              the model that it drafts for
      data=NAME               where the target's states come from (`list data`)
      loss=NAME               the loss (`list loss`)
      train.steps=N           steps of the optimiser
      train.budget_seconds=X  stop after so many seconds
      start=NAME              a drafter to go on from
      run_dir=DIR             default: results/train/<drafter>_<model> in the current folder
      recipe=NAME             trains the embedded models instead: tiny, clip (`list recipe`)
      stages=[A,B]            of recipe=tiny: what to train, for example [eagle3]
      weights=DIR             of a recipe: where weights go (default: work/tiny)
      steps=N                 of a recipe: steps of each stage

    example:
      python -m bench train drafter=medusa model=tiny loss=unrolled train.budget_seconds=600
    """
    if any(key_of(argument) == "recipe" for argument in arguments):
        LoaderConfig.of(composed("recipe_config", arguments), "recipe").load()
        return 0
    study = compose_train(arguments)
    folder = Path(study.run_dir)
    prepare_folder(folder)
    prepare_file(folder / RECORD)
    prepare_folder(folder / DRAFTER)
    rates = run_training(study, prepare(study.backend))
    pairs = enumerate(zip(rates.overlap, rates.agree, strict=True), 1)
    rows = [[str(depth), f"{overlap:.4f}", f"{agree:.4f}"] for depth, (overlap, agree) in pairs]
    say(terminal(table_of_texts(["depth", "accepted", "top-1 agrees"], rows)))
    say(f"chain of {len(rates.overlap)}: {rates.chain_length():.2f} codes per step")
    say(f"drafter.checkpoint={folder / DRAFTER}")
    return 0


def compose_train(arguments: Sequence[str]) -> TrainStudy:
    """Composes and validates the training that the arguments describe. Raises ConfigError on an
    unknown option or key (with the nearest known names), DecoderError on impossible values."""
    with hydra_session(arguments):
        root = composed("train_config", arguments)
        drafter = PartSpec.of(root["drafter"], "drafter")
        if drafter is None:
            raise ConfigError("the drafter has no `_target_`: nothing to train; set drafter=eagle")
        model = LoaderConfig.of(root["model"], "model")
        name = root["name"] or f"{drafter.target.rpartition('.')[2].lower()}_{model.name}"
        start = validate("start", root["start"], str | None)
        data, loss = (dict(validate(key, root[key], dict)) for key in ("data", "loss"))
        fields = [f.name for f in dataclasses.fields(DataConfig) if f.name in data]
        data_settings = {key: data.pop(key) for key in fields}
        cfg = validate("loss.cfg", loss.get("cfg"), float | None)
        whole = dataclasses.asdict(validate("loss", loss | {"cfg": cfg or 1.0}, LossConfig))
        learner = validate("learner", root["learner"], str)
        values = {key: root[key] for key in ("backend", "train", "sampling")} | {
            "name": name,
            "run_dir": root["run_dir"] or f"results/train/{name}",
            "model": model,
            "learner": PartSpec(learner, {**drafter.kwargs, "checkpoint": start}),
            "source": LoaderConfig.of(data | {"name": "data"}, "data"),
            "data": data_settings,
            "loss": whole | {"cfg": cfg},
        }
        study: TrainStudy = validate("", values, TrainStudy)
    # Gradients go through PyTorch's own operators, on the weights as they are.
    return dataclasses.replace(study, backend=dataclasses.replace(study.backend, execution="eager"))


def run_training(study: TrainStudy, device: torch.device) -> AcceptanceRates:
    """Trains, and writes what `study.run_dir` is to hold: checkpoint, curves, `drafter/`, and
    training.json (settings, acceptance by depth, provenance). Returns the held-out acceptance."""
    folder, seed = Path(study.run_dir), study.train.seed
    model = load_model(cast(StudyConfig, study), device)
    sampling = study.sampling.resolve(model.sampling)
    cfg = sampling.cfg if study.loss["cfg"] is None else study.loss["cfg"]
    loss = LossConfig(**study.loss | {"cfg": cfg})
    torch.manual_seed(seed)
    learner = completed(build_part(study.learner, model), Learner)
    wanted = inspect.signature(resolve(study.source.target)).parameters
    offered = {"model": model, "sampling": sampling, "seed": seed}
    source = study.source.load(**{k: v for k, v in offered.items() if k in wanted})
    target = transformer_of(model)
    done = train_drafter(learner, target, source, sampling, loss, study.data, study.train, folder)
    record = {
        **dataclasses.asdict(study),
        "loss": dataclasses.asdict(loss),
        "sampling": dataclasses.asdict(sampling),
        "target_sha256": model.weights_sha256,
        "drafter_sha256": learner.save(folder / DRAFTER),
        "steps": done.trainer.step,
        "seconds": done.trainer.seconds,
        **done.acceptance.figures(),
        "provenance": dataclasses.asdict(provenance(model.device)),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return done.acceptance
