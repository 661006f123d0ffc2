"""What a training of the embedded models is told, and the card that it enters its parts in."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoders.api import DecoderError

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
    compile: bool = False  # the target's layers are compiled: half the time per step
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


def _truth(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()]


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
        "compile": _truth,
        "resume": _truth,
        "warm": _truth,
        "overwrite": _truth,
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
    """Figures of a training that went on from another: what was spent counts together, and what was
    not measured again stays."""
    spent = ("images", "steps", "seconds")
    sums = {key: before.get(key, 0) + figures[key] for key in spent if key in figures}
    return before | figures | sums


def trained_on() -> str:
    import torch

    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
