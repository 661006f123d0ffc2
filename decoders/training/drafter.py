"""Trains a drafter on the states of a target, embedded or official: loss, training, acceptance.

The loss (METHODS 6) is SmoothL1 on features + soft cross-entropy on distributions. Options, all off
in the released recipe: compare after guidance (that is where drafts are accepted), add the
acceptance of the exact rule itself (1 - sum min(p, q); DistillSpec, 2310.08461), unroll the drafter
on its own features (HASS, 2408.15766), and count a deeper draft only where at all depths above it
the code was among the drafter's likeliest ones (GRIFFIN, 2502.11018).

Held-out acceptance per depth is run as decoding would run it. The mean of sum_x min(p, q) at depth
d is the probability that the exact rule accepts a draft there, given that the d - 1 before it were
accepted; top-1 agreement is the same for greedy decoding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.distribution import code_logits, probabilities
from decoders.kinds import Amount, Count, NotNegative, Within, validate_fields
from decoders.models.nets.transformer import Transformer
from decoders.training.states import DataConfig, Drafted, ImageSource, Learner, StateData, States
from decoders.training.trainer import TrainConfig, Trainer, autocast

HELD_OUT_ROOTS = 64  # per image, from which held-out acceptance starts deeper drafts


@dataclass(frozen=True)
class LossConfig:
    """Weights and options of the loss, which conf/loss/released.yaml explains."""

    guided: bool = False
    cfg: NotNegative = 1.0
    regression: NotNegative = 1.0
    soft: NotNegative = 0.1
    overlap: NotNegative = 0.0
    noise: NotNegative = 0.2
    rollout: Count = 1
    unroll_from: Annotated[float, Within(0, 1, below=True)] = 0.0
    roots: Count = 64
    decay: Annotated[float, Within(0, 1, above=True)] = 1.0
    aligned: Amount = 0

    def __post_init__(self) -> None:
        validate_fields(self, "loss.")
        if not (self.regression or self.soft or self.overlap):
            raise DecoderError("loss.regression, loss.soft and loss.overlap are all 0")


def logits_at(drafted: Drafted, images: int, cfg: float) -> Tensor:
    """Computes the logits of what was drafted at one depth, [B, m, V] float32: guided where rows
    are paired; [R, m, V] of the rows where they are single."""
    paired, positions = len(drafted.hidden) == 2 * images, drafted.positions.expand(images, -1)
    return code_logits(drafted.head, drafted.hidden, cfg if paired else 1.0, positions)


def predicted(target: Transformer, states: States) -> Drafted:
    """Returns what the target itself predicts at positions 1..L-1."""
    positions = torch.arange(1, target.length, device=states.hidden.device)
    return Drafted(positions, states.hidden[:, target.prefix - 1 + positions], target)


def drafter_loss(
    learner: Learner,
    target: Transformer,
    states: States,
    config: LossConfig,
    seed: int = 0,
    step: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the scalar loss, a mean over images, and its parts (detached): `regression`, `soft`,
    `confidence` where the drafter says how sure it is (binary cross-entropy to the overlap, added
    as it is), and the overlap at each depth, sum_x min(p, q). Roots and noise, uniform on [-noise /
    2, noise / 2) of the states, follow from (seed, step)."""
    length, images, codes = target.length, len(states.images), states.images.codes
    depth, device = min(config.rollout, length - 1), states.hidden.device
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)  # the same on every device
    roots = torch.randperm(length - depth, generator=random)[: config.roots]
    if config.noise:
        uniform = torch.rand(states.hidden.shape, generator=random)
        noise = (config.noise * (uniform - 0.5)).to(device)  # [R, T, D]
        states = replace(states, noise=noise)
    right = predicted(target, states)
    with torch.no_grad():
        p = logits_at(right, images, config.cfg).softmax(-1)  # [B, L - 1, V]
    total, parts = torch.zeros((), device=device), dict[str, Any]()
    drafts = learner.draft(states, roots.sort().values.to(device), depth)
    whole = sum(config.decay**d for d in range(len(drafts)))
    counts = torch.ones_like(codes, dtype=torch.bool)  # [B, L], by root
    for d, drafted in enumerate(drafts):
        index = drafted.positions - 1  # [m]
        logits = logits_at(drafted, images, config.cfg)  # [B, m, V]
        weights = counts[:, index - d].float()  # [B, m]
        if config.aligned:
            counts = aligned(counts, logits, codes, index - d, d, config.aligned)

        def mean(values: Tensor, weights: Tensor = weights) -> Tensor:
            return (values * weights).sum() / weights.sum().clamp_min(1)

        regression = logits.new_zeros(())
        if drafted.states is not None:
            truth = right.hidden[:, index].float()  # [R, m, D]
            errors = F.smooth_l1_loss(drafted.states.float(), truth, reduction="none")
            regression = mean(errors.mean(-1).unflatten(0, (-1, images)).mean(0))
        soft = mean(-(p[:, index] * logits.log_softmax(-1)).sum(-1))  # nats
        accepted = torch.minimum(p[:, index], logits.softmax(-1)).sum(-1)  # [B, m]
        loss = config.regression * regression + config.soft * soft
        if config.overlap:
            loss = loss + config.overlap * mean(1 - accepted)
        terms = {"regression": regression, "soft": soft}
        if drafted.confidence is not None:
            sure, wanted = drafted.confidence.float(), accepted.detach()
            error = F.binary_cross_entropy_with_logits(sure, wanted, reduction="none")
            terms["confidence"] = mean(error)  # nats
            loss = loss + terms["confidence"]
        share = config.decay**d / whole
        for name, value in terms.items():
            parts[name] = parts.get(name, 0.0) + share * value.detach()
        parts[f"overlap_{d + 1}"] = accepted.mean().detach()
        total = total + share * loss
    return total, parts


