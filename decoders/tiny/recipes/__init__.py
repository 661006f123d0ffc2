"""`make tiny`: trains the embedded models from nothing, stage by stage, and writes weights and
card.

Each stage reads the *written* weights of the stages before it (rounded as they ship), resumes from
its last checkpoint if it was interrupted, and adds its entry to ``weights/models.json``:
configuration, SHA-256, data, steps, seconds, held-out figures. Loss curves go to
``<work>/<stage>.csv``.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decoders.api import DecoderError

logger = logging.getLogger(__name__)
STAGES = ("vq", "target", "drafter")
# Of each stage, unless told: less than three hours in all on two cores; on a faster machine a stage
# ends with its recipe's steps.
MINUTES = {"vq": 25.0, "target": 110.0, "drafter": 20.0, "clip": 20.0}
# The written parts that a warm start of a stage rests on.
RESTS_ON = {
    "vq": ("vq",),
    "target": ("vq", "target"),
    "drafter": ("target", "eagle"),
    "clip": ("clip",),
}


@dataclass(frozen=True)
class Plan:
    """Where and how long a stage trains."""

    work: Path
    weights: Path
    device: str = "cpu"
    resume: bool = True
    seed: int = 0
    steps: int | None = None  # None: the recipe's own number
    minutes: float | None = None  # a stage and its schedule end then; None: `MINUTES`, or `steps`
    warm: bool = False  # stages go on from the written weights, not from nothing
    rate: float = 1.0  # factor of the target's learning rates
    overwrite: bool = False  # the weights that the program ships may be written over

    def settings(self, stage: str) -> dict[str, Any]:
        """What the recipe of a stage is told."""
        chosen: dict[str, Any] = {"seed": self.seed, "resume": self.resume}
        if self.steps is not None:
            chosen["steps"] = self.steps
        if self.minutes is not None:
            chosen["budget_seconds"] = 60 * self.minutes
        elif self.steps is None:
            chosen["budget_seconds"] = 60 * MINUTES[stage]
        return chosen

    def folder(self, stage: str) -> Path:
        """Where checkpoint and curve of a stage are: a warm start's beneath, under what it starts
        from, so that a checkpoint is resumed by the training it belongs to alone."""
        if not self.warm:
            return self.work / stage
        card = written_card(self.weights)
        begun = "_".join(card[part]["sha256"][:10] for part in RESTS_ON[stage] if part in card)
        return self.work / stage / f"from_{begun}"


def make(stages: Sequence[str] = STAGES, **settings: str) -> None:
    """Runs the stages in order. Settings: work=, weights=, device=, resume=, seed=, steps=,
    minutes=, warm=, rate=, overwrite=."""
    plan = plan_of(settings)
    keep_shipped(plan)
    from decoders.tiny.recipes.card import write_card

    runners: dict[str, Callable[[Plan], None]] = {"vq": _vq, "target": _target, "drafter": _drafter}
    for stage in stages:
        if stage not in runners:
            raise DecoderError(f"unknown stage {stage!r}: expected some of {', '.join(STAGES)}")
    for stage in (s for s in STAGES if s in stages):
        logger.info("training %s", stage)
        runners[stage](plan)
        write_card(plan.weights, plan.work)


def plan_of(settings: dict[str, str]) -> Plan:
    """Command-line settings -> Plan; DecoderError on an unknown name or a value of the wrong
    kind."""
    from decoders.tiny.bundle import WEIGHTS

    kinds: dict[str, Callable[[str], Any]] = {
        "work": Path,
        "weights": Path,
        "device": str,
        "seed": int,
        "steps": int,
        "minutes": float,
        "rate": float,
        "resume": lambda v: {"true": True, "false": False}[v.lower()],
        "warm": lambda v: {"true": True, "false": False}[v.lower()],
        "overwrite": lambda v: {"true": True, "false": False}[v.lower()],
    }
    values: dict[str, Any] = {"work": Path("work"), "weights": WEIGHTS}
    for name, value in settings.items():
        if name not in kinds:
            raise DecoderError(f"unknown setting {name!r}: expected one of {', '.join(kinds)}")
        try:
            values[name] = kinds[name](value)
        except (ValueError, KeyError) as error:
            raise DecoderError(f"{name}={value}: not a value of the right kind") from error
    return Plan(**values)


def keep_shipped(plan: Plan) -> None:
    """Raises DecoderError where a stage would write over the shipped weights unasked: they took
    hours, and the stages that are not trained again would no longer belong to the new one."""
    from decoders.tiny.bundle import WEIGHTS

    if plan.weights.resolve() == WEIGHTS.resolve() and not plan.overwrite:
        raise DecoderError(
            f"this would write over the shipped weights in {WEIGHTS}. Name another "
            "folder with weights=DIR (a study reads it with model.checkpoint=DIR), or say "
            "overwrite=true. Stages that are not trained again would no longer belong to new ones"
        )


def enter(plan: Plan, entries: Mapping[str, dict[str, Any]]) -> None:
    """Adds the entries of the parts that a stage made, and the settings of its training, to the
    card, all at once; the others stay."""
    from decoders.tiny.bundle import CARD, STAGE_OF, TRAINED_WITH

    path = plan.weights / CARD
    card = json.loads(path.read_text()) if path.exists() else {}
    for name, entry in entries.items():
        figures = entry["figures"]
        if plan.warm and name in card:
            figures = _added(card[name]["figures"], figures)
        settings = plan.settings(STAGE_OF.get(name, name))
        settings = settings | {"warm": plan.warm, "rate": plan.rate}
        made = {**card, **entries}
        others = {part: made[part]["sha256"] for part in TRAINED_WITH[name]}
        card[name] = entry | {"figures": figures, "settings": settings, "trained_with": others}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
    partial.replace(path)


def written_card(weights: Path) -> dict[str, Any]:
    """The entries of the written parts; DecoderError where there is no card."""
    from decoders.models.weights import read_json
    from decoders.tiny.bundle import CARD

    return read_json(weights / CARD)


def _added(before: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of a training that went on from another: what was spent counts together."""
    spent = ("images", "steps", "seconds")
    return figures | {key: before.get(key, 0) + figures[key] for key in spent if key in figures}


