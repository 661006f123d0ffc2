"""Shape of a transformer (`TransformerConfig`) and the tables that follow from it: rotary factors,
structural codes, token ids of the codes. Nothing here has weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kinds import NotNegative, Positive, Size, Within, validate_fields
from decoders.noise import OVERRUN


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a target or drafter; by default LlamaGen-XL's of stage I (2406.06525, table 7).

    vocab: V, the codes it predicts. grid: image side in codes. prefix: P. conditioning: the prefix
    is a caption's features [P, text_width], a class (P = 1; `classes` of them), or token ids of the
    model's own vocabulary (`tokens` of them, of which the codes are a part). row_end: every row of
    the grid is closed by a structural code, V - 1, that no one may choose elsewhere (Lumina).
    positions: 2-D rotation over the grid, or 1-D along prefix and codes. pads: what a padded prefix
    position sees: nothing ("masked"), or what it sees in the released float32 code ("released",
    METHODS 6), which only the drafter's prefix notices.
    """

    vocab: Size = 16384
    width: Size = 1280
    layers: Annotated[int, Within(0, 10_000)] = 36
    heads: Size = 20
    ffn: Size = 3584
    grid: Annotated[int, Within(1, 4096)] = 16
    prefix: Annotated[int, Within(0, 2**20)] = 120
    text_width: Annotated[int, Within(0, 2**24)] = 2048
    norm_eps: NotNegative = 1e-5
    prefix_rope: Literal["zero", "identity"] = "zero"
    conditioning: Literal["caption", "class", "tokens"] = "caption"
    classes: Annotated[int, Within(0, 2**24)] = 1000
    tokens: Annotated[int, Within(0, 2**24)] = 0
    positions: Literal["grid", "line"] = "grid"
    rope_base: Positive = 10000.0
    qk_norm: bool = False
    row_end: bool = False
    pads: Literal["masked", "released"] = "masked"

    def __post_init__(self) -> None:
        validate_fields(self, "the model's ")
        if self.width % self.heads or (self.width // self.heads) % 4:
            raise DecoderError(
                f"width {self.width} over {self.heads} heads must be a multiple of 4"
            )
        if self.conditioning == "class" and self.prefix != 1:
            raise DecoderError(f"a class is a prefix of one position, found {self.prefix}")
        if self.conditioning == "tokens" and self.tokens < self.vocab:
            raise DecoderError(
                f"the codes are part of the vocabulary: tokens {self.tokens} < codes {self.vocab}"
            )
        if self.pads == "released" and (self.positions, self.prefix_rope) != ("grid", "zero"):
            raise DecoderError('pads="released" is a property of LlamaGen\'s zero prefix rotation')

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def length(self) -> int:
        """L: positions of an image, structural codes included."""
        return self.grid * (self.grid + self.row_end)


def rope_table(config: TransformerConfig) -> Tensor:
    """[P + L + OVERRUN, d / 2] complex64, interleaved pairs. On the grid: half of a head turns with
    the row, half with the column; zero past the end, zero or one on the prefix."""
    if config.positions == "line":
        frequency = 1.0 / config.rope_base ** (
            torch.arange(0, config.head_dim, 2).float() / config.head_dim
        )
        position = torch.arange(config.prefix + config.length + OVERRUN).float()
        angle = torch.outer(position, frequency)  # [P + L + OVERRUN, d / 2]
        return torch.polar(torch.ones_like(angle), angle)
    half = config.head_dim // 2
    frequency = 1.0 / config.rope_base ** (torch.arange(0, half, 2).float() / half)  # [d / 4]
    angle = torch.outer(torch.arange(config.grid).float(), frequency)  # [grid, d / 4]
    side = config.grid
    grid = torch.cat(
        [angle[:, None].expand(side, side, -1), angle[None].expand(side, side, -1)], -1
    )
    cells = torch.polar(torch.ones_like(grid), grid).flatten(0, 1)  # [grid**2, d / 2]
    fill = 0.0 if config.prefix_rope == "zero" else 1.0
    prefix = torch.full((config.prefix, half), fill, dtype=cells.dtype)
    return torch.cat([prefix, cells, torch.zeros(OVERRUN, half, dtype=cells.dtype)])


def barred_codes(grid: int, vocab: int) -> Tensor:
    """[grid + 1, V] bool, for images whose last code is a row end: codes that may not stand in a
    column of the grid, in the last all but the row end, elsewhere the row end alone."""
    last = torch.arange(grid + 1) == grid
    return last[:, None] != (torch.arange(vocab) == vocab - 1)


def tables(config: TransformerConfig) -> dict[str, Tensor | None]:
    """The buffers that follow from a configuration: never stored, made at construction."""
    tokens = torch.arange(config.vocab) if config.tokens else None
    barred = barred_codes(config.grid, config.vocab) if config.row_end else None
    return {"rope": rope_table(config), "barred": barred, "code_tokens": tokens}
