"""Rows of an image in parallel, and ZipAR (2412.04062, decoders.md (q)): a step adds a code to
each.

A row opens once the row above has enough codes; its codes then miss some of their context, so the
distribution is not AR's. With a threshold of a whole row one row is open at a time, and its context
is complete. Lane k of an image is its k-th open row from the top.

The first code of a row is drawn before the row above has its last code; the newest code of the row
above is read in its place, by this forward alone. Once a row is complete its last code is read
again in its true context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Piece, TextFeatures, VerifiedPairs
from decoders.cache import CLOSED, additive_mask, cache_mask, round_up
from decoders.distribution import code_logits
from decoders.kinds import Within
from decoders.loops.base_loop import BatchLoop, DecodeState
from decoders.loops.trace import PairSampler
from decoders.noise import Noise

RowWidth = Annotated[int, Within(1, 10**6)]
POLL_STEPS = 8  # on a GPU, steps between two looks at how far images are; looking waits for it


@dataclass(kw_only=True)
class RowState(DecodeState):
    """K lanes."""

    open: Tensor  # [R, S] float32 mask of the valid prefix
    done: Tensor  # [B, L + K M] bool, codes that are there; behind L anything
    position: Tensor  # [B, K] int64, position of each lane's next code
    lanes: Tensor  # [B] int64, how many are open
    count: Tensor  # [B] int64, codes so far


class Rows(BatchLoop):
    """Decodes rows in parallel. A subclass says what its lanes read in a forward (`plan`), and
    which codes they commit (`verify_and_commit`).

    plan: the state -> limit [B, K], how many codes a lane may commit; drafts [B, K, M - 1] after
    each lane's newest code; and what else `verify_and_commit` needs. verify_and_commit: the state,
    the plan and guided logits [B, K, M, V] -> the visited nodes.
    """

    plan: Callable[..., tuple[Tensor, ...]]
    verify_and_commit: Callable[..., tuple[Any, ...]]
    opens_at: int  # codes of a row before the next one opens
    wide = 1  # M, codes of a lane in a forward
    of_lanes: ClassVar[tuple[str, ...]] = ("position",)  # fields of the state, [B, K, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.row = self.model.target.grid()[1]
        self.most = -(-self.row // min(self.opens_at, self.row))  # K
        self.claims_law = self.most == 1
        self.forced = forced_codes(self.model.target)

    @property
    def queries(self) -> int:
        """K M, of a forward."""
        return self.most * self.wide

    def pieces(self) -> Sequence[Piece]:
        return [
            ("draft", self.draft),
            ("forward", self.forward),
            ("accept", self.verify_and_commit),
        ]

    @property
    def slots(self) -> int:
        """What is drafted stands behind the image."""
        return round_up(super().slots + self.queries + 1)

    def steps(self, state: RowState) -> Iterator[int]:
        size = self.model.target.length
        poll = 1 if self.model.device.type == "cpu" else POLL_STEPS
        while (left := size - int(state.count.min())) > 0:
            yield from range(min(math.ceil(left / self.queries), poll))

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> Any:
        target, batch, device = self.model.target, text.batch, self.model.device
        size, queries = target.length, self.queries
        prefill, shared = self.prefilled(text, noise, queries)
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        done = torch.zeros(batch, size + queries, dtype=torch.bool, device=device)
        done[:, 0] = True
        ones = torch.ones_like(prefill.first)
        position = ones[:, None].repeat(1, self.most)
        return RowState(
            open=F.pad(additive_mask(valid), (0, self.slots - target.prefix), value=CLOSED),
            pairs=PairSampler(pairs, prefill.noise, size) if pairs else None,
            done=done,
            position=position,
            lanes=ones,
            count=ones.clone(),
            **shared,
        )

    def open_rows(self, state: RowState) -> Tensor:
        """Opens a row below the last open one, where that has enough codes and there is one; which
        lanes are open then, [B, K] bool."""
        lane = torch.arange(self.most, device=state.position.device)  # [K]
        if self.most > 1:
            last = state.position.gather(1, state.lanes[:, None] - 1)  # [B, 1]
            below = (last // self.row + 1) * self.row
            enough = (last % self.row >= self.opens_at) & (below < self.model.target.length)
            new = enough & (lane == state.lanes[:, None])  # [B, K]; none where all lanes are open
            state.position.copy_(torch.where(new, below, state.position))
            state.lanes.add_(new.sum(1))
        return (lane < state.lanes[:, None]) & (state.position < self.model.target.length)

    def stand_ins(self, state: RowState) -> Tensor:
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

    def draft(self, state: RowState) -> tuple[Tensor, ...]:
        """Codes, positions and slots of the forward [B, Q], its mask [R, Q, S], and the plan; Q is
        K M, and one more where several lanes are."""
        target, copies, queries = self.model.target, self.sampling.guidance_rows, self.queries
        plan = limit, drafts, *_ = self.plan(state)
        first, span = state.position[..., None], torch.arange(self.wide, device=limit.device)
        codes = torch.cat([self.stand_ins(state)[..., None], drafts], -1)  # [B, K, M]
        own = first.expand_as(codes)  # a query sees its lane's drafts from here on
        every_lane = codes, first - 1 + span, own, span < limit[..., None]
        codes, positions, own, live = (values.flatten(1) for values in every_lane)
        if self.most > 1:  # the last code of the complete rows, in its true context
            top = state.position[:, :1] // self.row * self.row - 1  # [B, 1]
            again = (top >= 0) & (state.position[:, :1] != top + 1)
            code = state.trace.codes.gather(1, top.clamp_min(0))
            codes, positions = torch.cat([codes, code], 1), torch.cat([positions, top], 1)
            own, live = torch.cat([own, top + 1], 1), torch.cat([live, again], 1)
        every = torch.arange(target.length + queries + 1, device=live.device)  # [n]
        idle = every[target.length :][: live.shape[1]]
        here = torch.where(live, positions, idle)[..., None]  # [B, Q, 1], each written once
        done = F.pad(state.done[:, : target.length], (0, queries + 1))[:, None]  # [B, 1, n]
        visible = (done | (every >= own[..., None])) & (every < here) & live[..., None]
        codes_mask = additive_mask(visible | (every == here))  # [B, Q, n]
        mask = cache_mask(state.open, codes_mask.repeat(copies, 1, 1), target.prefix)  # [R, Q, S]
        slots = target.prefix + here[..., 0]
        return codes, torch.where(live, positions, 0), slots, mask, *plan

    def forward(
        self,
        state: RowState,
        codes: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        *plan: Tensor,
    ) -> tuple[Tensor, ...]:
        """The plan, and guided logits [B, K, M, V] of the lanes' next codes."""
        target, copies = self.model.target, self.sampling.guidance_rows
        grid, wide = positions.repeat(copies, 1), slots.repeat(copies, 1)
        hidden = target.forward_codes(codes.repeat(copies, 1), grid, wide, mask, state.cache)
        hidden = hidden[:, : self.queries]  # [R, K M, D]
        following = positions[:, : self.queries] + 1
        logits = code_logits(target, hidden, self.sampling.cfg, following)
        return *plan, logits.unflatten(1, (self.most, self.wide))

    def commit(
        self, state: RowState, codes: Tensor, taken: Tensor, p: Tensor, **fields: Tensor
    ) -> tuple[Any, ...]:
        """Writes the first taken [B, K] of the codes [B, K, M] behind each lane, of distributions p
        [B, K, M, V], and moves the lanes. fields [B, K, M]: of the codes in the trace."""
        size, active = self.model.target.length, state.count < self.model.target.length
        span = torch.arange(self.wide, device=taken.device)
        new = (span < taken[..., None]).flatten(1)  # [B, K M]
        positions = (state.position[..., None] + span).flatten(1)
        over = size + torch.arange(new.shape[1], device=new.device)
        index = torch.where(new, positions, over)  # each written once
        step = (state.trace.steps + 1)[:, None].expand_as(index)
        values = {name: value.flatten(1) for name, value in fields.items()}
        state.trace.put(index, codes.flatten(1), step=step, **values)
        state.done.scatter_(1, index, True)
        state.count.add_(new.sum(1))
        accepted = (new & (values["depth"] > 0)).sum(1) if "depth" in values else 0
        state.trace.end_step(torch.where(active, accepted, -1))
        at = torch.where(new, positions, 0).flatten()
        row = torch.arange(new.numel(), device=new.device) // new.shape[1]  # [B K M]
        state.position.add_(taken)
        self.shift(state)
        laws, drafts = p.flatten(0, 2), (codes.reshape(-1, 1), new.reshape(-1, 1))
        visited = VerifiedPairs(laws, None, *drafts, torch.zeros_like(at), at, levels=0, image=row)
        return (visited,)

    def shift(self, state: RowState) -> None:
        """A topmost row that is complete leaves its lane, where the row below is open."""
        if self.most == 1:
            return
        over = (state.lanes > 1) & (state.position[:, 0] % self.row == 0)  # [B]
        for name in self.of_lanes:
            lanes: Tensor = getattr(state, name)
            following = torch.cat([lanes[:, 1:], lanes[:, -1:]], 1)
            lanes.copy_(torch.where(over.view(-1, *[1] * (lanes.ndim - 1)), following, lanes))
        state.lanes.sub_(over.long())


