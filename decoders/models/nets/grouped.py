"""Targets that predict several codes in one forward, along a *schedule*: the positions of an image
in some order, cut into groups. The codes of a group are drawn at once, each from its own
distribution.

* PAR (2412.15119): the image is r x r regions. The first code of each region is drawn one by one,
  then groups of n = r * r codes, one of each region, at the same offset. n - 1 learned tokens stand
  before the last of the first codes, so that n queries predict the first whole group.
* SATIC (2106.09436; also the idea of SAIC, 2110.05342): the next `span` codes in raster order.
* COrAL (2410.09675): the same, and a forward predicts its own codes again (`refined`).
* Plain next-code prediction: groups of one.

A forward reads the codes of the last group and predicts the next one: query k predicts code k. With
fewer codes than the next group, learned tokens stand in front; they are rows of the embedding
behind the codes. A query sees the prefix, all earlier groups, and its own group in both directions.

Ours: a learned token is rotated to the position that it predicts. COrAL's heads for every offset
are two here, its window is the group, and its model is not trained from a next-token one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.cache import GrowingCache
from decoders.kinds import Size
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer, attention_bias


@dataclass(frozen=True)
class GroupedConfig(TransformerConfig):
    """order: raster, groups of the next `span` codes behind the first one; or regions, `span` x
    `span` of them. refines: a forward also predicts again the codes that it reads."""

    order: Literal["raster", "regions"] = "raster"
    span: Size = 1
    refines: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order == "regions" and (self.grid % self.span or self.row_end):
            raise DecoderError(
                f"{self.span} x {self.span} regions must divide a grid of {self.grid} codes "
                "without row ends; choose another span"
            )
        if self.refines and self.order != "raster":
            raise DecoderError("a target that refines its codes has order=raster")


@dataclass(frozen=True)
class Schedule:
    """groups: the positions of an image, each once; the first group is one position, which the
    prefix predicts. refines: see `GroupedConfig`."""

    groups: tuple[tuple[int, ...], ...]
    refines: bool = False

    @classmethod
    def of(cls, config: GroupedConfig) -> Schedule:
        span, grid, size = config.span, config.grid, config.length
        if config.order == "raster":
            parts = [range(first, min(first + span, size)) for first in range(1, size, span)]
            return cls(((0,), *map(tuple, parts)), config.refines)
        side = range(grid // span)
        corners = [
            (row * grid + column) * len(side) for row in range(span) for column in range(span)
        ]
        first, *others = [tuple(c + i * grid + j for c in corners) for i in side for j in side]
        return cls((*((position,) for position in first), *others), config.refines)

    @property
    def wide(self) -> int:
        """N, codes of the largest group."""
        return max(map(len, self.groups))

    @cached_property
    def forwards(self) -> list[list[tuple[int, int]]]:
        """(source, position) of every query, for each forward behind the prefix; the k-th predicts
        code k of the next group. source: the code at a position, or L + j, learned token j."""
        size, queries = sum(map(len, self.groups)), []
        for group, later in zip(self.groups, self.groups[1:], strict=False):
            tokens = range(len(later) - len(group))
            queries.append([(size + j, later[j]) for j in tokens] + [(i, i) for i in group])
        return queries

    def query_tables(self, prefix: int) -> dict[str, Tensor]:
        """Tables of all queries of an image in order, see `GroupedTransformer`. On the CPU."""
        queries = [(*query, step) for step, every in enumerate(self.forwards) for query in every]
        source, position, turn = (list(column) for column in zip(*queries, strict=True))
        predictor = [0] * sum(map(len, self.groups))
        for step, group in enumerate(self.groups[1:]):
            first = 1 + turn.index(step)
            for k, at in enumerate(group):
                predictor[at] = first + k
        table = {"source": source, "position": position, "predictor": predictor}
        table["turn"] = [*range(-prefix, 0), *turn]
        return {name: torch.tensor(values, device="cpu") for name, values in table.items()}


class GroupedTransformer(Transformer):
    """A target with a schedule. `schedule` is None where every group is one code in raster order:
    such a target is one like all others."""

    config: GroupedConfig
    source: Tensor  # [Q] int64, see `Schedule.forwards`
    position: Tensor  # [Q] int64
    turn: Tensor  # [P + Q] int64, the forward of every query, from 0; below 0 on the prefix
    predictor: Tensor  # [L] int64, which state from the prefix's last on predicts a position

    def __init__(self, config: GroupedConfig) -> None:
        super().__init__(config)
        schedule = Schedule.of(config)
        self.tok_embeddings = nn.Embedding(config.vocab + schedule.wide - 1, config.width)
        self._init(self.tok_embeddings)
        if config.refines:
            self.refine = nn.Linear(config.width, config.width, bias=False)
            self._init(self.refine)
        for name, table in schedule.query_tables(config.prefix).items():
            self.register_buffer(name, table, persistent=False)
        self.schedule = schedule if schedule.wide > 1 else None

    def tables(self) -> dict[str, Tensor | None]:
        return super().tables() | Schedule.of(self.config).query_tables(self.config.prefix)

    def refined(self, hidden: Tensor) -> Tensor:
        """The states [..., D] that predict again the codes that were read -> [..., D]; in float32,
        since it is compiled without roundings between its operators."""
        x = hidden.float()
        return (x + F.silu(F.linear(x, self.refine.weight.float()))).to(hidden.dtype)

    # ---- training -------------------------------------------------------------------------------

    def training_queries(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(self.vocab_size, len(self.tok_embeddings.weight), device=codes.device)
        readable = torch.cat([codes, rows.expand(len(codes), -1)], 1)  # [B, L + N - 1]
        return readable[:, self.source], self.position, self.turn

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor, cache: Any = None) -> Tensor:
        """The states [B, L, D] that predict codes 0..L-1; see `hidden_states`."""
        hidden = self.hidden_states(text, codes, drop, cache)[:, self.prefix - 1 :]
        return hidden[:, self.predictor]

    def drafted(
        self, text: TextFeatures, drafts: Tensor, drop: Tensor, cache: GrowingCache
    ) -> Tensor:
        """The states [B, L - 1, D] at drafts [B, L - 1] of all codes but the first, in raster
        order, each group behind the true codes of the forward that filled the cache."""
        size, span = drafts.shape[1], self.schedule.wide if self.schedule else 1
        group = torch.arange(size, device=drafts.device) // span  # [L - 1], the turn before its own
        earlier = self.turn <= group[:, None]  # [L - 1, P + Q]
        valid = F.pad(text.valid(drop), (0, len(self.turn) - self.prefix), value=True)
        together = (group == group[:, None]).expand(len(drafts), -1, -1)
        mask = torch.cat([earlier & valid[:, None], together], -1)  # [B, L - 1, P + Q + L - 1]
        x = self.embed(drafts).to(cache.parts[0][0].dtype)
        bias = attention_bias(mask, x.dtype)
        return self._run(x, self.rope[self.prefix + 1 :][:size], bias, cache, drafts)
