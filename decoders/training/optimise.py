"""Optimisers and learning-rate schedules of every training in this room."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from decoders.training.muon import Muon

SCHEDULES = ("cosine", "linear", "constant")


def optimisers(
    module: nn.Module,
    lr: float,
    muon_lr: float,
    decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
) -> list[Any]:
    """Muon for the matrices inside the layers, AdamW for everything else.

    Muon (orthogonalised momentum) reaches the same loss in about two thirds of the images, which is
    what makes training on two cores bearable. ``muon_lr`` 0 uses AdamW throughout.
    """
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        inner = parameter.ndim == 2 and ".layers." in f".{name}"
        (hidden if inner and muon_lr > 0 else rest).append(parameter)
    built: list[Any] = [torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=decay)]
    if hidden:
        built.append(Muon(hidden, lr=muon_lr, momentum=0.95, weight_decay=decay))
    for optimiser in built:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return built


def rate(schedule: str, progress: float, floor: float) -> float:
    """Learning-rate factor after the warm-up, `progress` in 0..1: down to `floor`."""
    progress = min(1.0, max(0.0, progress))
    if schedule == "constant":
        return 1.0
    down = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return floor + (1 - floor) * down


def set_rate(optims: list[Any], factor: float) -> None:
    """Every group's rate as a factor of its peak."""
    for optimiser in optims:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * factor
