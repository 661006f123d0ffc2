"""The training loop of every drafter, embedded or official: steps, checkpoints, curves.

A step is a function of its number alone (which images, noise, roots), a batch is the sum of its
micro-batches wherever they run, and everything that must survive is in one checkpoint, written
atomically. So a run that was killed goes on to the same weights, accumulation equals the large
batch, and several processes equal one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from decoders.api import DecoderError, NumericalError, Sampling
from decoders.kinds import Amount, Count, NotNegative, Positive, Seed, require
from decoders.models.transformer import Transformer
from decoders.training.acceptance import Acceptance, acceptance
from decoders.training.learner import Learner
from decoders.training.losses import LossConfig, drafter_loss
from decoders.training.optimise import SCHEDULES, optimisers, rate, set_rate
from decoders.training.precision import mixed
from decoders.training.processes import World
from decoders.training.progress import Saved, read_saved, write_curve, write_saved
from decoders.training.states import States

logger = logging.getLogger(__name__)


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
        if self.micro and self.batch % self.micro:
            raise DecoderError(
                f"train.micro must divide train.batch={self.batch}, found {self.micro}"
            )
        if self.schedule not in SCHEDULES or self.precision not in ("bf16", "float32"):
            raise DecoderError(
                f"expected train.schedule in {SCHEDULES} and train.precision bf16 or float32, "
                f"found {self.schedule!r} and {self.precision!r}"
            )

    def decides(self) -> dict[str, Any]:
        """The settings that decide the weights: those a resumed run must share."""
        free = ("micro", "log_every", "save_every", "evaluate_every", "held_out", "depth", "resume")
        return {k: v for k, v in asdict(self).items() if k not in free}


class Batches(Protocol):
    """States by step, and those that no step sees. See `shards.Ring`."""

    def prepare(self, step: int) -> None: ...

    def at(self, step: int, first: int, count: int) -> States: ...

    def held_out(self, first: int, count: int) -> States: ...

    @property
    def valid(self) -> int | None: ...


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
        batches: Batches,
        sampling: Sampling,
        loss: LossConfig,
        config: TrainConfig,
        folder: Path,
        world: World | None = None,
    ) -> None:
        self.learner, self.target, self.batches = learner, target, batches
        self.sampling, self.loss, self.config, self.folder = sampling, loss, config, folder
        self.world = world or World()
        self.micro = config.micro or config.batch // self.world.size
        if config.batch % (self.micro * self.world.size) or not self.micro:
            raise DecoderError(
                f"train.batch={config.batch} is not a whole number of micro-batches of "
                f"{self.micro} for each of {self.world.size} processes"
            )
        self.device = target.output.weight.device
        self.optims = optimisers(learner.net, config.lr, config.muon_lr, config.decay)
        self.history: list[dict[str, float]] = []
        self._held: list[States] = []

    def run(self) -> Trained:
        """Trains to the end, from the checkpoint if there is one.

        Raises NumericalError where the loss is not finite, DecoderError where the checkpoint is of
        another run.
        """
        config, world = self.config, self.world
        first, spent = self._restore()
        start = time.monotonic() - spent
        step = first
        for step in self._steps(first):
            elapsed = world.share(time.monotonic() - start)
            if config.budget_seconds is not None and elapsed >= config.budget_seconds:
                break
            self._prepare(step)
            progress = self._progress(step, elapsed)
            set_rate(self.optims, self._factor(step, progress))
            loss, parts = self._step(step, self.loss.at(progress))
            if step % config.log_every == 0:
                self._log(step, elapsed, loss, parts)
            done = step + 1
            if config.evaluate_every and done % config.evaluate_every == 0 and done < config.steps:
                self._note(self.evaluate(), done, elapsed)
            if done % config.save_every == 0:
                require_finite(loss, step)
                self._save(done, time.monotonic() - start)
        else:
            step = config.steps
        found = self.evaluate()
        seconds = time.monotonic() - start
        self._note(found, step, seconds)
        self._save(step, seconds)
        return Trained(step, seconds, found, self.history)

    def _steps(self, first: int) -> Iterable[int]:
        every = range(first, self.config.steps)
        if not self.world.leads:
            return every
        name = type(self.learner).__name__
        return tqdm(every, name, self.config.steps, initial=first, mininterval=5.0)

    def _prepare(self, step: int) -> None:
        """Shards of this step, computed by whoever's turn it is, seen by all."""
        self.world.wait()
        with torch.no_grad():
            self.batches.prepare(step)
        self.world.wait()

    def _progress(self, step: int, elapsed: float) -> float:
        """How much of the training is done, 0..1: of its steps, or of its budget."""
        config = self.config
        done = (step - config.warmup) / max(1, config.steps - config.warmup)
        if config.budget_seconds is not None:
            done = max(done, elapsed / config.budget_seconds)
        return done

    def _factor(self, step: int, progress: float) -> float:
        """Learning-rate factor: linear warm-up, then the schedule."""
        config = self.config
        if step < config.warmup:
            return (step + 1) / config.warmup
        return rate(config.schedule, progress, config.floor)

    def _step(self, step: int, now: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """One update; returns the batch's loss and its parts, summed over this process's
        micro-batches."""
        net, config, world = self.learner.net.train(), self.config, self.world
        total = torch.zeros((), device=self.device)
        sums: dict[str, Tensor] = {}
        starts = range(0, config.batch, self.micro)
        for first in list(starts)[world.rank :: world.size]:
            states = self.batches.at(step, first, self.micro)
            with self._autocast():
                loss, parts = drafter_loss(
                    self.learner, self.target, states, now, config.seed, step, first
                )
            share = self.micro / config.batch
            (loss * share).backward()
            total = total + loss.detach() * share
            for name, value in parts.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value * share
        world.sum_gradients(net.parameters())
        if config.clip_value:
            torch.nn.utils.clip_grad_value_(net.parameters(), config.clip_value)
        if config.clip_norm:
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip_norm)
        for optimiser in self.optims:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return total, sums

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

    def _log(self, step: int, elapsed: float, loss: Tensor, parts: dict[str, Tensor]) -> None:
        """A row of the curve: the first look at the loss since the last one, so that the device is
        waited for no more often."""
        names = list(parts)
        values = self.world.sum(torch.stack([loss, *(parts[n] for n in names)])).tolist()
        require_finite(loss, step)
        row = {"step": float(step), "seconds": elapsed, "loss": values[0]}
        self.history.append(row | dict(zip(names, values[1:], strict=True)))

    def _note(self, found: Acceptance, step: int, seconds: float) -> None:
        self.history.append({"step": float(step), "seconds": seconds} | {
            f"held_{k}": v for k, v in found.figures().items()
        })  # fmt: skip

    def _save(self, step: int, seconds: float) -> None:
        """Checkpoint and curve, by the leading process."""
        if self.world.leads:
            saved = Saved(step, seconds, self.config.decides() | asdict(self.loss), self.history)
            write_saved(self.folder, saved, self.learner.net, self.optims)
            write_curve(self.folder, self.history)

    def _restore(self) -> tuple[int, float]:
        """(first step to do, seconds already spent)."""
        if not self.config.resume:
            return 0, 0.0
        settings = self.config.decides() | asdict(self.loss)
        saved = read_saved(self.folder, settings, self.learner.net, self.optims)
        if saved is None:
            return 0, 0.0
        logger.info("resumed at step %d", saved.step)
        self.history = saved.history
        return saved.step, saved.seconds


def require_finite(loss: Tensor, step: int) -> None:
    if not bool(loss.isfinite()):
        raise NumericalError(
            f"the loss is {float(loss)} at step {step}: expected a finite number; lower train.lr "
            "(or train.muon_lr), or train in float32"
        )
