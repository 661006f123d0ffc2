"""Group by group: a loop for targets that predict several codes in one forward
(`decoders.models.nets.grouped`: PAR 2412.15119, SATIC 2106.09436, COrAL 2410.09675).

A forward reads the codes of the last group; the codes of the next one are drawn from its
distributions, each from its own, by the number of its position. So an image is a function of prompt
and seed. A target that is like all others has groups of one: AR, code by code.

COrAL: a forward reads two groups. The older one has left the window and is final. The newer one is
a draft: its codes are drawn again, from distributions that have seen all of it, by the same
numbers. The group behind is drawn from the draft. The last group is not drawn again, as nothing
would read it.

Such codes follow the distribution of another target than the one that speed-ups refer to. They are
compared by quality and time, never by TV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, DecoderError, Piece, TextFeatures
from decoders.cache import CLOSED, additive_mask, cache_mask, round_up
from decoders.distribution import code_logits
from decoders.loops.base_loop import BatchLoop, DecodeState
from decoders.models.nets.grouped import Schedule
from decoders.noise import Noise

NEVER = 2**31  # the turn of a slot that no query of an image sees


@dataclass(kw_only=True)
class GroupState(DecodeState):
    """All images are at the same forward."""

    open: Tensor  # [R, S] float32 mask of the valid prefix
    step: Tensor  # [1] int64, forwards done


@dataclass(frozen=True)
class Tables:
    """What each of T forwards does, of W queries and W drawn codes; N or 2 N. A query or code that
    is none has a slot of its own, and a position behind the image."""

    source: Tensor  # [T, W] int64, see `Schedule.forwards`
    position: Tensor  # [T, W] int64
    slot: Tensor  # [T, W] int64, behind the prefix
    turn: Tensor  # [T, W] int64, a query sees the slots of no later turn
    drawn: Tensor  # [T, W] int64, positions of the codes; of two groups the one that is drawn again
    slots: Tensor  # [Q + W] int64, the turn of every slot behind the prefix

    @classmethod
    def of(cls, schedule: Schedule, device: torch.device) -> Tables:
        groups, wide, queries = schedule.groups, schedule.wide, schedule.forwards
        size = sum(map(len, groups))
        starts = [0]
        for group in queries:
            starts.append(starts[-1] + len(group))
        width = wide * (1 + schedule.refines)
        lines: list[list[list[int]]] = []
        for step in range(len(queries)):
            parts = [step - 1, step] if schedule.refines else [step]
            rows, drawn = list[tuple[int, ...]](), list[int]()
            for part in parts:
                group = queries[part] if part >= 0 else []
                rows += [(*q, starts[part] + i, part) for i, q in enumerate(group)]
                empty = range(wide - len(group))
                rows += [(0, 0, starts[-1] + len(rows) + i, step) for i in empty]
                later = groups[part + 1] if part >= 0 else ()
                drawn += [*later, *(size + len(drawn) + i for i in range(wide - len(later)))]
            lines.append([[*column] for column in zip(*rows, strict=True)] + [drawn])
        source, position, slot, turn, drawn_ = torch.tensor(lines, device=device).unbind(1)
        ends = [step for step, group in enumerate(queries) for _ in group]
        slots = torch.tensor([*ends, *[NEVER] * width], device=device)
        return cls(source, position, slot, turn, drawn_, slots)

    def at(self, step: Tensor) -> list[Tensor]:
        """source, position, slot, turn, drawn of a forward, [W] each; step [1]."""
        every = self.source, self.position, self.slot, self.turn, self.drawn
        return [table.index_select(0, step)[0] for table in every]


@dataclass(eq=False, repr=False)
class Grouped(BatchLoop):
    """target: which of the model's other targets; "": its own."""

    title = "a loop over groups"
    scheduled: ClassVar = Schedule
    target_changed = True
    exercised: ClassVar = {"target": ""}  # the gate's models have one target, which is AR's

    target: str = ""

    def __post_init__(self) -> None:
        if self.target:
            self.model = other(self.model, self.target)
        super().__post_init__()
        target = self.model.target
        one = tuple((position,) for position in range(target.length))
        self.schedule = target.schedule or Schedule(one)
        self.tables = Tables.of(self.schedule, self.model.device)
        rows = target.vocab_size + torch.arange(self.schedule.wide - 1)
        self.learned = rows.to(self.model.device)  # [N - 1], rows of the embedding

    def __str__(self) -> str:
        return f"grouped(target={self.target or 'own'}, codes={self.schedule.wide})"

    def pieces(self) -> Sequence[Piece]:
        return [("forward", self.forward), ("accept", self.verify_and_commit)]

    @property
    def slots(self) -> int:
        return round_up(self.model.target.prefix + len(self.tables.slots))

    def steps(self, state: GroupState) -> Iterator[int]:
        return iter(range(len(self.tables.source)))

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> GroupState:
        del pairs  # nothing is verified
        target = self.model.target
        _, shared = self.prefilled(text, noise, self.tables.drawn.shape[1])
        shared["trace"].columns["kind"].fill_(int(CodeKind.TARGET))
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        return GroupState(
            open=F.pad(additive_mask(valid), (0, self.slots - target.prefix), value=CLOSED),
            step=torch.zeros(1, dtype=torch.long, device=self.model.device),
            **shared,
        )

    def forward(self, state: GroupState) -> tuple[Tensor, Tensor]:
        """The codes' positions [W], and their guided logits [B, W, V]."""
        target: Any = self.model.target
        copies = self.sampling.guidance_rows
        source, position, slot, turn, drawn = self.tables.at(state.step)
        batch = len(state.trace.codes)
        codes = state.trace.codes[:, : target.length]
        readable = torch.cat([codes, self.learned.expand(batch, -1)], 1)  # [B, L + N - 1]
        rows = batch * copies
        earlier = additive_mask(self.tables.slots <= turn[:, None]).expand(
            rows, -1, -1
        )  # [R, W, Q + W]
        hidden = target.forward_codes(
            readable.index_select(1, source).repeat(copies, 1),
            position.expand(rows, -1),
            (target.prefix + slot).expand(rows, -1),
            cache_mask(state.open, earlier, target.prefix),  # [R, W, S]
            state.cache,
        )
        positions = drawn.expand(batch, -1)
        return drawn, code_logits(
            target, self.predicting(state, hidden), self.sampling.cfg, positions
        )

    def predicting(self, state: GroupState, hidden: Tensor) -> Tensor:
        """The states of a forward's queries [R, W, D] -> those that predict the drawn codes."""
        if not self.schedule.refines:
            return hidden
        target: Any = self.model.target
        newer = hidden[:, self.schedule.wide :]
        return torch.cat([target.refined(newer), newer], 1)

    def verify_and_commit(
        self, state: GroupState, drawn: Tensor, logits: Tensor
    ) -> tuple[Any, ...]:
        """Draws and records the codes."""
        positions = drawn.expand(len(logits), -1)  # [B, W]
        codes, _ = self.draw(state, logits, positions.clamp_max(self.model.target.length))
        first = torch.arange(codes.shape[1], device=codes.device) >= len(drawn) - self.schedule.wide
        step = state.trace.steps[:, None] + first  # [B, W], in which a code was drawn first
        state.trace.put(positions, codes, step=step)
        state.trace.end_step(torch.zeros_like(codes[:, 0]))
        state.step.add_(1)
        return ()


def other(model: Any, name: str) -> Any:
    """The model with another of its targets, run as its own is. Raises DecoderError."""
    target = model.targets.get(name)
    if target is None:
        raise DecoderError(
            f"this decoder needs the model's target {name!r}, found "
            f"{', '.join(sorted(model.targets)) or 'no other targets'}; use model=tiny_targets"
        )
    return replace(model, target=target)
