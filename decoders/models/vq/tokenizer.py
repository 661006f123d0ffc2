"""Tokenizers as `decoders.api.ImageTokenizer`: codes to pictures, and the space of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.vq.llamagen_vq import to_unit

FAR = 100.0  # the row end's distance, in diameters of the codebook


class VQTokenizer:
    """A VQ model kept in float32: decoding costs little, rounding would show. vq: a `LlamaGenVQ`,
    or a `PictureDecoder`, which does not encode.

    row_end: code n of n + 1 follows the codes of every row and carries no picture.
    """

    def __init__(self, vq: Any, row_end: bool = False) -> None:
        self.vq, self.row_end = vq, row_end
        # [V, C], in the metric that codes are looked up with, and as it is stored
        self.codebook: Tensor = with_row_end(vq.codebook.detach(), row_end)
        self.raw_codebook: Tensor = with_row_end(vq.raw_codebook, row_end)

    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] int64 -> [B, 3, H, W] float32 in [0, 1]; row ends are dropped.

        Raises DecoderError where a row end stands inside a row, or L is not the image's.
        """
        side, count = self.vq.grid, len(self.codebook) - self.row_end
        if codes.shape[1] != side * (side + self.row_end):
            raise DecoderError(
                f"an image has {side} rows of {side} codes{' and a row end' * self.row_end}, found "
                f"{codes.shape[1]} codes"
            )
        codes = codes.to(self.codebook.device)
        if self.row_end:
            grid = codes.view(len(codes), side, side + 1)[:, :, :side]
            if bool((grid >= count).any()):
                raise DecoderError(
                    f"codes of a picture are below {count}, found {int(grid.max())} inside a row; "
                    "were they made by this model?"
                )
            codes = grid.flatten(1)
        return self.vq.decode(codes)  # [B, side**2] codes

    def encode(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] -> codes [B, L] with their row ends."""
        codes: Tensor = self.vq.encode(images)  # [B, side**2]
        if not self.row_end:
            return codes
        rows = codes.unflatten(1, (self.vq.grid, -1))
        return F.pad(rows, (0, 1), value=len(self.codebook) - 1).flatten(1)  # [B, side (side + 1)]


def with_row_end(codebook: Tensor, row_end: bool) -> Tensor:
    """codebook [n, C] -> [n + 1, C] where a row end is the last code: a vector so far from all the
    others that it is the last of everyone's neighbours."""
    if not row_end:
        return codebook
    diameter = 2 * codebook.norm(dim=-1).max().clamp_min(1e-3)
    far = torch.zeros_like(codebook[:1])
    far[:, 0] = FAR * diameter
    return torch.cat([codebook, far])


@dataclass(frozen=True)
class PictureDecoder:
    """net: codes [B, h, w] -> pictures [B, 3, H, W] around [-1, 1]. grid: codes per side. codebook
    [V, C]: in the metric that codes are looked up with, as it is stored."""

    net: Callable[[Tensor], Tensor]
    grid: int
    codebook: Tensor

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]."""
        return to_unit(self.net(codes.unflatten(1, (self.grid, -1))))


@dataclass(frozen=True)
class NoTokenizer:
    """A model that draws no pictures (`ImageModel.draws` is false). why: and what to do; table: the
    codebook [V, C], where there is one."""

    why: str
    table: Tensor | None = None
    missing = True

    @property
    def codebook(self) -> Tensor:
        if self.table is None:
            raise DecoderError(f"neighbours of codes need the VQ tokenizer, and {self.why}")
        return self.table

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    def decode(self, codes: Tensor) -> Tensor:
        """Raises DecoderError."""
        raise DecoderError(f"pictures need the VQ tokenizer, and {self.why}")
