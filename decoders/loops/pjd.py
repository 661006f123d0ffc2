"""Parallel Jacobi decoding: PJD (2606.05703, decoders.md (r)): a Jacobi window in every open row.

A row opens once the row above has `threshold` codes (`decoders.loops.zipar`). A draft sees the
codes of all rows and the earlier drafts of its own. It is drawn from the target's last distribution
at its position, q, and kept while u <= p(x) / q(x). At the first miss the topmost row draws from
norm((p - q)+): this is SJD. A lower row stops there and commits no correction, its draft is redrawn
from p. It drafts no further than the row above has codes. With the threshold at a row's width one
row is open: SJD, code by code.

So where p stays as it is a code of a lower row has the law min(p, q) + (1 - b) p, b = sum min(p,
q). Its TV from p, sum (min(p, q) - b p)+, is at most b (1 - b): with m = min(p, q) / b and p = b m
+ (1 - b) r it is b (1 - b) TV(m, r). Both are recorded, of the first test at each position. They
say nothing of the context, which misses codes that AR sees, so no law is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Generation, TextFeatures
from decoders.distribution import pick, probabilities, ratio
from decoders.loops.zipar import Rows, RowState, RowWidth
from decoders.noise import ACCEPT_SLOT, COUPLE_SLOT, DRAFT_SLOT, TARGET_SLOT, Noise, sample
from decoders.propose.window import Codes, draft_probs, step_uniforms, uniform_probs
from decoders.verify.exact import residual


@dataclass(kw_only=True)
class PjdState(RowState):
    """Of each lane's next M positions, and of its next code."""

    probs: Tensor  # [B, K, M, V], the target's last distributions
    has_probs: Tensor  # [B, K, M] bool, where there is one
    missed: Tensor  # [B, K, 2], TV and bound of its first test, which it failed; below 0: none
    uniform: Tensor  # [W, V], see `uniform_probs`