@torch.no_grad()
def aligned(
    counts: Tensor, logits: Tensor, codes: Tensor, roots: Tensor, depth: int, top: int
) -> Tensor:
    """Returns which roots' chains [B, L] bool still count behind drafts at `depth` (from 0) from
    `roots` [m]: those whose code is among the `top` likeliest. counts: those that did so far;
    logits [B, m, V], codes [B, L]."""
    right = codes[:, roots + depth + 1, None]  # [B, m, 1]
    likelier = (logits > logits.gather(-1, right)).sum(-1)  # [B, m]
    counts = counts.clone()
    counts[:, roots] &= likelier < top
    return counts


# ---- held-out acceptance ------------------------------------------------------------------------


@dataclass(frozen=True)
class AcceptanceRates:
    """overlap[d - 1], agree[d - 1]: acceptance at depth d when sampling, and greedily."""

    overlap: list[float]
    agree: list[float]

    def chain_length(self) -> float:
        """Computes the codes per target forward of a chain of drafts: 1 + a_1 + a_1 a_2 + ..."""
        total, reached = 1.0, 1.0
        for accepted in self.overlap:
            reached *= accepted
            total += reached
        return total

    def figures(self) -> dict[str, float]:
        """Names the rates for curves and cards: overlap_1, ..., agree_1, ..., chain_length."""
        named = {f"overlap_{d}": value for d, value in enumerate(self.overlap, 1)}
        named |= {f"agree_{d}": value for d, value in enumerate(self.agree, 1)}
        return named | {"chain_length": self.chain_length()}


@torch.no_grad()
def measure_rates(
    learner: Learner, target: Transformer, batches: Iterable[States], sampling: Sampling, depth: int
) -> AcceptanceRates:
    """Measures acceptance at depths 1..depth. Depth 1 is measured at every position, deeper ones
    from `HELD_OUT_ROOTS` evenly spaced roots per image. p and q are processed by `sampling`
    (temperature 1 where it is greedy); guided where the states are paired, else without
    guidance."""
    drawn = sampling if not sampling.greedy else Sampling(1.0, sampling.cfg)
    depth = min(depth, target.length - 1)
    sums, agree, count = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    for states in batches:
        images, device = len(states.images), states.hidden.device
        truth = logits_at(predicted(target, states), images, sampling.cfg)  # [B, L - 1, V]
        p = probabilities(truth, drawn)
        last = target.length - depth - 1
        roots = torch.linspace(0, last, min(HELD_OUT_ROOTS, last + 1), device=device).long()
        for d, drafted in enumerate(learner.draft(states, roots, depth)):
            index = drafted.positions - 1
            logits = logits_at(drafted, images, sampling.cfg)
            q = probabilities(logits, drawn)
            sums[d] += torch.minimum(p[:, index], q).sum().cpu()
            agree[d] += (truth[:, index].argmax(-1) == logits.argmax(-1)).sum().cpu()
            count[d] += len(truth) * len(index)
    reached = count > 0  # a drafter may be shallower
    return AcceptanceRates((sums / count)[reached].tolist(), (agree / count)[reached].tolist())


# ---- training -----------------------------------------------------------------------------------


@dataclass
class TrainingResult:
    """What a training leaves: its trainer (steps, seconds and the curve, resumed runs included),
    what it learned from, and the acceptance of held-out drafts."""

    trainer: Trainer
    data: StateData
    acceptance: AcceptanceRates


def train_drafter(
    learner: Learner,
    target: Transformer,
    source: ImageSource,
    sampling: Sampling,
    loss: LossConfig,
    states: DataConfig,
    config: TrainConfig,
    folder: Path,
) -> TrainingResult:
    """Trains a learner's net to the end on the target's states along the source's images, from the
    checkpoint in `folder` if there is one. Writes checkpoint and curve there. Rows are paired where
    the loss is guided, held-out ones where `sampling` is. Raises NumericalError."""
    size, seed, guided = config.batch, config.seed, sampling.cfg != 1
    data = StateData(target, source, loss.guided, states, size, seed, guided, learner.reads)
    device, rates = target.output.weight.device, []
    trainer = Trainer(learner.net, config, folder, asdict(loss))

    @cache
    def held_out() -> list[States]:
        valid, size = data.source.valid, config.batch
        count = config.held_out if valid is None else min(valid, config.held_out)
        parts = (range(first, min(first + size, count)) for first in range(0, count, size))
        return [data.states("valid", part) for part in parts]

    def losses(step: int, share: float) -> tuple[Tensor, dict[str, Tensor]]:
        states = data.at(step)
        with autocast(device, config.precision == "bf16"):
            now = loss if share >= loss.unroll_from else replace(loss, rollout=1)
            return drafter_loss(learner, target, states, now, config.seed, step)

    def evaluate() -> dict[str, float]:
        states = held_out()
        with autocast(device, config.precision == "bf16"):
            rates.append(measure_rates(learner, target, states, sampling, config.depth))
        return {f"held_{name}": value for name, value in rates[-1].figures().items()}

    trainer.fit(losses, evaluate)
    return TrainingResult(trainer, data, rates[-1])
