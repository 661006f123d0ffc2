"""Settings of a training of the embedded models: where, how long, from what. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoders.api import DecoderError
from decoders.kinds import Amount, NotNegative, Seed, require
from decoders.tiny.targets import TARGETS

# Of each stage where nothing is set: less than three hours in all on two cores; on a faster machine
# a stage ends with its recipe's steps.
MINUTES = {"vq": 25.0, "target": 110.0, "drafter": 20.0, "clip": 20.0}
# Of the stages that are trained when they are named.
NAMED = {"eagle3": 35.0} | dict.fromkeys(TARGETS, 12.0)


@dataclass(frozen=True)
class Plan:
    """The settings of conf/recipe_config.yaml, which explains them. Raises DecoderError."""

    work: Path
    weights: Path
    device: str = "cpu"
    seed: Seed = 0
    steps: Amount | None = None
    minutes: NotNegative | None = None
    compile: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        require(self, "", DecoderError)
        for name in ("work", "weights"):
            object.__setattr__(self, name, Path(getattr(self, name)))
        self._keep_shipped()

    def settings(self, stage: str) -> dict[str, Any]:
        """What the recipe of a stage is given."""
        chosen: dict[str, Any] = {"seed": self.seed}
        if self.steps is not None:
            chosen["steps"] = self.steps
        if self.minutes is not None:
            chosen["budget_seconds"] = 60 * self.minutes
        elif self.steps is None:
            chosen["budget_seconds"] = 60 * (MINUTES | NAMED)[stage]
        return chosen

    def _keep_shipped(self) -> None:
        """Raises DecoderError where a stage would write over the shipped weights unasked: they took
        hours, and the stages that are not trained again would no longer belong to the new one."""
        from decoders.tiny.bundle import shipped

        kept = [shipped(target).resolve() for target in ("target", "plain")]
        if self.weights.resolve() in kept and not self.overwrite:
            raise DecoderError(
                f"this would write over the shipped weights in {self.weights}. Name another "
                "folder with weights=DIR (a study reads it with model.checkpoint=DIR), or say "
                "overwrite=true. Stages that are not trained again would no longer belong to new "
                "ones"
            )


def written_card(weights: Path) -> dict[str, Any]:
    """The entries of the written parts; DecoderError where there is no card."""
    from decoders.models.weights import read_json
    from decoders.tiny.bundle import CARD

    return read_json(weights / CARD)
