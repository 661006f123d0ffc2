"""SJD-VP (2603.27115, decoders.md (z)): SJD, whose next drafts favour codes whose probability has
been rising from step to step. Only the law that drafts are redrawn from is another:

    pbar = sum_k g^k p_(t-k) / sum_k g^k, k = 0 .. past
    M(x) = [p_(t-k)(x) > p_(t-k-1)(x) for all k = 0 .. rises]
    r = norm(p_t (p_t / pbar)^M), where only the likeliest `share` of p_t's codes have an M

with p_t, p_(t-1), ... the target's laws at a place in this step and the ones before; the paper does
not say what stands before the first, here it is 1 / V, as for a new draft. r is a function of what
happened, so it may be declared: exact (lemma J). The paper says "verify as SJD", whose program has
p_t there: biased, the setting `released`. No code was released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Seen, Start
from decoders.distribution import normalised
from decoders.kinds import Share, Within
from decoders.propose.jacobi import Jacobi
from decoders.propose.window import Left, Window, WindowSession


@dataclass(frozen=True)
class Tilted(Left):
    """`p` is the tilted law r."""

    plain: Tensor  # [B, W, V], the target's


@dataclass(eq=False, repr=False)
class Rising(Window):
    """past: laws before the newest in the mean; decay: g, their weights; rises: N, how many rises
    in a row are asked for beyond the first; share: of the codes of p_t that may be tilted;
    released: declares p_t."""

    exercised: ClassVar = {"rises": 0, "share": 1.0}  # images of a few codes have few steps

    past: Annotated[int, Within(1, 16)] = 3
    decay: Share = 0.8
    rises: Annotated[int, Within(0, 15)] = 3
    share: Share = 0.1
    released: bool = False

    draw = Jacobi.draw

    def __str__(self) -> str:
        name = self.called("released" * self.released)
        return f"{name}(window={self.depth + 1}, init={self.init}, N={self.rises})"

    def begin(self, start: Start) -> RisingSession:
        return RisingSession(self, start)

    def declared(self, law: Tensor, left: Left, codes: Tensor) -> Tensor:
        if not self.released:
            return law
        assert isinstance(left, Tilted)
        return torch.where(left.told[..., None], left.plain, law)

    def tilted(self, laws: Tensor) -> Tensor:
        """r [B, W, V] of laws [B, H + 1, W, V], the newest first."""
        p, age = laws[:, 0], torch.arange(self.past + 1, device=laws.device)
        weight = (self.decay**age / (self.decay**age).sum())[:, None, None]  # [past + 1, 1, 1]
        mean = (weight * laws[:, : self.past + 1]).sum(1)
        rising = (laws[:, :-1] > laws[:, 1:])[:, : self.rises + 1].all(1)  # [B, W, V]
        size = (self.share * (p > 0).sum(-1, keepdim=True)).ceil().long()  # [B, W, 1]
        least = p.sort(-1, descending=True).values.gather(-1, (size - 1).clamp_min(0))
        tilt = torch.where(rising & (p >= least), p / mean.clamp_min(1e-30), 1.0)
        return normalised(p * tilt, p)


class RisingSession(WindowSession):
    """It keeps the laws of the last steps, by place."""

    def __init__(self, part: Rising, start: Start) -> None:
        super().__init__(part, start)
        self.rule = part
        batch, size = len(start.first), start.model.target.vocab_size
        kept = max(part.past, part.rises + 1)
        self.blank = 1 / size  # before its first law
        self.laws = start.law.new_full((batch, kept, part.depth, size), self.blank)  # [B, H, W, V]

    def left(self, seen: Seen) -> Tilted:
        """See `WindowSession`; places of the window moved on by what was committed."""
        left = super().left(seen)
        level = (seen.count[:, None] + self.span)[:, None, :, None]  # [B, 1, W, 1], where it stood
        wider = F.pad(self.laws, (0, 0, 0, 1), value=self.blank)  # [B, H, W + 1, V]
        index = level.clamp_max(self.rule.depth).expand_as(self.laws)
        new = torch.where(left.told[..., None], left.p, self.blank)
        laws = torch.cat([new[:, None], wider.gather(2, index)], 1)  # [B, H + 1, W, V]
        self.laws.copy_(laws[:, :-1])
        tilted = left.p if self.greedy else self.rule.tilted(laws)  # the likeliest code stays it
        same = left.told, left.codes, left.q, left.drafted, left.behind, left.last, left.greedy
        return Tilted(tilted, *same, left.p)
