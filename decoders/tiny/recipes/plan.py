"""Settings of a training of the embedded models: where, how long, from what. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from decoders.api import DecoderError
from decoders.tiny.drafters import DRAFTERS
from decoders.tiny.targets import TARGETS

STAGES = ("vq", "target", "drafter")
GROWN = ("target", "drafter")  # the stages of the large model, whose tokenizer is the small one's
# Of each stage where nothing is set: less than three hours in all on two cores; on a faster machine
# a stage ends with its recipe's steps.
MINUTES = {"vq": 25.0, "target": 110.0, "drafter": 20.0, "clip": 20.0}
# Of the stages that are trained when they are named.
NAMED = {name: one.minutes for name, one in DRAFTERS.items()} | dict.fromkeys(TARGETS, 12.0)
# The written parts that a warm start of a stage rests on.
RESTS_ON = {
    "vq": ("vq",),
    "target": ("vq", "target"),
    "drafter": ("target", "eagle"),
    "clip": ("clip",),
    **{name: (name,) for name in TARGETS},
}


@dataclass(frozen=True)
class Plan:
    """Where and how long a stage trains."""

    work: Path  # DIR checkpoints and curves (default: work)
    weights: Path  # DIR where weights go; the shipped ones need overwrite=true
    device: str = "cpu"  # where it trains
    resume: bool = True  # false: begin a stage anew that was interrupted
    seed: int = 0  # of all stages
    steps: int | None = None  # N of each stage; None: the recipe's own number
    minutes: float | None = None  # X a stage and its schedule end then; None: `MINUTES`, or `steps`
    warm: bool = False  # stages go on from the written weights, not from nothing
    rate: float = 1.0  # factor of the target's learning rates
    compile: bool = False  # the target's layers are compiled: half the time per step
    overwrite: bool = False  # the weights that the program ships may be written over
    size: str = "small"  # small or large
    small: Path | None = None  # DIR what a large one is grown from; None: the shipped small ones

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
        """What the recipe of a stage is given."""
        chosen: dict[str, Any] = {"seed": self.seed, "resume": self.resume}
        if self.steps is not None:
            chosen["steps"] = self.steps
        if self.minutes is not None:
            chosen["budget_seconds"] = 60 * self.minutes
        elif self.steps is None:
            chosen["budget_seconds"] = 60 * (MINUTES | NAMED)[stage]
        return chosen

    def folder(self, stage: str) -> Path:
        """Where checkpoint and curve of a stage are: beneath, under what it starts from, if that is
        not nothing, so that a checkpoint is resumed by the training it belongs to alone."""
        if not self.warm and (stage in DRAFTERS or not self.large):
            return self.root / stage
        card = written_card(self.weights if self.warm else self.grows_from)
        parts = RESTS_ON.get(stage, ("target", stage))
        begun = "_".join(card[part]["sha256"][:10] for part in parts if part in card)
        return self.root / stage / f"from_{begun}"


def written_card(weights: Path) -> dict[str, Any]:
    """The entries of the written parts; DecoderError where there is no card."""
    from decoders.models.weights import read_json
    from decoders.tiny.bundle import CARD

    return read_json(weights / CARD)


READ: dict[str, Callable[[str], Any]] = {  # a setting's kind -> its value from a word
    "Path": Path,
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda word: {"true": True, "false": False}[word.lower()],
}


def plan_of(settings: dict[str, str]) -> Plan:
    """Command-line settings -> Plan; DecoderError on an unknown name or a value of the wrong
    kind."""
    from decoders.tiny.bundle import SIZES, shipped

    kinds = {field.name: READ[str(field.type).removesuffix(" | None")] for field in fields(Plan)}
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
    borrowed = [s for s in stages if plan.large and s not in (*GROWN, *DRAFTERS)]
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