@dataclass(eq=False, repr=False)
class Pjd(Rows):
    """window: codes of a row in a forward, its newest code included, M. threshold: the paper's c.
    At most as many rows are open as rows that advance evenly, K."""

    title = "PJD"
    # Images of the gate have rows of a few codes, and it decodes thousands at once.
    exercised: ClassVar = {"threshold": 1, "window": 3}
    of_lanes = ("position", "probs", "has_probs", "missed")

    window: Codes = 16
    threshold: RowWidth = 16

    def __post_init__(self) -> None:
        self.wide, self.opens_at = self.window, self.threshold
        super().__post_init__()

    def __str__(self) -> str:
        return f"pjd(window={self.window}, threshold={self.threshold})"

    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        done = super().generate(text, noise, pairs=pairs, rows=rows)
        drafts = self.window - 1
        # What several rows accept in a step adds up, so it is no depth.
        done.trace.tree_depth = drafts if self.most == 1 else 0
        done.trace.tree_nodes = self.most * drafts
        return done

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> PjdState:
        begun, target = super().begin(text, noise, pairs), self.model.target
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        uniform = uniform_probs(target, dtype, self.model.device)
        lanes = *begun.position.shape, self.window
        probs = uniform.new_zeros(*lanes, target.vocab_size)
        return PjdState(
            **vars(begun),
            probs=probs,
            has_probs=torch.zeros_like(probs[..., 0], dtype=torch.bool),
            missed=torch.full_like(probs[..., 0, :2], -1.0),
            uniform=uniform,
        )

    def plan(self, state: PjdState) -> tuple[Tensor, ...]:
        """Limit and drafts as `Rows.plan`; q [B, K, M - 1, V], which they are drawn from; and where
        they stand, [B, K, M - 1], past the image's end beyond the limit."""
        opened, position, size = self.open_rows(state), state.position, self.model.target.length
        # The topmost row ends, or goes on into the next one where it is alone.
        top = torch.where(
            state.lanes == 1, self.window, self.row - position[:, 0] % self.row
        )  # [B]
        lower = position[:, :-1] - position[:, 1:] + self.row  # [B, K - 1], codes behind the above
        limit = torch.minimum(torch.cat([top[:, None], lower], 1), size - position)
        limit = torch.where(opened, limit.clamp_max(self.window), 0)
        span = torch.arange(self.window - 1, device=position.device)
        at = torch.where(span < limit[..., None], position[..., None] + span, size)
        positions = at.flatten(1)  # [B, K (M - 1)]
        p, has_probs = (t[:, :, :-1].flatten(1, 2) for t in (state.probs, state.has_probs))
        q = draft_probs(p, has_probs, state.uniform, positions, self.sampling.greedy)
        codes = sample(q, step_uniforms(state.noise, positions, DRAFT_SLOT)[..., 0])
        shape = self.most, self.window - 1
        return limit, codes.unflatten(1, shape), q.unflatten(1, shape), at

    def verify_and_commit(
        self, state: PjdState, limit: Tensor, x: Tensor, q: Tensor, at: Tensor, logits: Tensor
    ) -> tuple[Any, ...]:
        """Tests the drafts x [B, K, M - 1] of each lane, records and commits; what it visited."""
        p = probabilities(logits, self.sampling)  # [B, K, M, V]
        state.trace.check(p[..., 0])
        span = torch.arange(self.window, device=x.device)
        lower = torch.arange(self.most, device=x.device)[:, None] > 0  # [K, 1]
        tested = span[:-1] < limit[..., None]  # [B, K, M - 1]
        if self.sampling.greedy:
            hit, moved = logits[:, :, :-1].argmax(-1) == x, p.new_zeros(*x.shape, 2)
        else:
            hit, moved = self.tests(state, p[:, :, :-1], q, x, at), redrawn(p[:, :, :-1], q)
        kept = (hit & tested).int().cumprod(-1).sum(-1)  # [B, K]
        taken = torch.where(lower[:, 0], kept, torch.minimum(kept + 1, limit))
        last = self.last_code(state, p, q, logits, kept[:, 0])

        # TV shift and bound of each code, [B, K, M, 2]: 0 in the topmost row but for `missed`.
        moved = F.pad(moved * lower[..., None], (0, 0, 0, 1))
        first = torch.where(state.missed >= 0, state.missed, moved[:, :, 0])  # [B, K, 2]
        moved = torch.cat([first[:, :, None], moved[:, :, 1:]], 2)
        missed = lower[:, 0] & (taken < limit) & (taken < self.window - 1)  # [B, K]
        index = taken[..., None, None].clamp_max(self.window - 1).expand(-1, -1, 1, 2)
        following = torch.where(missed[..., None], moved.gather(2, index)[:, :, 0], -1.0)
        state.missed.copy_(following)

        # What this forward says of the positions behind the taken codes.
        index = taken[..., None] + span  # [B, K, M]
        state.has_probs.copy_(index < limit[..., None])
        index = index.clamp_max(self.window - 1)[..., None].expand_as(p)
        state.probs.copy_(p.gather(2, index))

        behind = span == kept[..., None]  # [B, K, M]
        bonus = (kept == self.window - 1).long() + int(CodeKind.CORRECTED)
        drafted = span < kept[..., None]
        return self.commit(
            state,
            torch.where(behind, last[:, None, None], F.pad(x, (0, 1))),
            taken,
            p,
            kind=torch.where(drafted, int(CodeKind.DRAFT), bonus[..., None]),
            depth=torch.where(drafted, span + 1, 0),
            tv_shift=moved[..., 0],
            bound=moved[..., 1],
        )

    def tests(self, state: PjdState, p: Tensor, q: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Which drafts [B, K, M - 1] pass. One of a lower row is tested until it does, so each time
        with a new number."""
        accept = ratio(pick(p, x), q, x)
        hit = state.noise.at(at[:, 0], ACCEPT_SLOT)[..., 0] < accept[:, 0]
        if self.most == 1:
            return hit[:, None]
        lower = accept[:, 1:].flatten(1)
        again = step_uniforms(state.noise, at[:, 1:].flatten(1), COUPLE_SLOT)[..., 0] < lower
        return torch.cat([hit[:, None], again.unflatten(1, (self.most - 1, -1))], 1)

    def last_code(
        self, state: PjdState, p: Tensor, q: Tensor, logits: Tensor, kept: Tensor
    ) -> Tensor:
        """The topmost row's code behind its `kept` drafts, [B]: from the residual, or from p behind
        the window."""
        index = kept[:, None, None].expand(-1, 1, p.shape[-1])
        if self.sampling.greedy:
            return logits[:, 0].gather(1, index)[:, 0].argmax(-1)
        both = p[:, 0], F.pad(q[:, 0], (0, 0, 0, 1))  # [B, M, V]
        p, q = (t.gather(1, index)[:, 0] for t in both)  # [B, V]
        u = state.noise.at((state.position[:, 0] + kept)[:, None], TARGET_SLOT)
        return sample(residual(p, q, kept), u[:, 0, 0])

    def shift(self, state: Any) -> None:
        super().shift(state)
        lane = torch.arange(self.most, device=state.lanes.device)
        closed = (lane >= state.lanes[:, None])[..., None]  # [B, K, 1]
        state.has_probs.logical_and_(~closed)
        state.missed.masked_fill_(closed, -1.0)


def redrawn(p: Tensor, q: Tensor) -> Tensor:
    """The TV from p of min(p, q) + (1 - b) p, and its bound b (1 - b): [..., V] -> [..., 2]."""
    both = torch.minimum(p, q)
    b = both.sum(-1, keepdim=True)
    tv = (both - b * p).clamp_min(0.0).sum(-1, keepdim=True)
    return torch.cat([tv, b * (1 - b)], -1)
