"""Rows of an image in parallel: ZipAR (2412.04062, decoders.md (q)).

A row opens once the row above has `window` codes; a forward then adds a code to every open row. So
the target changes, and no rule bounds by how much (docs/decoders.md has figures). With the window
at a row's width only one row is open: AR, code by code. Lane k of an image is its k-th open row,
the topmost first.

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

from decoders.api import CodeKind, Generation, Piece, TextFeatures
from decoders.cache import aligned
from decoders.distribution import code_logits, law_of, processed
from decoders.kinds import Within
from decoders.loops.recording import PairSampler
from decoders.loops.start import Batched, Moving
from decoders.noise import COUPLE_SLOT, TARGET_SLOT, Noise, sample
from decoders.propose.maximal import coupled
from decoders.propose.window import Places, fresh_uniforms

POLL = 8  # steps between looks at the images, at most, on an asynchronous device
First = Literal["newest", "above"]
Width = Annotated[int, Within(1, 10**6)]


@dataclass(kw_only=True)
class Run(Moving):
    """K lanes, M codes of a lane in a forward."""

    open: Tensor  # [R, S] bool, the valid prefix
    done: Tensor  # [B, L + K M] bool, codes that are there; behind L anything
    place: Tensor  # [B, K] int64, place of each lane's next code
    lanes: Tensor  # [B] int64, how many are open
    count: Tensor  # [B] int64, codes so far
    told: Tensor  # [B, K, M] bool, places of a lane whose law is known; ZipAR: whether one is held
    laws: Tensor  # [B, K, M, V], these laws
    drafts: Tensor  # [B, K] int64, what is held


@dataclass(frozen=True)
class Asked:
    """What the lanes ask of a forward. limit [B, K]: places of a lane that a step may decide on;
    codes, q: drafts behind each lane's newest code [B, K, M - 1], and their laws."""

    limit: Tensor
    codes: Tensor
    q: Tensor | None = None


