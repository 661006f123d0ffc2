"""A target and a drafter of a few codes, so small that every image can be enumerated in float64.

The target's state is the mean of what it sees: one vector per code and position, zeros in a slot
that was never written. Its law is a random function of that. So its law changes if a slot is
missing, doubled, stale, empty or at a wrong position, as in an attention layer. The same function
of the prefix alone, without cache or masks, is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gate.small import GateCase
from decoders.api import ImageModel, Prefill, Sampling, TextFeatures
from decoders.cache import KVCache, bool_mask
from decoders.compose import DecoderSpec, PartSpec

DRAFTER = PartSpec(f"{__name__}.TableDrafter")
BEYOND = 8  # positions past the image's end that differ from each other
HIDDEN = 16  # units of the function from state to logits


class TableTarget:
    """V codes, n positions, one prefix position."""

    prefix, barred, schedule = 1, None, None

    def __init__(self, vocab: int, length: int, seed: int) -> None:
        self.vocab_size, self.length = vocab, length
        self.width = 1 + (length + BEYOND) * vocab
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = torch.eye(self.width, dtype=torch.float64)  # contents of slots; 0: the prefix
        sizes = (self.width, HIDDEN), (HIDDEN, vocab)
        self.first, self.second = (
            torch.randn(*size, generator=self.generator, dtype=torch.float64) for size in sizes
        )

    def grid(self) -> tuple[int, int]:
        """Two rows."""
        return 2, self.length // 2

    def content(self, codes: Tensor, positions: Tensor) -> Tensor:
        """What a slot holds: codes, positions [...] -> [..., W]."""
        return self.rows[
            1 + positions.clamp_max(self.length + BEYOND - 1) * self.vocab_size + codes
        ]

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        return KVCache(1, rows, capacity, 1, self.width, torch.float64, torch.device("cpu"))

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        rows = guidance_rows * text.batch
        start = self.rows[:1].expand(rows, 1, -1)  # [R, P, W]
        slots = torch.zeros(rows, 1, dtype=torch.long)
        cache.write(0, cache.flat_index(slots), start[None, :, None].expand(2, -1, -1, -1, -1))
        return start

    def forward_codes(
        self, codes: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        content = self.content(codes, positions)  # [R, T, W]
        index = cache.flat_index(slots)
        cache.write(0, index, content[None, :, None].expand(2, -1, -1, -1, -1))
        values = cache.read(0)[1][:, 0]  # [R, S, W]
        weight = bool_mask(mask).double()
        return weight @ values / weight.sum(-1, keepdim=True)  # [R, T, W]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] -> [..., V]."""
        return torch.tanh(4 * hidden @ self.first) @ self.second / HIDDEN**0.5

    output = logits

    def __call__(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """Teacher forcing without cache and mask: the states that predict each of the codes."""
        positions = torch.arange(codes.shape[1]).expand_as(codes)
        start = self.rows[:1].expand(len(codes), 1, -1)
        sums = torch.cat([start, self.content(codes, positions)[:, :-1]], 1).cumsum(1)
        return sums / sums.sum(-1, keepdim=True)  # [B, n, W]


class TableDrafter:
    """q is a random function of the last code and its position."""

    def __init__(self, model: ImageModel) -> None:
        target: Any = model.target
        generator = torch.Generator().manual_seed(target.generator.initial_seed() + 1)
        size = (target.length + BEYOND, target.vocab_size, target.vocab_size)
        self.table = torch.randn(*size, generator=generator, dtype=torch.float64)

    def begin(self, prefill: Prefill, max_new: int, nodes: int) -> TableSession:
        return TableSession(self.table, prefill.batch)


class TableSession:
    """`decoders.api.DraftSession`."""

    def __init__(self, table: Tensor, batch: int) -> None:
        self.table, self.calls = table, 0
        self.root_code = self.position = torch.zeros(batch, dtype=torch.long)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        self.position = position + count - 1
        return self.logits(self.root_code, self.position)

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        return self.logits(codes, (self.position[:, None] + depth).expand_as(codes))

    def logits(self, codes: Tensor, positions: Tensor) -> Tensor:
        self.calls += 1
        return self.table[positions.clamp_max(len(self.table) - 1), codes]


@dataclass(frozen=True)
class TableSides:
    """Text encoder and tokenizer of a table model, whose codes are no pictures."""

    codebook: Tensor

    def encode(self, prompts: list[str]) -> TextFeatures:
        return TextFeatures(torch.zeros(len(prompts), 1, 1), torch.ones(len(prompts), 1).bool())

    def decode(self, codes: Tensor) -> Tensor:
        raise NotImplementedError("codes of a table model are no pictures")


def table_model(vocab: int = 3, length: int = 3, seed: int = 0) -> ImageModel:
    """V = vocab codes, n = length positions, float64, eager."""
    target: Any = TableTarget(vocab, length, seed)
    book = torch.randn(vocab, 2, generator=torch.Generator().manual_seed(seed))
    sides = TableSides(F.normalize(book, dim=-1))
    return ImageModel(
        name=f"table-{vocab}x{length}",
        target=target,
        text=sides,
        tokenizer=sides,
        sampling=Sampling(),
        device=torch.device("cpu"),
        dtype=torch.float64,
        weights_sha256={},
    )


def table_spec(spec: DecoderSpec, model: ImageModel, codebook: int) -> DecoderSpec:
    """The composition on a table model: k relative to its codebook, its tree cut to what fits, and
    a table drafter in the place of its own."""
    small = GateCase(replace(spec, drafter=None), Sampling(), codebook).small_spec(model)
    return small if spec.drafter is None else replace(small, drafter=DRAFTER)
