"""The output head: one matrix, or Janus's two layers (2501.17811): V2 gelu(V1 h + b1) + b2.

A matrix of 8,193 rows (Lumina's codes and the row end) costs a GPU a slower kernel, as its writes
are not aligned. So a head that is loaded for decoding has zero rows up to the next multiple of 64,
and what they give is cut off.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # a head is padded to a multiple: tiles of matrix kernels are full and their rows aligned


class GenerationHead(nn.Module):
    """[.., D] -> [.., V] through a hidden layer of D units."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.codes = nn.Linear(width, vocab)

    @property
    def weight(self) -> Tensor:
        """The last matrix [V, D], as of a linear head: its dtype and device are the target's."""
        return self.codes.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.codes(F.gelu(self.hidden(x)))


class PaddedHead(nn.Module):
    """A linear head [.., D] -> [.., V] whose matrix has zero rows up to a multiple of `ROWS`."""

    bias = None

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        weight = head.weight.detach()
        self.codes = len(weight)
        extra = -self.codes % ROWS
        self.rows = nn.Parameter(F.pad(weight, (0, 0, 0, extra)), head.weight.requires_grad)

    @property
    def weight(self) -> Tensor:
        """The matrix [V, D] without the zero rows."""
        return self.rows[: self.codes]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rows)[..., : self.codes]


def pad_head(target: Any) -> None:
    """Pads the head of a target whose weights are final, where it is one matrix of V rows and V no
    multiple of `ROWS`."""
    head = target.output
    if isinstance(head, nn.Linear) and head.out_features % ROWS:
        target.output = PaddedHead(head)


def output_head(cfg: Any) -> nn.Module:
    """The head of a `TransformerConfig`."""
    if cfg.head == "mlp":
        return GenerationHead(cfg.width, cfg.vocab)
    return nn.Linear(cfg.width, cfg.vocab, bias=False)
