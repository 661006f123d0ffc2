"""Settings of a training of the embedded models: where, how long, from what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoders.api import DecoderError
from decoders.kinds import Amount, NotNegative, Seed, fitted, require
from decoders.models.weights import read_json
from decoders.tiny.bundle import CARD, shipped
from decoders.training.trainer import TrainConfig


@dataclass(frozen=True)
class Plan:
    """The settings of conf/recipe_config.yaml, which explains them. train: by name, the fields of
    `TrainConfig`. Raises DecoderError."""

    work: Path
    weights: Path
    train: dict[str, dict[str, Any]]
    device: str = "cpu"
    seed: Seed = 0
    steps: Amount | None = None
    minutes: NotNegative | None = None
    compile: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        require(self, "")
        for name in ("work", "weights"):
            object.__setattr__(self, name, Path(getattr(self, name)))
        self._keep_shipped()

    def config(self, name: str) -> TrainConfig:
        """How a part is trained. `steps` and `minutes` come before the recipe's own."""
        given = self.train[name] | {"seed": self.seed}
        if self.steps is not None:
            given |= {"steps": self.steps, "budget_seconds": None}
        if self.minutes is not None:
            given["budget_seconds"] = 60 * self.minutes
        config: TrainConfig = fitted(f"train.{name}", given, TrainConfig)
        return config

    def written(self) -> dict[str, Any]:
        """The entries of the parts that are written; DecoderError where there is no card."""
        return read_json(self.weights / CARD)

    def _keep_shipped(self) -> None:
        """Raises DecoderError where a stage would write over the shipped weights unasked: they took
        hours, and the stages that are not trained again would no longer belong to the new one."""
        kept = [shipped(target).resolve() for target in ("target", "plain")]
        if self.weights.resolve() in kept and not self.overwrite:
            raise DecoderError(
                f"this would write over the shipped weights in {self.weights}. Name another "
                "folder with weights=DIR (a study reads it with model.checkpoint=DIR), or say "
                "overwrite=true. Stages that are not trained again would no longer belong to new "
                "ones"
            )
