"""Jacobi decoding of rows in parallel: PJD (2606.05703, decoders.md (r)).

Every open row has a window of drafts, redrawn from the target's last law at their places. A draft
sees the codes of all rows and the earlier drafts of its own row. The topmost row is speculative
Jacobi decoding. The others keep drafts while u <= p(x) / q(x), and stop at the first miss without a
correction: that place is drawn again. They draft no further than the row above has codes. A row
opens once the row above has `threshold` codes. The target changes, as in `decoders.loops.zipar`.
With the threshold at a row's width one row is open: SJD, code by code. `lanes`: how many rows may
be open at once, by default as many as advance evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind
from decoders.distribution import law_of, pick
from decoders.kinds import Within
from decoders.loops.zipar import Asked, First, Rows, Run, Width
from decoders.noise import ACCEPT_SLOT, COUPLE_SLOT, DRAFT_SLOT, TARGET_SLOT, sample
from decoders.propose.window import Codes, fresh_uniforms, redrawn
from decoders.verify.exact import ratio, residual


@dataclass(eq=False, repr=False)
class Pjd(Rows):
    """window: codes of a row in a forward, its newest code with them. threshold: the paper's T."""

    exercised: ClassVar = {"threshold": 1}  # images of the gate have rows of a few codes
    keeps = True

    window: Codes = 16
    threshold: Width = 6
    lanes: Annotated[int, Within(0, 10**6)] = 0
    first: First = "newest"

    def __post_init__(self) -> None:
        self.wide, self.lag = self.window, self.threshold
        super().__post_init__()
        if self.lanes and self.most > 1:
            self.most = self.lanes

    def __str__(self) -> str:
        return f"pjd(window={self.wide}, threshold={self.lag}, lanes={self.most})"

    def ask(self, run: Run) -> Asked:
        live, place = self.opened(run), run.place
        gap = F.pad(place[:, :-1] - place[:, 1:] + self.row, (1, 0), value=self.wide)  # [B, K]
        alone = run.lanes == 1  # then the topmost row goes on into the next one
        gap[:, 0] = torch.where(alone, self.wide, self.row - place[:, 0] % self.row)
        most = (self.model.target.length - place).clamp_max(self.wide)
        limit = torch.where(live, torch.minimum(gap, most), 0)
        codes, q = self.drafts(run)
        return Asked(limit, codes, q)

    def drafts(self, run: Run) -> tuple[Tensor, Tensor]:
        """Codes [B, K, M - 1] and their laws, as `decoders.propose.jacobi` draws them."""
        told = run.told[..., :-1]  # [B, K, M - 1]
        span = torch.arange(self.wide - 1, device=told.device)
        places = (run.place[..., None] + span).flatten(1)  # [B, K (M - 1)]
        u = fresh_uniforms(run.noise, places, DRAFT_SLOT)[..., 0]
        asked = self.kind, run.record.codes[:, :1], run.record.codes, places
        law = run.laws[:, :, :-1].flatten(1, 2)
        codes, law = redrawn(law, told.flatten(1), u, asked, self.sampling.greedy)
        shape = told.shape[1:]
        return codes.unflatten(1, shape), law.unflatten(1, shape)

    def settle(self, run: Run, asked: Asked, logits: Tensor) -> tuple[Any, ...]:
        p = law_of(logits.flatten(1, 2), self.sampling).view_as(logits)  # [B, K, M, V]
        run.record.check(p[..., 0])
        x, above = asked.codes, p[:, :, :-1]
        assert asked.q is not None
        span = torch.arange(self.wide, device=x.device)  # [M]
        places = run.place[..., None] + span  # [B, K, M]
        hit = self.tests(run, above, asked.q, x, logits, places) & (
            span[:-1] < asked.limit[..., None]
        )
        kept = hit.int().cumprod(-1).sum(-1)  # [B, K], drafts of each row
        taken = kept.clone()
        taken[:, 0] = torch.minimum(kept[:, 0] + 1, asked.limit[:, 0])
        last = self.last(run, p, asked.q, x, logits, kept)  # [B]
        behind = span == kept[..., None]  # [B, K, M]
        codes = torch.where(behind, last[:, None, None], F.pad(x, (0, 1)))
        bonus = (kept == self.wide - 1).long() + int(CodeKind.CORRECTED)
        kind = torch.where(behind, bonus[..., None], int(CodeKind.DRAFT))
        depth = torch.where(span < kept[..., None], span + 1, 0)
        self.look(run, p, taken, asked.limit)
        return self.commit(run, codes, taken, p, kind=kind, depth=depth)

    def tests(
        self, run: Run, p: Tensor, q: Tensor, x: Tensor, logits: Tensor, places: Tensor
    ) -> Tensor:
        """Which drafts x [B, K, M - 1] pass; a lower row's are tested again and again, so each time
        with a new number."""
        if self.sampling.greedy:
            return logits[:, :, :-1].argmax(-1) == x
        top = run.noise.at(places[:, 0, :-1], ACCEPT_SLOT).squeeze(-1)[:, None]  # [B, 1, M - 1]
        accept = ratio(pick(p, x), q, x)
        hit = top < accept[:, :1]
        if self.most == 1:
            return hit
        u = fresh_uniforms(run.noise, places[:, 1:, :-1].flatten(1), COUPLE_SLOT)
        return torch.cat([hit, u.view(accept[:, 1:].shape) < accept[:, 1:]], 1)

    def last(
        self, run: Run, p: Tensor, q: Tensor, x: Tensor, logits: Tensor, kept: Tensor
    ) -> Tensor:
        """The topmost row's code behind its drafts, [B]."""
        count = kept[:, 0]
        at = count[:, None, None].expand(-1, 1, p.shape[-1])
        if self.sampling.greedy:
            return logits[:, 0].gather(1, at)[:, 0].argmax(-1)
        left = residual(p[:, 0, :-1], q[:, 0], x[:, 0])  # [B, M - 1, V]
        law = torch.cat([left, p[:, 0, -1:]], 1).gather(1, at)[:, 0]
        return sample(law, run.noise.at((run.place[:, 0] + count)[:, None], TARGET_SLOT)[:, 0, 0])

    def look(self, run: Run, p: Tensor, taken: Tensor, limit: Tensor) -> None:
        """Keeps what this forward says of the places behind the taken codes."""
        index = taken[..., None] + torch.arange(self.wide, device=taken.device)  # [B, K, M]
        run.told.copy_(index < limit[..., None])
        wide = index.clamp_max(self.wide - 1)[..., None].expand_as(p)
        run.laws.copy_(p.gather(2, wide))
