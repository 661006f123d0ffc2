"""Muon: momentum whose matrix is made orthogonal, by Newton-Schulz iterations (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon).

The update is that of `torch.optim.Muon`, which always iterates in bfloat16. Where the processor
does not multiply bfloat16 that takes minutes per step, so here it iterates in `fast_dtype`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from decoders.training.precision import fast_dtype

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic polynomial
ITERATIONS = 5
EPS = 1e-7


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
