"""The loop of every training: schedule, checkpoint that resumes, curve, progress with time left.

What a step does is its caller's. Everything that must survive a restart (weights, optimisers, step,
curve) is in one checkpoint, replaced atomically, so a training that was killed goes on.
"""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from decoders.api import DecoderError, NumericalError
from decoders.training.optimise import rate, set_rate, update
from decoders.training.processes import World

CURVE = "curve.csv"
logger = logging.getLogger(__name__)
Figures = Mapping[str, Tensor | float]


@dataclass
class Loop:
    """One training: where it writes and how far it goes. name: of the checkpoint (`name.ckpt`);
    curve: the file's name, None: `name.csv`. settings: those that decide the weights, which a run
    that is resumed must share. budget_seconds: the schedule ends then, whatever `steps` says.

    Set by the loop: done, steps taken; seconds, spent; history, rows of the curve, all of them with
    those of resumed runs.
    """

    name: str
    folder: Path
    steps: int
    warmup: int = 50
    schedule: str = "cosine"
    floor: float = 0.02  # the last learning rate over the peak
    log_every: int = 20
    save_every: int = 100
    evaluate_every: int = 500  # 0: never
    resume: bool = True
    budget_seconds: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    curve: str | None = None
    world: World = field(default_factory=World)
    history: list[dict[str, float]] = field(default_factory=list)
    done: int = 0
    seconds: float = 0.0

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.ckpt"

    @property
    def resumes(self) -> bool:
        return self.resume and self.checkpoint.exists()

    def share(self, step: int, elapsed: float) -> float:
        """How much of the training is done before a step, 0..1: of its steps, or of its budget."""
        done = step / self.steps
        return done if self.budget_seconds is None else max(done, elapsed / self.budget_seconds)

    def annealed(self, share: float) -> float:
        """How much is done of what follows the warm-up, where `share` of the whole is."""
        return (share * self.steps - self.warmup) / max(1, self.steps - self.warmup)

    def factor(self, step: int, share: float) -> float:
        """Learning-rate factor: linear warm-up, then the schedule."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return rate(self.schedule, self.annealed(share), self.floor)

    def run(
        self,
        net: nn.Module,
        optims: list[Any],
        step: Callable[[int, float], Figures],
        evaluate: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Takes the steps that are left, to `steps` or the budget, after `restore`.

        step: of its number and the share that is done, updates the net and returns `loss` and what
        else the curve shows. Raises NumericalError where the loss is not finite.
        """
        start = time.monotonic() - self.seconds
        for number in self._numbers():
            elapsed = self.world.share(time.monotonic() - start)
            share = self.share(number, elapsed)
            if share >= 1:
                break
            set_rate(optims, self.factor(number, share))
            figures = step(number, share)
            self.done, self.seconds = number + 1, time.monotonic() - start
            if number % self.log_every == 0:
                self._log(number, elapsed, figures)
            due = self.evaluate_every and self.done % self.evaluate_every == 0
            if evaluate and due and self.done < self.steps:
                self.note(evaluate())
            if self.done % self.save_every == 0:
                require_finite(figures["loss"], number)
                self.save(net, optims)
        self.seconds = time.monotonic() - start
        self.save(net, optims)

    def _numbers(self) -> Iterable[int]:
        every = range(self.done, self.steps)
        if not self.world.leads:
            return every
        return tqdm(every, self.name, self.steps, initial=self.done, mininterval=5.0)

    def _log(self, number: int, elapsed: float, figures: Figures) -> None:
        """A row of the curve: the first look at the loss since the last one, so that the device is
        waited for no more often."""
        device = torch.as_tensor(figures["loss"]).device
        held = [torch.as_tensor(value, dtype=torch.float32, device=device)
                for value in figures.values()]  # fmt: skip
        values = self.world.sum(torch.stack(held)).tolist()
        row = dict(zip(figures, values, strict=True))
        require_finite(row["loss"], number)
        self.history.append({"step": float(number), "seconds": elapsed} | row)

    def note(self, figures: Mapping[str, float]) -> None:
        """A row of held-out figures."""
        self.history.append({"step": float(self.done), "seconds": self.seconds, **figures})

    def save(self, net: nn.Module, optims: list[Any]) -> None:
        """Checkpoint and curve, by the leading process; the last checkpoint stays until the new one
        is whole."""
        if not self.world.leads:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "step": self.done,
            "seconds": self.seconds,
            "settings": self.settings,
            "history": self.history,
            "net": net.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in optims],
        }
        torch.save(state, partial)
        partial.replace(self.checkpoint)
        names = list(dict.fromkeys(key for row in self.history for key in row))
        with (self.folder / (self.curve or f"{self.name}.csv")).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=names)
            writer.writeheader()
            writer.writerows(self.history)

    def restore(self, net: nn.Module, optims: list[Any]) -> None:
        """Loads the checkpoint, if there is one. Raises DecoderError where it is of a run with
        other settings, or cannot be read."""
        if not self.resumes:
            return
        try:
            state = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            found = state["settings"]
        except (RuntimeError, EOFError, KeyError) as error:
            raise DecoderError(
                f"{self.checkpoint} cannot be read ({error}); remove it to start the training again"
            ) from error
        wanted = {**dict.fromkeys(found), **self.settings}
        if other := [name for name in wanted if found.get(name) != wanted[name]]:
            said = "; ".join(f"{k}: {found.get(k)} there, {wanted[k]} here" for k in other)
            raise DecoderError(
                f"{self.checkpoint} is of a run with other settings ({said}); choose another "
                "folder, set train.resume=false to start again, or keep the settings"
            )
        net.load_state_dict(state["net"])
        for optimiser, values in zip(optims, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
        self.done, self.seconds = int(state["step"]), float(state["seconds"])
        self.history = state["history"]
        logger.info("%s: resumed at step %d", self.name, self.done)


def require_finite(loss: Tensor | float, step: int) -> None:
    if not bool(torch.as_tensor(loss).isfinite()):
        raise NumericalError(
            f"the loss is {float(loss)} at step {step}: expected a finite number; lower train.lr "
            "(or train.muon_lr), or train in float32"
        )


def fit(
    loop: Loop,
    net: nn.Module,
    optims: list[Any],
    batches: Callable[[int], Any],
    loss_of: Callable[[Any, float], tuple[Tensor, Figures]],
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    ahead: bool = False,
) -> None:
    """Trains a net on batches of its own, from the checkpoint if there is one.

    ``batches(step)`` is a pure function of the step, so a resumed run sees the same data. loss_of:
    of a batch and the share of the training that is done, the loss and what else the curve shows.
    ahead: a batch does not look at the net, so it may be made while the last one is used.
    """
    loop.restore(net, optims)
    steps = range(loop.done, loop.steps)
    made = made_ahead(batches, steps) if ahead else map(batches, steps)

    def step(number: int, share: float) -> Figures:
        del number
        loss, figures = loss_of(next(made), share)
        loss.backward()
        update(net, optims, clip_norm=1.0)
        return {"loss": loss.detach(), **figures}

    loop.run(net, optims, step, evaluate)


def made_ahead(batches: Callable[[int], Any], steps: range) -> Iterator[Any]:
    """batches(step) of every step, each made by one thread while the one before it is used."""
    torch.get_num_threads()  # the caller's own number is fixed before the maker's 1 is the default
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        coming = pool.submit(batches, steps[0]) if steps else None
        for step in steps:
            assert coming is not None
            made = coming.result()
            if step + 1 in steps:
                coming = pool.submit(batches, step + 1)
            yield made
