"""What stands around a transformer's layers: its shape (`TransformerConfig`), the tables that
follow from it (rotary factors, structural codes, token ids), the norm of heads, and embedders of
the prefix: rows marked in `drop` get the unconditional one (guidance, METHODS 2). Names follow
LlamaGen's original checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.kinds import NotNegative, Positive, Size, Within, validate_fields
from decoders.noise import OVERRUN


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a target or drafter; by default LlamaGen-XL's of stage I (2406.06525, table 7).
    vocab: V. grid: image side in codes. prefix: P. conditioning: the prefix is a caption's features
    [P, text_width], one of `classes` (P = 1), or token ids of the model's own vocabulary (`tokens`
    of them, of which the codes are a part). row_end: every row of the grid is closed by a
    structural code, V - 1, that no one may choose elsewhere (Lumina). positions: 2-D rotation over
    the grid, or 1-D along prefix and codes. pads: what a padded prefix position sees: nothing
    ("masked"), or what it sees in the released float32 code ("released", METHODS 6), which only the
    drafter's prefix notices."""

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
    """Computes rotary factors [P + L + OVERRUN, d / 2] complex64, interleaved pairs. On the grid:
    half of a head turns with the row, half with the column; zero past the end, zero or one on the
    prefix."""
    line, side = config.positions == "line", config.grid
    turned = config.head_dim if line else config.head_dim // 2  # entries that turn by one angle
    frequency = 1.0 / config.rope_base ** (torch.arange(0, turned, 2).float() / turned)
    if line:
        position = torch.arange(config.prefix + config.length + OVERRUN).float()
        angle = torch.outer(position, frequency)  # [P + L + OVERRUN, d / 2]
        return torch.polar(torch.ones_like(angle), angle)
    angle = torch.outer(torch.arange(side).float(), frequency)  # [grid, d / 4]
    both = [angle[:, None].expand(side, side, -1), angle[None].expand(side, side, -1)]
    grid = torch.cat(both, -1).flatten(0, 1)  # [grid**2, d / 2]
    cells = torch.polar(torch.ones_like(grid), grid)
    prefix = cells.new_full((config.prefix, turned), float(config.prefix_rope == "identity"))
    return torch.cat([prefix, cells, cells.new_zeros(OVERRUN, turned)])


def barred_codes(grid: int, vocab: int) -> Tensor:
    """Marks the codes that may not stand in a column of the grid, [grid + 1, V] bool, where the
    last code is a row end: in the last column all but the row end, elsewhere the row end alone."""
    last = torch.arange(grid + 1) == grid
    return last[:, None] != (torch.arange(vocab) == vocab - 1)


def tables(config: TransformerConfig) -> dict[str, Tensor | None]:
    """Makes the buffers that follow from a configuration, which are never stored."""
    tokens = torch.arange(config.vocab) if config.tokens else None
    barred = barred_codes(config.grid, config.vocab) if config.row_end else None
    return {"rope": rope_table(config), "barred": barred, "code_tokens": tokens}


# ---- modules ------------------------------------------------------------------------------------


class HeadNorm(nn.Module):
    """Normalises every head's query and key, with its own scale and shift (Chameleon); heads:
    2 H."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[R, 2 H, T, d] queries and keys."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class CaptionMLP(nn.Module):
    """Maps text features [.., F] -> [.., D]."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(text_width, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Embeds caption features [R, P, F], zero on the padding, or the unconditional embedding on all
    P positions."""

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
        uncond = self.uncond_embedding.to(features.dtype)
        features = torch.where(drop[:, None, None], uncond, features)
        return self.cap_proj(features.to(self.cap_proj.fc1.weight.dtype))


class LabelEmbedder(nn.Module):
    """Embeds a class as a prefix of one position; the last row of the table is unconditional."""

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
