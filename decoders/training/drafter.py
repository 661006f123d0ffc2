"""Trains a drafter on the states of a target, embedded or official."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from torch import Tensor

from decoders.api import Sampling
from decoders.training.losses import AcceptanceRates, LossConfig, acceptance, drafter_loss
from decoders.training.states import Learner, StateData, States
from decoders.training.trainer import TrainConfig, Trainer


@dataclass
class TrainingResult:
    """What a training leaves: its trainer (steps, seconds and the curve, resumed runs included),
    and the acceptance of held-out drafts."""

    trainer: Trainer
    acceptance: AcceptanceRates


def train_drafter(
    learner: Learner,
    data: StateData,
    sampling: Sampling,
    loss: LossConfig,
    config: TrainConfig,
    folder: Path,
) -> TrainingResult:
    """Trains a learner's net to the end, from the checkpoint in `folder` if there is one. Writes
    checkpoint and curve there. Raises NumericalError."""
    target, rates = data.target, []
    device = target.output.weight.device
    trainer = Trainer(learner.net, config, folder, asdict(loss))

    @cache
    def held_out() -> list[States]:
        valid, size = data.source.valid, config.batch
        count = config.held_out if valid is None else min(valid, config.held_out)
        parts = (range(first, min(first + size, count)) for first in range(0, count, size))
        return [data.states("valid", part) for part in parts]

    def losses(step: int, share: float) -> tuple[Tensor, dict[str, Tensor]]:
        states = data.at(step)
        with config.autocast(device):
            return drafter_loss(learner, target, states, loss.at(share), config.seed, step)

    def evaluate() -> dict[str, float]:
        states = held_out()
        with config.autocast(device):
            rates.append(acceptance(learner, target, states, sampling, config.depth))
        return {f"held_{name}": value for name, value in rates[-1].figures().items()}

    trainer.fit(losses, evaluate)
    return TrainingResult(trainer, rates[-1])