@dataclass(eq=False, repr=False)
class ZipAR(Rows):
    """A forward adds a code to every open row. window: codes of a row before the next one opens; at
    a row's width this is AR."""

    title = "ZipAR"
    exercised: ClassVar = {"window": 1}  # images of the gate have rows of a few codes

    window: RowWidth = 8

    def __post_init__(self) -> None:
        self.opens_at = self.window
        super().__post_init__()

    def __str__(self) -> str:
        return f"zipar(window={self.window})"

    def plan(self, state: RowState) -> tuple[Tensor, ...]:
        """One code of each open row."""
        return self.open_rows(state).long(), state.position[..., None][..., :0]

    def verify_and_commit(
        self, state: RowState, limit: Tensor, drafts: Tensor, logits: Tensor
    ) -> tuple[Any, ...]:
        """Draws a code for each open lane, records and commits; what it visited."""
        codes, p = self.draw(state, logits[:, :, 0], state.position)
        kind = torch.full_like(codes, int(CodeKind.TARGET))[..., None]
        return self.commit(state, codes[..., None], limit, p[:, :, None], kind=kind)


def forced_codes(target: Any) -> Tensor | None:
    """Codes that are certain at their positions: [W] int64, of a position n at n % W; -1 where the
    model chooses. None where it chooses everywhere."""
    if target.barred is None:
        return None
    open_ = ~target.barred  # [W, V]
    alone = open_.sum(-1) == 1
    return torch.where(alone, open_.int().argmax(-1), -1)
