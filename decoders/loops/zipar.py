"""Rows of an image in parallel: ZipAR (2412.04062, decoders.md (q)).

A row opens once the row above has `window` codes; a forward then adds a code to every open row. So
the target changes. With the window at a row's width only one row is open: AR, code by code. Lane k
of an image is its k-th open row, the topmost first.

The first code of a row is drawn before the row above has its last code: its newest code stands in
for it. Nothing else sees the stand-in. Once a row is complete its last code is read again in its
true context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Piece, TextFeatures
from decoders.cache import CLOSED, additive_mask, cache_mask, round_up
from decoders.distribution import code_logits
from decoders.kinds import Within
from decoders.loops.base_loop import BatchLoop, DecodeState
from decoders.loops.trace import PairSampler, VisitedNodes
from decoders.noise import Noise

POLL = 8  # steps between looks at the images, at most, on an asynchronous device


@dataclass(kw_only=True)
class ZipState(DecodeState):
    """K lanes."""

    open: Tensor  # [R, S] float32 mask of the valid prefix
    done: Tensor  # [B, L + K] bool, codes that are there; behind L anything
    position: Tensor  # [B, K] int64, position of each lane's next code
    lanes: Tensor  # [B] int64, how many are open
    count: Tensor  # [B] int64, codes so far


@dataclass(eq=False, repr=False)
class ZipAR(BatchLoop):
    """window: codes of a row before the next one opens."""

    title = "ZipAR"
    exercised: ClassVar = {"window": 1}  # images of the gate have rows of a few codes

    window: Annotated[int, Within(1, 10**6)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.row = self.model.target.grid()[1]
        self.most = -(-self.row // min(self.window, self.row))  # K
        self.claims_law = self.most == 1
        self.forced = forced_codes(self.model.target)

    def __str__(self) -> str:
        return f"zipar(window={self.window})"

    def pieces(self) -> Sequence[Piece]:
        return [
            ("draft", self.draft),
            ("forward", self.forward),
            ("accept", self.verify_and_commit),
        ]

    @property
    def slots(self) -> int:
        """What is drafted stands behind the image."""
        return round_up(super().slots + self.most + 1)

    def steps(self, state: ZipState) -> Iterator[int]:
        size = self.model.target.length
        poll = 1 if self.model.device.type == "cpu" else POLL  # a look at a tensor costs nothing
        while (left := size - int(state.count.min())) > 0:
            yield from range(min(math.ceil(left / self.most), poll))

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> ZipState:
        target, batch, device = self.model.target, text.batch, self.model.device
        size, most = target.length, self.most
        prefill, shared = self.prefilled(text, noise, most)
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        done = torch.zeros(batch, size + most, dtype=torch.bool, device=device)
        done[:, 0] = True
        ones = torch.ones_like(prefill.first)
        position = ones[:, None].repeat(1, most)
        return ZipState(
            open=F.pad(additive_mask(valid), (0, self.slots - target.prefix), value=CLOSED),
            pairs=PairSampler(pairs, prefill.noise, size) if pairs else None,
            done=done,
            position=position,
            lanes=ones,
            count=ones.clone(),
            **shared,
        )

    def open_rows(self, state: ZipState) -> Tensor:
        """Opens a row below the last open one, where that has enough codes and there is one; which
        lanes are open then, [B, K] bool."""
        lane = torch.arange(self.most, device=state.position.device)  # [K]
        if self.most > 1:
            last = state.position.gather(1, state.lanes[:, None] - 1)  # [B, 1]
            below = (last // self.row + 1) * self.row
            enough = (last % self.row >= self.window) & (below < self.model.target.length)
            new = enough & (lane == state.lanes[:, None])  # [B, K]; none where all lanes are open
            state.position.copy_(torch.where(new, below, state.position))
            state.lanes.add_(new.sum(1))
        return (lane < state.lanes[:, None]) & (state.position < self.model.target.length)

    def stand_ins(self, state: ZipState) -> Tensor:
        """The code before each lane's next one, or what stands in for it, [B, K]."""
        codes, before = state.trace.codes, state.position - 1
        newest = codes.gather(1, before)
        if self.most == 1:
            return newest
        other = codes.gather(1, F.pad(before[:, :-1], (1, 0)))  # of the lane above, its newest
        if self.forced is not None:  # a row's end is known before it is decoded
            must = self.forced[before % len(self.forced)]
            other = torch.where(must >= 0, must, other)
        return torch.where(state.done.gather(1, before), newest, other)

    def draft(self, state: ZipState) -> tuple[Tensor, ...]:
        """Codes, positions and slots of the forward [B, Q], its mask [R, Q, S], and which lanes are
        open [B, K]; Q is K, and one more where several lanes are."""
        target, copies = self.model.target, self.sampling.guidance_rows
        opened = self.open_rows(state)
        codes, positions, live = self.stand_ins(state), state.position - 1, opened
        if self.most > 1:  # the last code of the complete rows, in its true context
            top = state.position[:, :1] // self.row * self.row - 1  # [B, 1]
            again = (top >= 0) & (state.position[:, :1] != top + 1)
            code = state.trace.codes.gather(1, top.clamp_min(0))
            codes, positions = torch.cat([codes, code], 1), torch.cat([positions, top], 1)
            live = torch.cat([live, again], 1)
        every = torch.arange(target.length + self.most + 1, device=live.device)  # [n]
        idle = every[target.length :][: live.shape[1]]
        here = torch.where(live, positions, idle)[..., None]  # [B, Q, 1], each written once
        done = F.pad(state.done[:, : target.length], (0, self.most + 1))[:, None]  # [B, 1, n]
        codes_mask = additive_mask(
            (done & (every < here) & live[..., None]) | (every == here)
        )  # [B, Q, n]
        mask = cache_mask(state.open, codes_mask.repeat(copies, 1, 1), target.prefix)  # [R, Q, S]
        return codes, torch.where(live, positions, 0), target.prefix + here[..., 0], mask, opened

    def forward(
        self,
        state: ZipState,
        codes: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        opened: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Which lanes are open, and guided logits [B, K, V] of their next codes."""
        target, copies = self.model.target, self.sampling.guidance_rows
        grid, wide = positions.repeat(copies, 1), slots.repeat(copies, 1)
        hidden = target.forward_codes(codes.repeat(copies, 1), grid, wide, mask, state.cache)
        hidden = hidden[:, : self.most]  # [R, K, D]
        return opened, code_logits(target, hidden, self.sampling.cfg, positions[:, : self.most] + 1)

    def verify_and_commit(self, state: ZipState, opened: Tensor, logits: Tensor) -> tuple[Any, ...]:
        """Draws a code for each open lane, records and commits; what it visited."""
        codes, p = self.draw(state, logits, state.position)
        return self.commit(state, codes, opened, p)

    def commit(self, state: ZipState, codes: Tensor, new: Tensor, p: Tensor) -> tuple[Any, ...]:
        """Writes the codes [B, K] of distributions p [B, K, V] of the open lanes [B, K], and moves
        these."""
        size, active = self.model.target.length, state.count < self.model.target.length
        over = size + torch.arange(self.most, device=new.device)
        index = torch.where(new, state.position, over)  # [B, K], each written once
        kind = torch.full_like(codes, int(CodeKind.TARGET))
        state.trace.put(
            index, codes, kind=kind, step=(state.trace.steps + 1)[:, None].expand_as(codes)
        )
        state.done.scatter_(1, index, True)
        state.count.add_(new.sum(1))
        state.trace.end_step(torch.where(active, 0, -1))
        at = torch.where(new, state.position, 0).flatten()
        row = torch.arange(new.numel(), device=new.device) // self.most  # [B K]
        state.position.add_(new.long())
        self.shift(state)
        visited = VisitedNodes(
            p.flatten(0, 1), None, codes.reshape(-1, 1), new.reshape(-1, 1),
            depth=torch.zeros_like(at), position=at, row=row,
        )  # fmt: skip
        return (visited,)

    def shift(self, state: ZipState) -> None:
        """A topmost row that is complete leaves its lane, where the row below is open."""
        if self.most == 1:
            return
        over = (state.lanes > 1) & (state.position[:, 0] % self.row == 0)  # [B]
        following = torch.cat([state.position[:, 1:], state.position[:, -1:]], 1)
        state.position.copy_(torch.where(over[:, None], following, state.position))
        state.lanes.sub_(over.long())


def forced_codes(target: Any) -> Tensor | None:
    """Codes that are certain at their positions: [W] int64, of a position n at n % W; -1 where the
    model chooses. None where it chooses everywhere."""
    if target.barred is None:
        return None
    open_ = ~target.barred  # [W, V]
    alone = open_.sum(-1) == 1
    return torch.where(alone, open_.int().argmax(-1), -1)
