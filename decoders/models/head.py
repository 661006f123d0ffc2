"""The output head: one matrix, or Janus's two layers (2501.17811): V2 gelu(V1 h + b1) + b2."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


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


def output_head(cfg: Any) -> nn.Module:
    """The head of a `TransformerConfig`."""
    if cfg.head == "mlp":
        return GenerationHead(cfg.width, cfg.vocab)
    return nn.Linear(cfg.width, cfg.vocab, bias=False)
