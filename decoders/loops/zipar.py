"""Rows of an image in parallel: ZipAR (2412.04062, decoders.md (q)).

A row opens once the row above has `window` codes; a forward then adds a code to every open row. So
the target changes. With the window at a row's width only one row is open: AR, code by code. Lane k
of an image is its k-th open row, the topmost first.

The first code of a row is drawn before the row above has its last code: its newest code stands in
for it (`first: newest`), or, after DiagD (2503.14070), the last code of the nearest complete row
(`first: above`). Nothing else sees the stand-in. Once a row is complete its last code is read again
in its true context. Adaptive: the first code of a row is drawn a step early and coupled to the law
that has seen one code more, step by step. The row opens once that keeps the code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Piece, TextFeatures
from decoders.cache import CLOSED, added, aligned, cache_mask
from decoders.distribution import code_logits, draw_distinct, probabilities
from decoders.kinds import Within
from decoders.loops.recording import PairSampler
from decoders.loops.start import BatchLoop, DecodeState
from decoders.noise import COUPLE_SLOT, TARGET_SLOT, Noise, sample
from decoders.propose.maximal import coupled
from decoders.propose.window import fresh_uniforms

POLL = 8  # steps between looks at the images, at most, on an asynchronous device


@dataclass(kw_only=True)
class ZipState(DecodeState):
    """K lanes."""

    open: Tensor  # [R, S] float32 mask of the valid prefix
    done: Tensor  # [B, L + K] bool, codes that are there; behind L anything
    place: Tensor  # [B, K] int64, place of each lane's next code
    lanes: Tensor  # [B] int64, how many are open
    count: Tensor  # [B] int64, codes so far
    held: Tensor  # [B, K] bool, whether a lane's first code waits (adaptive)
    drafts: Tensor  # [B, K] int64, what waits
    laws: Tensor  # [B, K, V], the laws that it was drawn from; [B, 0, V] where none ever waits


@dataclass(eq=False, repr=False)
class ZipAR(BatchLoop):
    """window: codes of a row before the next one opens. first: what stands in for the last code of
    the row above: newest, or above (DiagD)."""

    title = "ZipAR"
    exercised: ClassVar = {"window": 1}  # images of the gate have rows of a few codes

    window: Annotated[int, Within(1, 10**6)] = 8
    adaptive: bool = False
    first: Literal["newest", "above"] = "newest"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.row = self.model.target.grid()[1]
        self.most = -(-self.row // min(self.window, self.row))  # K
        self.claims_law = self.most == 1
        self.forced = forced_codes(self.model.target)

    def __str__(self) -> str:
        return f"zipar(window={self.window}, adaptive={self.adaptive}, first={self.first})"

    def pieces(self) -> Sequence[Piece]:
        return [
            ("draft", self.draft),
            ("forward", self.forward),
            ("accept", self.verify_and_commit),
        ]

    def steps(self, run: ZipState) -> Iterator[int]:
        size = self.model.target.length
        poll = 1 if self.model.device.type == "cpu" else POLL  # a look at a tensor costs nothing
        while (left := size - int(run.count.min())) > 0:
            yield from range(min(math.ceil(left / self.most), poll))

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> ZipState:
        target, batch, device = self.model.target, text.batch, self.model.device
        size, most = target.length, self.most
        slots = aligned(target.prefix + size + most + 1)
        start, shared = self.prefilled(text, noise, slots, most)
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        done = torch.zeros(batch, size + most, dtype=torch.bool, device=device)
        done[:, 0] = True
        ones = torch.ones_like(start.first)
        place = ones[:, None].repeat(1, most)
        return ZipState(
            open=F.pad(added(valid), (0, slots - target.prefix), value=CLOSED),
            pairs=PairSampler(pairs, start.noise, size) if pairs else None,
            done=done,
            place=place,
            lanes=ones,
            count=ones.clone(),
            held=torch.zeros(batch, most, dtype=torch.bool, device=device),
            drafts=0 * place,
            laws=start.law.new_zeros(batch, most * self.adaptive, target.vocab_size),
            **shared,
        )

    def opened(self, run: ZipState) -> Tensor:
        """Opens a row below the last open one, where that has enough codes and there is one; which
        lanes are open then, [B, K] bool."""
        lane = torch.arange(self.most, device=run.place.device)  # [K]
        if self.most > 1:
            last = run.place.gather(1, run.lanes[:, None] - 1)  # [B, 1]
            below = (last // self.row + 1) * self.row
            enough = (last % self.row >= self.window) & (below < self.model.target.length)
            new = enough & (lane == run.lanes[:, None])  # [B, K]; none where all lanes are open
            run.place.copy_(torch.where(new, below, run.place))
            run.lanes.add_(new.sum(1))
        return (lane < run.lanes[:, None]) & (run.place < self.model.target.length)

    def stand_ins(self, run: ZipState) -> Tensor:
        """The code before each lane's next one, or what stands in for it, [B, K]."""
        codes, before = run.record.codes, run.place - 1
        newest = codes.gather(1, before)
        if self.most == 1:
            return newest
        other = codes.gather(1, F.pad(before[:, :-1], (1, 0)))  # of the lane above, its newest
        if self.first == "above":
            top = run.place[:, :1] // self.row * self.row - 1  # [B, 1], end of the complete rows
            other = torch.where(top < 0, other, codes.gather(1, top.clamp_min(0)))
        if self.forced is not None:  # a row's end is known before it is decoded
            must = self.forced[before % len(self.forced)]
            other = torch.where(must >= 0, must, other)
        return torch.where(run.done.gather(1, before), newest, other)

    def draft(self, run: ZipState) -> tuple[Tensor, ...]:
        """Codes, places and slots of the forward [B, Q], its mask [R, Q, S], and which lanes are
        open [B, K]; Q is K, and one more where several lanes are."""
        target, copies = self.model.target, self.sampling.guidance_rows
        opened = self.opened(run)
        codes, places, live = self.stand_ins(run), run.place - 1, opened
        if self.most > 1:  # the last code of the complete rows, in its true context
            top = run.place[:, :1] // self.row * self.row - 1  # [B, 1]
            again = (top >= 0) & (run.place[:, :1] != top + 1)
            code = run.record.codes.gather(1, top.clamp_min(0))
            codes, places = torch.cat([codes, code], 1), torch.cat([places, top], 1)
            live = torch.cat([live, again], 1)
        every = torch.arange(target.length + self.most + 1, device=live.device)  # [n]
        idle = every[target.length :][: live.shape[1]]
        here = torch.where(live, places, idle)[..., None]  # [B, Q, 1], each written once
        done = F.pad(run.done[:, : target.length], (0, self.most + 1))[:, None]  # [B, 1, n]
        codes_mask = added((done & (every < here) & live[..., None]) | (every == here))  # [B, Q, n]
        mask = cache_mask(run.open, codes_mask.repeat(copies, 1, 1), target.prefix)  # [R, Q, S]
        return codes, torch.where(live, places, 0), target.prefix + here[..., 0], mask, opened

    def forward(
        self,
        run: ZipState,
        codes: Tensor,
        places: Tensor,
        slots: Tensor,
        mask: Tensor,
        opened: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Which lanes are open, and guided logits [B, K, V] of their next codes."""
        target, copies = self.model.target, self.sampling.guidance_rows
        grid, wide = places.repeat(copies, 1), slots.repeat(copies, 1)
        hidden = target.forward_codes(codes.repeat(copies, 1), grid, wide, mask, run.cache)
        hidden = hidden[:, : self.most]  # [R, K, D]
        return opened, code_logits(target, hidden, self.sampling.cfg, places[:, : self.most] + 1)

    def verify_and_commit(self, run: ZipState, opened: Tensor, logits: Tensor) -> tuple[Any, ...]:
        """Draws a code for each open lane, records and commits; what `PairSampler.offer` needs."""
        p = probabilities(logits, self.sampling)
        if self.sampling.greedy:
            codes = logits.argmax(-1)
        else:
            u = run.noise.at(run.place, TARGET_SLOT)  # [B, K, 1]
            codes = draw_distinct(p, u)[..., 0]
        run.record.check(p[..., 0])
        taken = opened
        if self.adaptive and self.most > 1:
            codes, taken = self.coupled(run, p, codes, taken)
        return self.commit(run, codes, taken, p)

    def coupled(
        self, run: ZipState, p: Tensor, codes: Tensor, taken: Tensor
    ) -> tuple[Tensor, Tensor]:
        """First codes of rows that are about to open: drawn, or coupled to the new law; whether
        they are taken. codes, taken [B, K], p [B, K, V]."""
        held = run.held & taken  # [B, K]
        if self.sampling.greedy:
            again = codes
        else:
            u = fresh_uniforms(run.noise, run.place, COUPLE_SLOT)[..., 0]
            again = sample(coupled(p, run.laws, run.drafts), u)
        codes = torch.where(held, again, codes)
        opening = (run.place % self.row == 0) & taken
        opening[:, 0] = False  # its context is complete
        waits = opening & ~(held & (codes == run.drafts))
        run.held.copy_(waits)
        run.drafts.copy_(codes)
        run.laws.copy_(p)
        return codes, taken & ~waits

    def commit(self, run: ZipState, codes: Tensor, taken: Tensor, p: Tensor) -> tuple[Any, ...]:
        """Writes the taken [B, K] codes [B, K] of laws p [B, K, V], and moves their lanes."""
        size, active = self.model.target.length, run.count < self.model.target.length
        new = taken & (run.place < size)
        over = size + torch.arange(self.most, device=new.device)
        index = torch.where(new, run.place, over)  # [B, K], each written once
        kind = torch.full_like(codes, int(CodeKind.TARGET))
        run.record.put(
            index, codes, kind=kind, step=(run.record.steps + 1)[:, None].expand_as(codes)
        )
        run.done.scatter_(1, index, True)
        run.count.add_(new.sum(1))
        run.record.end_step(torch.where(active, 0, -1))
        at = torch.where(new, run.place, 0).flatten()
        row = torch.arange(new.numel(), device=new.device) // self.most  # [B K]
        run.place.add_(taken.long())
        self.shift(run)
        visited = p.flatten(0, 1), None, codes.reshape(-1, 1), new.reshape(-1, 1)
        return *visited, torch.zeros_like(at), at, row

    def shift(self, run: ZipState) -> None:
        """A topmost row that is complete leaves its lane, where the row below is open."""
        if self.most == 1:
            return
        over = (run.lanes > 1) & (run.place[:, 0] % self.row == 0)  # [B]
        for state in (run.place, run.drafts, run.held, run.laws):
            if state.shape[1] == self.most:
                moved = torch.cat([state[:, 1:], state[:, -1:]], 1)
                wide = over.view(-1, *[1] * (state.ndim - 1))
                state.copy_(torch.where(wide, moved, state))
        run.lanes.sub_(over.long())
        lane = torch.arange(self.most, device=run.lanes.device)
        run.held.logical_and_(lane < run.lanes[:, None])


def forced_codes(target: Any) -> Tensor | None:
    """Codes that are certain at their places: [W] int64, of a place n at n % W; -1 where the model
    chooses. None where it chooses everywhere."""
    if target.barred is None:
        return None
    open_ = ~target.barred  # [W, V]
    alone = open_.sum(-1) == 1
    return torch.where(alone, open_.int().argmax(-1), -1)
