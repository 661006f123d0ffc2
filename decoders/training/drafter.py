"""Trains a drafter on the states of a target, embedded or official."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from decoders.api import Sampling
from decoders.training.data import StateData
from decoders.training.losses import AcceptanceRates, LossConfig, acceptance, drafter_loss
from decoders.training.states import Learner, States
from decoders.training.trainer import TrainConfig, Trainer


@dataclass
class Trained:
    """What a training leaves. steps and seconds include resumed runs."""

    steps: int
    seconds: float
    acceptance: AcceptanceRates
    history: list[dict[str, float]] = field(default_factory=list)


class DrafterTraining:
    """Trains a learner's net. folder: of checkpoint and curve."""

    def __init__(
        self,
        learner: Learner,
        data: StateData,
        sampling: Sampling,
        loss: LossConfig,
        config: TrainConfig,
        folder: Path,
    ) -> None:
        self.learner, self.data, self.sampling = learner, data, sampling
        self.loss, self.config = loss, config
        self.trainer = Trainer(learner.net, config, folder, asdict(loss))
        self.held_out: list[States] = []

    def run(self) -> Trained:
        """Trains to the end, from the checkpoint if there is one. Raises NumericalError."""
        evaluated: list[AcceptanceRates] = []

        def evaluate() -> dict[str, float]:
            evaluated.append(self.evaluate())
            return {f"held_{name}": value for name, value in evaluated[-1].figures().items()}

        self.trainer.fit(self.losses, evaluate)
        return Trained(self.trainer.step, self.trainer.seconds, evaluated[-1], self.trainer.history)

    def losses(self, step: int, share: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a step's images."""
        states, loss = self.data.at(step), self.loss.at(share)
        with self._autocast():
            return drafter_loss(
                self.learner, self.data.target, states, loss, self.config.seed, step
            )

    def evaluate(self) -> AcceptanceRates:
        """Held-out acceptance per depth; the states are computed once and kept."""
        config = self.config
        if not self.held_out:
            valid, size = self.data.source.valid, config.batch
            count = config.held_out if valid is None else min(valid, config.held_out)
            parts = (range(first, min(first + size, count)) for first in range(0, count, size))
            self.held_out = [self.data.states("valid", part) for part in parts]
        with self._autocast():
            return acceptance(
                self.learner, self.data.target, self.held_out, self.sampling, config.depth
            )

    def _autocast(self) -> Any:
        return self.config.autocast(self.data.target.output.weight.device)
