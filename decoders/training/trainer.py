"""The training loop of every drafter, embedded or official: steps, checkpoints, curves.

A step is a function of its number alone (which images, noise, roots), a batch is the sum of its
micro-batches wherever they run, and everything that must survive is in one checkpoint, written
atomically. So a run that was killed goes on to the same weights, and accumulation equals the large
batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.kinds import Amount, Count, NotNegative, Positive, Seed, require
from decoders.models.transformer import Transformer
from decoders.training.loop import CURVE, Loop
from decoders.training.losses import Acceptance, LossConfig, acceptance, drafter_loss
from decoders.training.optimise import SCHEDULES, mixed, optimisers, update
from decoders.training.shards import Ring
from decoders.training.states import Learner, States


@dataclass(frozen=True)
class TrainConfig:
    """The loop. batch: images a step; micro: images at once (0: all). lr is AdamW's, muon_lr that
    of Muon for the layers' matrices (0: AdamW throughout). clip_value and clip_norm: 0 is off.
    warmup: steps. precision: "bf16" autocast where the device multiplies bf16, or "float32".
    evaluate_every 0: at the end only. budget_seconds: the schedule ends then, whatever `steps`
    says.
    """

    steps: Count = 1000
    batch: Count = 4
    micro: Amount = 0
    lr: NotNegative = 1e-4
    muon_lr: NotNegative = 0.0
    decay: NotNegative = 0.01
    clip_value: NotNegative = 0.5
    clip_norm: NotNegative = 0.0
    warmup: Amount = 30
    schedule: str = "linear"
    floor: NotNegative = 0.0
    precision: str = "bf16"
    seed: Seed = 0
    log_every: Count = 20
    save_every: Count = 200
    evaluate_every: Amount = 500
    held_out: Count = 48
    depth: Count = 6
    resume: bool = True
    budget_seconds: Positive | None = None

    def __post_init__(self) -> None:
        require(self, "train.", DecoderError)
        if self.schedule not in SCHEDULES or self.precision not in ("bf16", "float32"):
            raise DecoderError(
                f"expected train.schedule in {SCHEDULES} and train.precision bf16 or float32, "
                f"found {self.schedule!r} and {self.precision!r}"
            )

    def decides(self) -> dict[str, Any]:
        """The settings that decide the weights: those a resumed run must share."""
        free = ("micro", "log_every", "save_every", "evaluate_every", "held_out", "depth", "resume")
        return {k: v for k, v in asdict(self).items() if k not in free}


@dataclass
class Trained:
    """What a training leaves. steps: done in all; seconds: spent in all, resumed runs included."""

    steps: int
    seconds: float
    acceptance: Acceptance
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains a learner's net on the states of a target. folder: checkpoint and curve."""

    def __init__(
        self,
        learner: Learner,
        target: Transformer,
        batches: Ring,
        sampling: Sampling,
        loss: LossConfig,
        config: TrainConfig,
        folder: Path,
    ) -> None:
        self.learner, self.target, self.batches = learner, target, batches
        self.sampling, self.loss, self.config, self.folder = sampling, loss, config, folder
        self.world, self.micro = batches.world, config.micro or batches.batch
        if batches.batch % self.micro:
            raise DecoderError(
                f"train.micro must divide the {batches.batch} images of a step in each process, "
                f"found {self.micro}"
            )
        self.device = target.output.weight.device
        self.optims = optimisers(learner.net, config.lr, config.muon_lr, config.decay)
        self.loop = self._loop()
        self._held: list[States] = []

    def _loop(self) -> Loop:
        given, known = asdict(self.config), [field.name for field in fields(Loop)]
        return Loop(
            "training",
            self.folder,
            **{name: given[name] for name in known if name in given},
            settings=self.config.decides() | asdict(self.loss),
            curve=CURVE,
            world=self.world,
        )

    def run(self) -> Trained:
        """Trains to the end, from the checkpoint if there is one.

        Raises NumericalError where the loss is not finite, DecoderError where the checkpoint is of
        another run.
        """
        loop, net = self.loop, self.learner.net
        loop.restore(net, self.optims)
        loop.run(net, self.optims, self._step, lambda: self._figures(self.evaluate()))
        found = self.evaluate()
        loop.note(self._figures(found))
        loop.save(net, self.optims)
        return Trained(loop.done, loop.seconds, found, loop.history)

    @staticmethod
    def _figures(found: Acceptance) -> dict[str, float]:
        return {f"held_{name}": value for name, value in found.figures().items()}

    def _step(self, step: int, share: float) -> dict[str, Tensor]:
        """One update; returns the batch's loss and its parts, summed over this process's
        micro-batches."""
        net, config, world = self.learner.net.train(), self.config, self.world
        now, local = self.loss.at(self.loop.annealed(share)), self.batches.batch
        sums = {"loss": torch.zeros((), device=self.device)}
        for first in range(0, local, self.micro):
            states = self.batches.at(step, first, self.micro)
            place = world.rank * local + first
            with self._autocast():
                loss, parts = drafter_loss(
                    self.learner, self.target, states, now, config.seed, step, place
                )
            share = self.micro / config.batch
            (loss * share).backward()
            for name, value in {"loss": loss.detach(), **parts}.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value * share
        world.sum_gradients(net.parameters())
        update(net, self.optims, config.clip_norm, config.clip_value)
        return sums

    def _autocast(self) -> Any:
        return nullcontext() if self.config.precision == "float32" else mixed(self.device)

    def evaluate(self) -> Acceptance:
        """Held-out acceptance per depth; the states are computed once and kept."""
        if not self._held:
            valid = self.batches.valid
            count = self.config.held_out if valid is None else min(valid, self.config.held_out)
            size = self.micro
            for first in range(0, count, size):
                self._held.append(self.batches.held_out(first, min(size, count - first)))
        self.learner.net.eval()
        with self._autocast():
            return acceptance(
                self.learner, self.target, self._held, self.sampling, self.config.depth
            )
