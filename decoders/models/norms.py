"""The norms of a transformer layer: of its states, and of every head's queries and keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in float32 inside, the dtype of x outside."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class HeadNorm(nn.Module):
    """LayerNorm of every head's query or key, with its own scale and shift (Chameleon); heads:
    H + K."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[R, H + K, T, d] queries and keys."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias
