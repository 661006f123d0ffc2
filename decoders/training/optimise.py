"""Optimisers, learning-rate schedules and precision of every training.

Muon is momentum whose matrix is made orthogonal, by Newton-Schulz iterations (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon). The update is that of `torch.optim.Muon`, which always
iterates in bfloat16. Where the processor does not multiply bfloat16 that takes minutes per step, so
here it iterates in `fast_dtype`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

SCHEDULES = ("cosine", "linear")
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic polynomial
ITERATIONS = 5
EPS = 1e-7


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16, or float32 on a processor that does not multiply bfloat16. There it is software: on
    two AVX2 cores that were not quite idle, Muon's step for the embedded target of 29 M took 149 s
    in bfloat16, and encoding 24 images 16 s, in float32 1.6 s."""
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return torch.bfloat16


def mixed(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to `fast_dtype`."""
    if fast_dtype(device) == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 (0.7 to 1.2), [m, n] -> [m, n]."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(fast_dtype(matrix.device))
    x = x / x.norm().clamp(min=EPS)  # the largest singular value is at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonal updates, decoupled weight decay; matrices only."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step along the gradients; parameters without one stay. No closure."""
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                momentum = state["momentum_buffer"]
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(parameter.grad.lerp(momentum, group["momentum"]))
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                parameter.add_(update.to(parameter.dtype), alpha=-scale)


def optimisers(
    module: nn.Module,
    lr: float,
    muon_lr: float,
    decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
) -> list[Any]:
    """Muon for the matrices inside the layers, AdamW for everything else.

    Muon reaches the same loss in about two thirds of the images, which is what makes training on
    two cores bearable. ``muon_lr`` 0 uses AdamW throughout.
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
    down = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return floor + (1 - floor) * down


def set_rate(optims: list[Any], factor: float) -> None:
    """Every group's rate as a factor of its peak."""
    for optimiser in optims:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * factor


def update(net: nn.Module, optims: list[Any], clip_norm: float, clip_value: float = 0.0) -> None:
    """A step of all optimisers along the gradients, which are then gone; 0 clips nothing."""
    if clip_value:
        torch.nn.utils.clip_grad_value_(net.parameters(), clip_value)
    if clip_norm:
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
    for optimiser in optims:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
