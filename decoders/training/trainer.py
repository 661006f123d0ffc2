"""The trainer of everything that is trained here: tokenizer, target, drafters and CLIP.

A step is a function of its number alone. Weights, optimisers, step and curve are in one checkpoint,
which is replaced atomically. So a training that was killed goes on to the same weights.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from decoders.api import DecoderError, NumericalError
from decoders.interrupts import interruptible, stop_if_interrupted
from decoders.kinds import Amount, Count, NotNegative, Positive, Within, validate_fields
from decoders.models.loading.weights import load_pickle

SLOW_SHARE = 0.2  # of the learning rate, for parameters that were trained before
CHECKPOINT_FILE, CURVE_FILE = "training.ckpt", "curve.csv"
CHANGEABLE_SETTINGS = (  # settings in which a resumed run may differ
    *("steps", "budget_seconds", "save_minutes", "held_out", "depth", "workers"),
    *("log_every", "evaluate_every"),
)
logger = logging.getLogger(__name__)
Figures = Mapping[str, Tensor | float]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training, which conf/train/released.yaml explains. precision "bf16" is autocast
    where the device multiplies bf16."""

    steps: Count = 1000
    batch: Count = 4
    lr: NotNegative = 1e-4
    muon_lr: NotNegative = 0.0
    decay: NotNegative = 0.01
    clip_value: NotNegative = 0.5
    clip_norm: NotNegative = 0.0
    warmup: Amount = 30
    schedule: Literal["cosine", "linear"] = "linear"
    floor: NotNegative = 0.0
    precision: Literal["bf16", "float32"] = "bf16"
    seed: Annotated[int, Within(0, 2**40)] = 0  # of which there are a million per step
    log_every: Count = 20
    save_minutes: NotNegative = 1.0
    evaluate_every: Amount = 500
    held_out: Count = 48
    depth: Count = 6
    budget_seconds: Positive | None = None
    workers: Count = 1

    def __post_init__(self) -> None:
        validate_fields(self, "train.")

    def share(self, step: int, seconds: float) -> float:
        """Returns the share of the training done before a step, 0..1, of its steps or budget."""
        done = step / self.steps
        return done if self.budget_seconds is None else max(done, seconds / self.budget_seconds)

    def rate(self, step: int, share: float) -> float:
        """Returns the learning rate over its peak: linear warm-up, then the schedule."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (share * self.steps - self.warmup) / max(1, self.steps - self.warmup)
        progress = min(1.0, max(0.0, progress))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        height = cosine if self.schedule == "cosine" else 1 - progress
        return self.floor + (1 - self.floor) * height


class Trainer:
    """Trains `net`, from the checkpoint in `folder` if there is one. settings: others that a
    resumed run must share; slow: parameters whose rate is `SLOW_SHARE` of the others'. step: steps
    taken; seconds: spent; history: rows of the curve; all include resumed runs. Raises DecoderError
    for a checkpoint of a run with other settings."""

    def __init__(
        self,
        net: nn.Module,
        config: TrainConfig,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        slow: Sequence[nn.Parameter] = (),
    ) -> None:
        self.net, self.config, self.folder = net, config, folder
        fixed = {k: v for k, v in asdict(config).items() if k not in CHANGEABLE_SETTINGS}
        self.settings = fixed | dict(settings or {})
        self.checkpoint = folder / CHECKPOINT_FILE
        # Under autocast norms keep their float32 weights, of which torch warns.
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        self.optims = make_optimisers(net, config, slow)
        self.step, self.seconds = 0, 0.0
        self.history: list[dict[str, float]] = []
        if self.checkpoint.exists():
            self._restore()

    def batches(self, dataset: Dataset[Any]) -> Iterator[Any]:
        """Yields a data set's batches of the steps that are left, which worker processes make
        ahead."""
        steps, workers = range(self.step, self.config.steps), self.config.workers
        yield from DataLoader(dataset, batch_size=None, sampler=steps, num_workers=workers)

    @interruptible()
    def fit(
        self,
        losses: Callable[[int, float], tuple[Tensor, Figures]],
        evaluate: Callable[[], Mapping[str, float]],
    ) -> dict[str, float]:
        """Takes the steps that are left; returns the figures of the last evaluation, and how many
        images, steps and seconds it took. losses: of the step and the share of the training that is
        done, the step's loss with figures for the curve. Raises NumericalError where the loss, a
        weight or a figure is not finite."""
        config, net, saved = self.config, self.net, time.monotonic()
        start = saved - self.seconds

        def evaluated() -> dict[str, float]:
            net.eval()
            result = dict(evaluate())
            for figure, value in result.items():
                require_finite(value, f"the figure {figure}", self.step)
            self.history.append({"step": float(self.step), "seconds": self.seconds} | result)
            return result

        steps = range(self.step, config.steps)
        name = self.folder.name
        for step in tqdm(steps, name, config.steps, initial=self.step, mininterval=5.0):
            stop_if_interrupted()
            seconds = time.monotonic() - start
            share = config.share(step, seconds)
            if share >= 1:
                break
            net.train()
            loss, figures = losses(step, share)
            figures = {"loss": loss.detach(), **figures}
            loss.backward()
            if config.clip_value:
                nn.utils.clip_grad_value_(net.parameters(), config.clip_value)
            if config.clip_norm:
                nn.utils.clip_grad_norm_(net.parameters(), config.clip_norm)
            rate = config.rate(step, share)
            for optimiser in self.optims:
                for group in optimiser.param_groups:
                    group["lr"] = rate * group["initial_lr"]
                optimiser.step()
                optimiser.zero_grad()
            if step % config.log_every == 0:
                self._log(step, seconds, figures)
            self.step, self.seconds = step + 1, time.monotonic() - start
            every = config.evaluate_every
            if every and self.step % every == 0 and self.step < config.steps:
                evaluated()
            if time.monotonic() - saved >= 60 * config.save_minutes:
                self.save()
                saved = time.monotonic()
        result = evaluated()
        self.save()
        images = self.step * config.batch
        return {"images": images, "steps": self.step, "seconds": self.seconds, **result}

    def _log(self, step: int, seconds: float, figures: Figures) -> None:
        """Adds a row to the curve. Waits for the device only once."""
        device = torch.as_tensor(figures["loss"]).device
        values = [torch.as_tensor(v, dtype=torch.float32, device=device) for v in figures.values()]
        row = dict(zip(figures, torch.stack(values).tolist(), strict=True))
        require_finite(row["loss"], "the loss", step)
        self.history.append({"step": float(step), "seconds": seconds} | row)

    def save(self) -> None:
        """Replaces the checkpoint atomically, then writes curve.csv anew from its history. Raises
        NumericalError where a weight is not finite: the last sound checkpoint stays."""
        import pandas as pd

        for name, parameter in self.net.named_parameters():
            require_finite(float(parameter.detach().abs().max()), f"the weight {name}", self.step)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "settings": self.settings,
            "history": self.history,
            "net": self.net.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optims],
        }
        torch.save(state, partial)
        partial.replace(self.checkpoint)
        pd.DataFrame(self.history).to_csv(self.folder / CURVE_FILE, index=False)

    def _restore(self) -> None:
        """Reads the checkpoint. Raises DecoderError on a damaged one or one of other settings."""
        try:
            state = load_pickle(self.checkpoint)
        except DecoderError as error:
            raise DecoderError(f"{error}. Remove it to start the training again") from error
        before, now = state["settings"], self.settings
        if other := [k for k in {**before, **now} if before.get(k) != now.get(k)]:
            pairs = "; ".join(f"{k}: {before.get(k)} there, {now.get(k)} here" for k in other)
            raise DecoderError(
                f"{self.checkpoint} is of a run with other settings ({pairs}); choose another "
                "folder, remove the file to start again, or keep the settings"
            )
        self.net.load_state_dict(state["net"])
        for optimiser, values in zip(self.optims, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
        self.step, self.seconds = state["step"], state["seconds"]
        self.history = state["history"]
        logger.info("%s: resumed at step %d", self.folder, self.step)


def make_optimisers(
    net: nn.Module, config: TrainConfig, slow: Sequence[nn.Parameter] = ()
) -> list[torch.optim.Optimizer]:
    """Makes Muon for the matrices inside the layers, AdamW for everything else. slow: parameters
    whose rate is `SLOW_SHARE` of the others'. Muon reaches the same loss with two thirds of the
    images. It multiplies in bfloat16, which takes minutes per step on a processor without it."""
    inner: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in net.named_parameters():
        matrix = parameter.ndim == 2 and ".layers." in f".{name}"
        (inner if matrix and config.muon_lr else rest).append(parameter)
    slower = {id(parameter) for parameter in slow}

    def groups(parameters: list[nn.Parameter], rate: float) -> list[dict[str, Any]]:
        parts = [([p for p in parameters if id(p) not in slower], rate)]
        parts.append(([p for p in parameters if id(p) in slower], rate * SLOW_SHARE))
        return [{"params": part, "lr": lr} for part, lr in parts if part]

    decay = config.decay
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups(rest, config.lr), betas=(0.9, 0.95), weight_decay=decay)
    ]
    if inner:
        if fast_dtype(inner[0].device) == torch.float32:
            logger.warning("this processor multiplies bfloat16 slowly, and so Muon: set muon_lr=0")
        result.append(torch.optim.Muon(groups(inner, config.muon_lr), weight_decay=decay))
    for optimiser in result:
        for group in optimiser.param_groups:
            group["initial_lr"] = group["lr"]
    return result


def fast_dtype(device: torch.device) -> torch.dtype:
    """Returns bfloat16, or float32 on a processor that does not multiply bfloat16: there two AVX2
    cores encoded 24 images in 16 s in bfloat16, in float32 in 1.6 s."""
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return torch.bfloat16


def autocast(device: torch.device, half: bool = True) -> torch.autocast:
    """Computes in `fast_dtype` inside; half: False, in float32."""
    half = half and fast_dtype(device) == torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16, half)


def require_finite(value: float, what: str, step: int) -> None:
    if not math.isfinite(value):
        raise NumericalError(
            f"{what} is {value} at step {step}: expected a finite number; lower train.lr "
            "(or train.muon_lr), or train in float32"
        )
