"""What stands around a transformer's layers: norms, and embedders of what it is conditioned on.

Each embedder turns the prefix of R rows into its states; rows marked in `drop` get the
unconditional prefix instead (guidance, METHODS 2). Names follow LlamaGen's original checkpoints.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.models.nets.shape import TransformerConfig


class HeadNorm(nn.Module):
    """LayerNorm of every head's query or key, with its own scale and shift (Chameleon); heads:
    2 H."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[R, 2 H, T, d] queries and keys."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class CaptionMLP(nn.Module):
    """Text features [.., F] -> [.., D]."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(text_width, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Caption features [R, P, F], zero on the padding, or the unconditional embedding on all P
    positions."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.shape = (config.prefix, config.text_width)
        self.cap_proj = CaptionMLP(config.text_width, config.width)
        self.uncond_embedding = nn.Parameter(
            torch.randn(config.prefix, config.text_width) / config.text_width**0.5
        )

    def forward(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """R rows, drop [R] bool (True: unconditional) -> [R, P, D]."""
        if tuple(text.features.shape[1:]) != self.shape:
            raise DecoderError(
                f"text features must be [B, P, F] with (P, F) = {self.shape}, found "
                f"{tuple(text.features.shape)}; is this the model's own encoder?"
            )
        features = text.features * text.mask[..., None]
        features = torch.where(
            drop[:, None, None], self.uncond_embedding.to(features.dtype), features
        )
        return self.cap_proj(features.to(self.cap_proj.fc1.weight.dtype))


class LabelEmbedder(nn.Module):
    """A class as a prefix of one position; the last row of the table is the unconditional one."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.classes = config.classes
        self.embedding_table = nn.Embedding(config.classes + 1, config.width)

    def forward(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """features [R, 1] int64 -> [R, 1, D]."""
        if text.features.shape[1:] != (1,) or text.features.is_floating_point():
            raise DecoderError(
                f"a class-conditional model needs class numbers [B, 1] int64, found "
                f"{tuple(text.features.shape)} {text.features.dtype}"
            )
        return self.embedding_table(torch.where(drop[:, None], self.classes, text.features))
