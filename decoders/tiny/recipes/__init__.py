"""`make tiny`: trains the embedded models from nothing, stage by stage, and writes weights and
card.

The large target and its drafter (``size=large``) start as the small ones, grown (`grow`).

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
GROWN = ("target", "drafter")  # the stages of the large model, whose tokenizer is the small one's
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
    size: str = "small"
    small: Path | None = None  # whose models a large one is grown from; None: the shipped ones

    @property
    def large(self) -> bool:
        return self.size != "small"

    @property
    def root(self) -> Path:
        """Where checkpoints and curves of all stages are."""
        return self.work / self.size if self.large else self.work

    @property
    def grows_from(self) -> Path:
        from decoders.tiny.bundle import WEIGHTS

        return self.small or WEIGHTS

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
        """Where checkpoint and curve of a stage are: beneath, under what it starts from, if that is
        not nothing, so that a checkpoint is resumed by the training it belongs to alone."""
        if not self.warm and not self.large:
            return self.root / stage
        card = written_card(self.weights if self.warm else self.grows_from)
        begun = "_".join(card[part]["sha256"][:10] for part in RESTS_ON[stage] if part in card)
        return self.root / stage / f"from_{begun}"


def make(stages: Sequence[str] = STAGES, **settings: str) -> None:
    """Runs the stages in order. Settings: work=, weights=, device=, resume=, seed=, steps=,
    minutes=, warm=, rate=, overwrite=, size=, small=."""
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


def plan_of(settings: dict[str, str]) -> Plan:
    """Command-line settings -> Plan; DecoderError on an unknown name or a value of the wrong
    kind."""
    from decoders.tiny.bundle import SIZES, shipped

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
        "size": str,
        "small": Path,
    }
    weights = shipped(settings.get("size", SIZES[0]))
    values: dict[str, Any] = {"work": Path("work"), "weights": weights}
    for name, value in settings.items():
        if name not in kinds:
            raise DecoderError(f"unknown setting {name!r}: expected one of {', '.join(kinds)}")
        try:
            values[name] = kinds[name](value)
        except (ValueError, KeyError) as error:
            raise DecoderError(f"{name}={value}: not a value of the right kind") from error
    return Plan(**values)


def require_stages(stages: Sequence[str], plan: Plan) -> None:
    """Raises DecoderError where the large model shall have what it borrows of the small one."""
    borrowed = [stage for stage in stages if plan.large and stage not in GROWN]
    if borrowed:
        raise DecoderError(
            f"size={plan.size} has no {borrowed[0]} of its own: expected some of the stages "
            f"{', '.join(GROWN)}"
        )


def keep_shipped(plan: Plan) -> None:
    """Raises DecoderError where a stage would write over the shipped weights unasked: they took
    hours, and the stages that are not trained again would no longer belong to the new one."""
    from decoders.tiny.bundle import SIZES, shipped

    kept = [shipped(size).resolve() for size in SIZES]
    if plan.weights.resolve() in kept and not plan.overwrite:
        raise DecoderError(
            f"this would write over the shipped weights in {plan.weights}. Name another "
            "folder with weights=DIR (a study reads it with model.checkpoint=DIR), or say "
            "overwrite=true. Stages that are not trained again would no longer belong to new ones"
        )


def enter(plan: Plan, entries: Mapping[str, dict[str, Any]]) -> None:
    """Adds the entries of the parts that a stage made, and the settings of its training, to the
    card, all at once; the others stay."""
    from decoders.tiny.bundle import CARD, STAGE_OF, TRAINED_WITH

    path = plan.weights / CARD
    card = json.loads(path.read_text()) if path.exists() else {}
    before = card if plan.warm else written_card(plan.grows_from) if plan.large else {}
    for name, entry in entries.items():
        figures = entry["figures"]
        if name in before:
            figures = _added(before[name]["figures"], figures)
        settings = plan.settings(STAGE_OF.get(name, name))
        settings = settings | {"warm": plan.warm, "rate": plan.rate, "size": plan.size}
        made = {**card, **entries}
        others = {part: made[part]["sha256"] for part in TRAINED_WITH[name]}
        card[name] = entry | {"figures": figures, "settings": settings, "trained_with": others}
    enter_all(plan.weights, card)


def enter_all(weights: Path, card: Mapping[str, Any]) -> None:
    """Writes the whole card."""
    from decoders.tiny.bundle import CARD

    path = weights / CARD
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


def _target(plan: Plan) -> None:
    from decoders.models.weights import write_weights
    from decoders.tiny.recipes import drafter, starts, target

    model, figures = target.train(
        load_vq(plan.weights),
        plan.folder("target"),
        device=plan.device,
        start=starts.of_target(plan),
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