def trained_on() -> str:
    import torch

    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"


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


def _written_target(plan: Plan) -> Any:
    """The written text encoder and target, how many images they have seen, and whether the encoder
    has learned to read (if not, it begins anew)."""
    from decoders.tiny.bundle import load_part
    from decoders.tiny.recipes.target import CONFIG, Start, TextToCodes

    card = written_card(plan.weights)
    model = TextToCodes(CONFIG)
    figures = card["target"]["figures"]
    reads = "valid_naming" in figures
    if reads:
        load_part(plan.weights, card, "text", model.text)
    load_part(plan.weights, card, "target", model.target)
    return Start(model.requires_grad_(True).train(), int(figures["images"]), reads)


def _target(plan: Plan) -> None:
    from decoders.models.weights import write_weights
    from decoders.tiny.recipes import drafter, target

    start = _written_target(plan) if plan.warm else None
    model, figures = target.train(
        load_vq(plan.weights),
        plan.folder("target"),
        device=plan.device,
        start=start,
        rate=plan.rate,
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
            "config": asdict(target.CONFIG),
            "sha256": digest,
            "sampling": {"cfg": drafter.CFG},
            **shared,
        },
    }
    enter(plan, entries)


def _drafter(plan: Plan) -> None:
    from decoders.models.transformer import cast
    from decoders.models.weights import write_weights
    from decoders.tiny.bundle import load, load_drafter
    from decoders.tiny.recipes import drafter

    model = load(plan.device, "bfloat16", str(plan.weights), drafters=False)
    if plan.warm:  # it may go on from a drafter of an earlier target
        net, _ = load_drafter(plan.weights, written_card(plan.weights))
        model.drafters["eagle"] = cast(net, model.device, model.dtype)
    net, figures = drafter.train(
        model, plan.folder("drafter"), warm=plan.warm, **plan.settings("drafter")
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