class Rows(Batched):
    """Rows that are decoded in parallel; a subclass says how a lane goes on (`ask`, `settle`)."""

    called = "a loop over rows"
    lag: int  # codes of a row before the next one opens
    first: First
    wide = 1  # M
    keeps = False  # whether laws are kept from step to step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.row = self.model.target.grid()[1]
        self.lag = min(self.lag, self.row)
        self.most = -(-self.row // self.lag)  # K
        self.claims_law = self.most == 1
        self.kind = Places.of(self.model.target)

    def pieces(self) -> Sequence[Piece]:
        return [("draft", self.draft), ("forward", self.forward), ("accept", self.settle)]

    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        made = super().generate(text, noise, pairs=pairs, rows=rows)
        made.trace.tree_depth = made.trace.tree_nodes = self.most * (self.wide - 1)
        return made

    def steps(self, run: Run) -> Iterator[int]:
        size, once = self.model.target.length, self.most * self.wide
        poll = 1 if self.model.device.type == "cpu" else POLL  # a look at a tensor costs nothing
        while (left := size - int(run.count.min())) > 0:
            yield from range(min(math.ceil(left / once), poll))

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> Run:
        target, batch, device = self.model.target, text.batch, self.model.device
        size, queries = target.length, self.most * self.wide
        slots = aligned(target.prefix + size + queries + 1)
        kept = self.execution.kept(self, batch)
        start, shared = self.started(text, noise, slots, queries, kept)
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        done = torch.zeros(batch, size + queries, dtype=torch.bool, device=device)
        done[:, 0] = True
        ones = torch.ones_like(start.first)
        place = ones[:, None].repeat(1, self.most)
        lanes = batch, self.most, self.wide
        return Run(
            open=F.pad(valid, (0, slots - target.prefix)),
            pairs=PairSampler(pairs, start.noise, size),
            done=done,
            place=place,
            lanes=ones,
            count=ones.clone(),
            told=torch.zeros(lanes, dtype=torch.bool, device=device),
            laws=start.law.new_zeros(batch, self.most * self.keeps, self.wide, target.vocab_size),
            drafts=0 * place,
            **shared,
        )

    def ask(self, run: Run) -> Asked:
        """What the open lanes ask of this forward."""
        raise NotImplementedError("a loop over rows says how a lane goes on")

    def opened(self, run: Run) -> Tensor:
        """Opens a row below the last open one, where that has enough codes and there is one; which
        lanes are open then, [B, K] bool."""
        lane = torch.arange(self.most, device=run.place.device)  # [K]
        if self.most > 1:
            last = run.place.gather(1, run.lanes[:, None] - 1)  # [B, 1]
            below = (last // self.row + 1) * self.row
            enough = (last % self.row >= self.lag) & (below < self.model.target.length)
            new = enough & (lane == run.lanes[:, None])  # [B, K]; none where all lanes are open
            run.place.copy_(torch.where(new, below, run.place))
            run.lanes.add_(new.sum(1))
        return (lane < run.lanes[:, None]) & (run.place < self.model.target.length)

    def stand_ins(self, run: Run) -> Tensor:
        """The code before each lane's next one, or what stands in for it, [B, K]."""
        codes, before = run.record.codes, run.place - 1
        found = codes.gather(1, before)
        if self.most == 1:
            return found
        other = codes.gather(1, F.pad(before[:, :-1], (1, 0)))  # of the lane above, its newest
        if self.first == "above":
            top = run.place[:, :1] // self.row * self.row - 1  # [B, 1], end of the complete rows
            other = torch.where(top < 0, other, codes.gather(1, top.clamp_min(0)))
        if self.kind.forced is not None:  # a row's end is known before it is decoded
            must = self.kind.forced[before % len(self.kind.forced)]
            other = torch.where(must >= 0, must, other)
        return torch.where(run.done.gather(1, before), found, other)

    def draft(self, run: Run) -> tuple[Any, ...]:
        """Codes, places and slots of the forward [B, K M (+ 1)], its mask [R, K M (+ 1), S], and
        what was asked."""
        target, copies = self.model.target, self.sampling.guidance_rows
        asked = self.ask(run)
        span = torch.arange(self.wide, device=run.place.device)  # [M]
        places = (run.place - 1)[..., None] + span  # [B, K, M]
        first = run.place[..., None].expand_as(places)  # a lane sees its drafts from here on
        live = span < asked.limit[..., None]
        codes = torch.cat([self.stand_ins(run)[..., None], asked.codes], -1)  # [B, K, M]
        codes, places, first, live = (t.flatten(1) for t in (codes, places, first, live))
        if self.most > 1:  # the last code of the complete rows, in its true context
            top = run.place[:, :1] // self.row * self.row - 1  # [B, 1]
            again = (top >= 0) & (run.place[:, :1] != top + 1)
            code = run.record.codes.gather(1, top.clamp_min(0))
            codes, places = torch.cat([codes, code], 1), torch.cat([places, top], 1)
            first, live = torch.cat([first, top + 1], 1), torch.cat([live, again], 1)
        idle = target.length + torch.arange(live.shape[1], device=live.device)
        slots = target.prefix + torch.where(live, places, idle)  # [B, Q], each written once
        behind = run.open.shape[1] - target.prefix - target.length
        done = F.pad(run.done[:, : target.length], (target.prefix, behind))  # [B, S]
        every = torch.arange(run.open.shape[1], device=live.device)  # [S]
        here, own = slots[..., None], (target.prefix + first)[..., None]
        seen = (done[:, None] | (every >= own)) & (every < here) & live[..., None]
        mask = run.open[:, None] | (seen | (every == here)).repeat(copies, 1, 1)  # [R, Q, S]
        return codes, torch.where(live, places, 0), slots, mask, asked

    def forward(
        self, run: Run, codes: Tensor, places: Tensor, slots: Tensor, mask: Tensor, asked: Asked
    ) -> tuple[Asked, Tensor]:
        """What was asked, and guided logits [B, K, M, V] of the places that lanes ask for."""
        target, copies, count = (
            self.model.target,
            self.sampling.guidance_rows,
            self.most * self.wide,
        )
        grid, wide = places.repeat(copies, 1), slots.repeat(copies, 1)
        hidden = target.forward_codes(codes.repeat(copies, 1), grid, wide, mask, run.cache)
        hidden = hidden[:, :count]  # [R, K M, D]
        logits = code_logits(target, hidden, self.sampling.cfg, places[:, :count] + 1)
        return asked, logits.unflatten(1, (self.most, self.wide))

    def settle(self, run: Run, asked: Asked, logits: Tensor) -> tuple[Any, ...]:
        """Decides, records and commits; returns what `PairSampler.offer` needs."""
        raise NotImplementedError("a loop over rows says how a lane goes on")

    def commit(self, run: Run, codes: Tensor, taken: Tensor, p: Tensor, **fields: Tensor) -> Any:
        """Writes the first taken [B, K] of codes [B, K, M] behind each lane and moves the lanes; p
        [B, K, M, V] and fields [B, K, M] go with the codes."""
        size, active = self.model.target.length, run.count < self.model.target.length
        span = torch.arange(self.wide, device=taken.device)
        places = run.place[..., None] + span  # [B, K, M]
        new = (span < taken[..., None]) & (places < size)
        over = size + torch.arange(new[0].numel(), device=new.device).view_as(new[0])
        index = torch.where(new, places, over).flatten(1)  # [B, K M], each written once
        fields |= {"step": (run.record.steps + 1).view(-1, 1, 1).expand_as(codes)}
        run.record.put(index, codes.flatten(1), **{k: v.flatten(1) for k, v in fields.items()})
        run.done.scatter_(1, index, True)
        run.count.add_(new.sum((1, 2)))
        kept = (fields["depth"] > 0) & new if "depth" in fields else torch.zeros_like(new)
        run.record.end_step(torch.where(active, kept.sum((1, 2)), -1))
        at = torch.where(new, places, 0).flatten()
        row = torch.arange(new.numel(), device=taken.device) // new[0].numel()  # [B K M]
        visited = p.flatten(0, 2), None, codes.reshape(-1, 1), new.reshape(-1, 1)
        run.place.add_(taken)
        self.shift(run)
        return *visited, torch.zeros_like(at), at, row

    def shift(self, run: Run) -> None:
        """A topmost row that is complete leaves its lane, where the row below is open."""
        if self.most == 1:
            return
        over = (run.lanes > 1) & (run.place[:, 0] % self.row == 0)  # [B]
        for state in (run.place, run.drafts, run.told, run.laws):
            if state.shape[1] == self.most:
                moved = torch.cat([state[:, 1:], state[:, -1:]], 1)
                wide = over.view(-1, *[1] * (state.ndim - 1))
                state.copy_(torch.where(wide, moved, state))
        run.lanes.sub_(over.long())
        lane = torch.arange(self.most, device=run.lanes.device)
        run.told.logical_and_((lane < run.lanes[:, None])[..., None])


@dataclass(eq=False, repr=False)
class ZipAR(Rows):
    """window: codes of a row before the next one opens. first: what stands in for the last code of
    the row above: newest, or above (DiagD)."""

    exercised: ClassVar = {"window": 1}  # images of the gate have rows of a few codes

    window: Width = 8
    adaptive: bool = False
    first: First = "newest"

    def __post_init__(self) -> None:
        self.lag, self.keeps = self.window, self.adaptive
        super().__post_init__()

    def __str__(self) -> str:
        return f"zipar(window={self.window}, adaptive={self.adaptive}, first={self.first})"

    def ask(self, run: Run) -> Asked:
        """One code of each open row."""
        return Asked(self.opened(run).long(), run.place[..., None][..., :0])

    def settle(self, run: Run, asked: Asked, logits: Tensor) -> tuple[Any, ...]:
        flat = logits.flatten(1, 2)  # [B, K, V]
        if self.sampling.greedy:
            p, codes = law_of(flat, self.sampling), flat.argmax(-1)
        else:
            u = run.noise.at(run.place, TARGET_SLOT)  # [B, K, 1]
            p, drawn = processed(flat, self.sampling, u)
            codes = drawn[..., 0]
        run.record.check(p[..., 0])
        taken = asked.limit
        if self.adaptive and self.most > 1:
            codes, taken = self.coupled(run, p, codes, taken)
        kind = torch.full_like(codes, int(CodeKind.TARGET))[..., None]
        return self.commit(run, codes[..., None], taken, p[:, :, None], kind=kind)

    def coupled(self, run: Run, p: Tensor, codes: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """First codes of rows that are about to open: drawn, or coupled to the new law; whether
        they are taken. codes, taken [B, K], p [B, K, V]."""
        held = run.told[..., 0] & (taken > 0)  # [B, K]
        if self.sampling.greedy:
            again = codes
        else:
            u = fresh_uniforms(run.noise, run.place, COUPLE_SLOT)[..., 0]
            again = sample(coupled(p, run.laws[:, :, 0], run.drafts), u)
        codes = torch.where(held, again, codes)
        opening = (run.place % self.row == 0) & (taken > 0)
        opening[:, 0] = False  # its context is complete
        waits = opening & ~(held & (codes == run.drafts))
        run.told.copy_(waits[..., None])
        run.drafts.copy_(codes)
        run.laws.copy_(p[:, :, None])
        return codes, torch.where(waits, 0, taken)
