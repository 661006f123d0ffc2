"""A small word-level text encoder, trained together with the embedded target.

Two bidirectional layers over a closed vocabulary. A prompt outside the vocabulary is refused with
the nearest known words: a model that never saw a word has nothing honest to draw for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.documents import one_line
from decoders.errors import did_you_mean
from decoders.kinds import Within

TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")
SILENT = {".", "!", ";", ":", '"'}


@dataclass(frozen=True)
class WordEncoderConfig:
    vocabulary: tuple[str, ...]
    width: Annotated[int, Within(1, 2**20)] = 128
    layers: Annotated[int, Within(1, 1024)] = 2
    heads: Annotated[int, Within(1, 1024)] = 4
    prefix: Annotated[int, Within(1, 2**16)] = 32


class WordTokenizer:
    """Prompts -> left-padded word ids [B, P] (0 is padding) and their mask."""

    def __init__(self, vocabulary: tuple[str, ...], prefix: int) -> None:
        self.index = {word: i + 1 for i, word in enumerate(vocabulary)}
        self.prefix = prefix

    def ids(self, prompt: str) -> list[int]:
        tokens = [t for t in TOKEN.findall(one_line(prompt).lower()) if t not in SILENT]
        if not tokens:
            raise DecoderError(
                f"empty prompt {prompt!r}: expected an English caption of a scene, "
                "such as 'a small red ring on a plain grey background'"
            )
        unknown = [t for t in tokens if t not in self.index]
        if unknown:
            hints = ", ".join(f"{t!r}{did_you_mean(t, self.index)}" for t in unknown[:5])
            raise DecoderError(
                f"prompt {prompt!r} has {len(unknown)} of {len(tokens)} words that the embedded "
                f"text encoder never saw: {hints}. It knows {len(self.index)} words of scene "
                "captions; use prompts=scenes, or a model with a general text encoder"
            )
        if len(tokens) > self.prefix:
            raise DecoderError(
                f"prompt has {len(tokens)} words, at most {self.prefix} fit the "
                f"model's prefix: {prompt!r}; shorten it"
            )
        return [self.index[t] for t in tokens]

    def __call__(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        if not prompts:
            raise DecoderError("no prompts given: expected at least one caption")
        ids = torch.zeros(len(prompts), self.prefix, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            words = self.ids(prompt)
            ids[row, -len(words) :] = torch.tensor(words)
        return ids, ids > 0


class Block(nn.Module):
    """Pre-norm bidirectional transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, H, P, d] each
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class WordEncoder(nn.Module):
    """`decoders.api.TextEncoder` over word ids; positions count from the caption's first word."""

    def __init__(self, config: WordEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = WordTokenizer(config.vocabulary, config.prefix)
        self.words = nn.Embedding(len(config.vocabulary) + 1, config.width)
        self.positions = nn.Embedding(config.prefix, config.width)
        self.layers = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.words.weight, std=0.5)
        nn.init.normal_(self.positions.weight, std=0.2)

    def forward(self, ids: Tensor, mask: Tensor) -> TextFeatures:
        """ids, mask [B, P] -> features [B, P, F], zero on the padding."""
        position = (mask.long().cumsum(1) - 1).clamp_min(0)  # [B, P]
        x = self.words(ids) + self.positions(position)  # [B, P, F]
        eye = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
        visible = mask[:, None, None, :] | eye  # [B, 1, P, P]
        bias = torch.zeros(visible.shape, device=ids.device).masked_fill(~visible, float("-inf"))
        for layer in self.layers:
            x = layer(x, bias)
        return TextFeatures(self.norm(x) * mask[..., None], mask)

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Prompts -> features on the encoder's device; DecoderError on a prompt it cannot read."""
        ids, mask = self.tokenizer(prompts)
        device = self.words.weight.device
        return self(ids.to(device), mask.to(device))
