"""What every recipe shares: schedule, checkpoints that resume, a loss curve, progress with time
left.

A recipe is a step function; `fit` calls it. Everything that must survive a restart (weights,
optimiser, step) is in one checkpoint, written atomically, so a killed `make tiny` goes on.
"""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from decoders.training.optimise import rate, set_rate

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """One training: where it writes and how far it goes."""

    name: str
    out_dir: Path
    steps: int
    seed: int = 0
    warmup: int = 50
    floor: float = 0.02  # the last learning rate over the peak
    save_every: int = 100
    grad_clip: float = 1.0
    resume: bool = True
    history: list[dict[str, float]] = field(default_factory=list)
    progress: float = 0.0  # 0 to 1, of the schedule; set by `fit`
    done: int = 0  # steps taken, resumed ones included; set by `fit`

    @property
    def checkpoint(self) -> Path:
        return self.out_dir / f"{self.name}.ckpt"

    @property
    def resumes(self) -> bool:
        return self.resume and self.checkpoint.exists()

    @property
    def curve(self) -> Path:
        return self.out_dir / f"{self.name}.csv"


def cosine(step: int, run: Run) -> float:
    """Learning-rate factor: linear warm-up, then cosine down to ``run.floor``."""
    if step < run.warmup:
        return (step + 1) / run.warmup
    return rate("cosine", (step - run.warmup) / max(1, run.steps - run.warmup), run.floor)


def save(run: Run, step: int, seconds: float, module: nn.Module, optims: list[Any]) -> None:
    run.out_dir.mkdir(parents=True, exist_ok=True)
    partial = run.checkpoint.with_suffix(".partial")
    state = {
        "step": step,
        "seconds": seconds,
        "model": module.state_dict(),
        "optimisers": [o.state_dict() for o in optims],
    }
    torch.save(state, partial)
    partial.replace(run.checkpoint)
    with run.curve.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=sorted({k for row in run.history for k in row}))
        writer.writeheader()
        writer.writerows(run.history)


def restore(run: Run, module: nn.Module, optims: list[Any]) -> tuple[int, float]:
    """Returns (first step to do, seconds already spent)."""
    if not run.resumes:
        return 0, 0.0
    state = torch.load(run.checkpoint, weights_only=True)
    module.load_state_dict(state["model"])
    for optimiser, saved in zip(optims, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    if run.curve.exists():
        with run.curve.open() as file:
            run.history = [{k: float(v) for k, v in r.items() if v} for r in csv.DictReader(file)]
    logger.info("%s: resumed at step %d", run.name, state["step"])
    return int(state["step"]), float(state["seconds"])


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


def fit(
    run: Run,
    module: nn.Module,
    optims: list[Any],
    batches: Callable[[int], Any],
    loss_of: Callable[[Any], tuple[Tensor, dict[str, float]]],
    evaluate: Callable[[], dict[str, float]] | None = None,
    eval_every: int = 500,
    budget_seconds: float | None = None,
    ahead: bool = False,
) -> float:
    """Trains to ``run.steps`` or the budget, whichever ends first, and the schedule with it;
    returns seconds.

    ``batches(step)`` is a pure function of the step, so a resumed run sees the same data. ahead: it
    does not look at the module in training, so a batch may be made while the last one is used.
    """
    first, spent = restore(run, module, optims)
    run.done = first
    start = time.monotonic() - spent
    steps = range(first, run.steps)
    made = made_ahead(batches, steps) if ahead else map(batches, steps)
    bar: Iterable[int] = tqdm(steps, initial=first, total=run.steps, desc=run.name, mininterval=5.0)
    for step in bar:
        elapsed = time.monotonic() - start
        position = step
        if budget_seconds is not None:
            position = max(step, min(run.steps, int(run.steps * elapsed / budget_seconds)))
            if position >= run.steps:
                break
        run.progress = position / run.steps
        set_rate(optims, cosine(position if step >= run.warmup else step, run))
        loss, figures = loss_of(next(made))
        if not torch.isfinite(loss):
            raise FloatingPointError(f"{run.name}: loss {loss} at step {step}; lower the rate")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), run.grad_clip)
        for optimiser in optims:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        run.done = step + 1
        if step % 20 == 0 or step + 1 == run.steps:
            row = {"step": step, "seconds": elapsed, "loss": float(loss.detach()), **figures}
            if evaluate is not None and step and step % eval_every == 0:
                row.update(evaluate())
            run.history.append(row)
            if isinstance(bar, tqdm):
                bar.set_postfix({k: f"{v:.3f}" for k, v in row.items() if k not in ("step",)})
        if step and step % run.save_every == 0:
            save(run, run.done, time.monotonic() - start, module, optims)
    seconds = time.monotonic() - start
    save(run, run.done, seconds, module, optims)
    return seconds
