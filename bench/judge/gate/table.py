"""A target and a drafter so small that all that a decoder may do on them can be enumerated, in
float64: what remains of a total variation is below 1e-12.

The target's state is the mean of what it sees: one vector for every code at a place, zeros in a
slot that was never written. Its law is a random function of that. So a law differs wherever a slot
is missing, doubled, stale, empty or at a wrong place, as in an attention layer. The same function
of the prefix alone, without cache or masks, is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache
from decoders.executed import execution

BEYOND = 8  # places past the image's end that differ from each other
WIDE, SHARP, APART = 16, 1.0, 1.5  # hidden units; scale of the logits; of the drafter's own share


@dataclass(frozen=True)
class Net:
    """Context [..., W] float64 -> logits [..., V]."""

    first: Tensor
    second: Tensor

    @staticmethod
    def random(width: int, vocab: int, scale: float, generator: torch.Generator) -> Net:
        one, two = (
            torch.randn(*size, generator=generator, dtype=torch.float64)
            for size in ((width, WIDE), (WIDE, vocab))
        )
        return Net(4 * one, scale * two)

    def __call__(self, context: Tensor) -> Tensor:
        return torch.tanh(context @ self.first) @ self.second / WIDE**0.5


class TableTarget:
    """V codes, n places, one prefix position. `calls`: forwards since the last prefill."""

    prefix, barred = 1, None

    def __init__(self, vocab: int, length: int, seed: int) -> None:
        self.vocab_size, self.length, self.calls = vocab, length, 0
        self.width = 1 + (length + BEYOND) * vocab
        self.generator = torch.Generator().manual_seed(seed)
        self.net = Net.random(self.width, vocab, SHARP, self.generator)

    def content(self, codes: Tensor, places: Tensor) -> Tensor:
        """What a slot holds: codes, places [...] -> [..., W]."""
        index = 1 + places.clamp_max(self.length + BEYOND - 1) * self.vocab_size + codes
        return F.one_hot(index, self.width).double()

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        return KVCache(1, rows, capacity, 1, self.width, torch.float64, torch.device("cpu"))

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        rows, self.calls = guidance_rows * text.batch, 0
        start = torch.zeros(rows, 1, self.width, dtype=torch.float64)  # [R, P, W]
        start[..., 0] = 1.0
        slots = torch.zeros(rows, 1, dtype=torch.long)
        cache.write(0, cache.flat_index(slots), start[None, :, None].expand(2, -1, -1, -1, -1))
        return start

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        self.calls += 1
        content = self.content(codes, grid_index)  # [R, T, W]
        index = cache.flat_index(slots)
        cache.write(0, index, content[None, :, None].expand(2, -1, -1, -1, -1))
        held = cache.read(0)[1][:, 0]  # [R, S, W]
        seen = mask.double()
        return seen @ held / seen.sum(-1, keepdim=True)  # [R, T, W]

    def guided_logits(self, hidden: Tensor, cfg: float) -> Tensor:
        del cfg  # no guidance: one row an image
        return self.net(hidden)

    logits = guided_logits

    def context(self, codes: Tensor) -> Tensor:
        """The states that predict each of codes [B, n] and the one behind them, [B, n + 1, W]."""
        places = torch.arange(codes.shape[1]).expand_as(codes)
        start = torch.zeros(len(codes), 1, self.width, dtype=torch.float64)
        start[..., 0] = 1.0
        sums = torch.cat([start, self.content(codes, places)], 1).cumsum(1)
        return sums / sums.sum(-1, keepdim=True)


class TableDrafter:
    """Drafts from logits that are partly the target's."""

    def __init__(self, model: ImageModel) -> None:
        target: Any = model.target
        self.target = target
        generator = torch.Generator().manual_seed(target.generator.initial_seed() + 1)
        self.own = Net.random(target.width, target.vocab_size, APART, generator)

    def begin(
        self, text: TextFeatures, prefix_hidden: Tensor, sampling: Sampling, max_new: int,
        nodes: int,
    ) -> TableSession:  # fmt: skip
        return TableSession(self, prefix_hidden[: text.batch, -1], nodes)


class TableSession:
    """`decoders.propose.drafters.session.DraftSession`. sums [B, nodes + 1, W]: what a node and
    those above it hold."""

    def __init__(self, part: TableDrafter, prefix: Tensor, nodes: int) -> None:
        self.part, self.calls = part, 0
        self.sums = prefix[:, None].repeat(1, nodes + 1, 1)
        self.root_code = torch.zeros(len(prefix), dtype=torch.long)
        self.place = torch.zeros(len(prefix), dtype=torch.long)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        span = torch.arange(codes.shape[1])
        new = self.part.target.content(codes, start[:, None] + span)  # [B, T, W]
        self.sums[:, 0] += (new * (span < count[:, None])[..., None]).sum(1)
        self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        self.place = start + count - 1
        return self._logits(self.sums[:, 0])

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        index = parents[..., None].expand(-1, -1, self.sums.shape[-1])
        new = self.part.target.content(codes, (self.place[:, None] + depth).expand_as(codes))
        self.sums[:, nodes] = self.sums.gather(1, index) + new
        return self._logits(self.sums[:, nodes])

    def _logits(self, sums: Tensor) -> Tensor:
        self.calls += 1
        context = sums / sums.sum(-1, keepdim=True)
        return 0.6 * self.part.target.net(context) + self.part.own(context)


class TableText:
    def encode(self, prompts: list[str]) -> TextFeatures:
        return TextFeatures(torch.zeros(len(prompts), 1, 1), torch.ones(len(prompts), 1).bool())


@dataclass(frozen=True)
class TableTokenizer:
    codebook: Tensor

    def decode(self, codes: Tensor) -> Tensor:
        raise NotImplementedError("codes of a table model are no pictures")


def table_model(vocab: int = 3, length: int = 3, seed: int = 0) -> ImageModel:
    """V = vocab codes, n = length places, float64, eager."""
    target: Any = TableTarget(vocab, length, seed)
    book = torch.randn(vocab, 2, generator=torch.Generator().manual_seed(seed))
    return ImageModel(
        name=f"table-{vocab}x{length}",
        target=target,
        text=TableText(),
        tokenizer=TableTokenizer(F.normalize(book, dim=-1)),
        sampling=Sampling(),
        device=torch.device("cpu"),
        dtype=torch.float64,
        weights_sha256={},
        execution=execution("eager"),
    )
