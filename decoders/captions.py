"""Encoded prompts: what a target and a drafter read of them. Part of `decoders.api`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.errors import DecoderError


@dataclass(frozen=True)
class TextFeatures:
    """Encoded prompts, left-padded: the last valid position of every row is P - 1.

    What the features are is between encoder and target: a caption's features [B, P, F] float, a
    class number [B, 1] int64, or token ids of the model's own vocabulary [B, P] int64. Only the
    last has an unconditional prompt of its own.
    """

    features: Tensor
    mask: Tensor  # [B, P] bool, True where valid
    uncond: Tensor | None = None  # [B, P] int64
    uncond_mask: Tensor | None = None  # [B, P] bool

    @property
    def batch(self) -> int:
        return int(self.features.shape[0])

    def paired(self, copies: int) -> tuple[TextFeatures, Tensor]:
        """G copies as R = G * B rows, and which are unconditional, [R] bool."""
        drop = torch.arange(copies * self.batch, device=self.mask.device) >= self.batch
        fields = (self.features, self.mask, self.uncond, self.uncond_mask)
        rows = [None if t is None else torch.cat([t] * copies) for t in fields]
        return TextFeatures(*rows), drop  # type: ignore[arg-type]

    def valid(self, drop: Tensor) -> Tensor:
        """Validity of the prefix, [B, P] bool, where drop [B] bool marks unconditional rows."""
        if self.uncond_mask is None:
            return self.mask
        return torch.where(drop[:, None], self.uncond_mask, self.mask)

    def row_mask(self, copies: int) -> Tensor:
        """Validity of the prefix of all R rows, [R, P] bool."""
        rows, drop = self.paired(copies)
        return rows.valid(drop)

    def token_ids(self, drop: Tensor) -> Tensor:
        """Token ids of the prefix, [B, P] int64, where drop [B] bool marks unconditional rows."""
        if self.features.is_floating_point() or self.uncond is None:
            raise DecoderError(
                "this model reads token ids with an unconditional prompt, found "
                f"{self.features.dtype} features; is this the model's own encoder?"
            )
        return torch.where(drop[:, None], self.uncond, self.features)
