"""Rounds over a block of rows: SSD (2606.20543, decoders.md) without its heads.

A block is a few whole rows. Its first code is drawn by the forward that ends the block before. The
others are drafted at once: at each column from the law that the target gave one row up. A round is
one forward over the block; each code is then coupled to its new law p, which becomes its q. After
`rounds` of them the block stands, and one more forward reads it. The first row, which has none
above, is decoded code by code. A round settles one more code: what stands before it is final. With
as many rounds as a block has codes (`rounds: 0`) this is exact, and no faster than AR. With fewer
the schedule changes the law, and nothing bounds by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Piece, TextFeatures
from decoders.cache import aligned
from decoders.distribution import code_logits, law_of
from decoders.kinds import Within
from decoders.loops.recording import PairSampler
from decoders.loops.start import Batched, Moving
from decoders.noise import COUPLE_SLOT, TARGET_SLOT, Noise, sample
from decoders.propose.maximal import coupled
from decoders.propose.window import certain, fresh_uniforms


@dataclass(kw_only=True)
class Run(Moving):
    """All images are at the same block and round. N: codes of the largest block."""

    open: Tensor  # [R, S] bool, the valid prefix
    place: Tensor  # [1] int64, the block's first place
    size: Tensor  # [1] int64, its codes
    turn: Tensor  # [1] int64, rounds done
    rounds: Tensor  # [1] int64, rounds of the block; then it is read
    codes: Tensor  # [B, N] int64
    q: Tensor  # [B, N, V], the laws of these codes
    above: Tensor  # [B, W, V], the laws of the last row


@dataclass(eq=False, repr=False)
class Ssd(Batched):
    """rows: of a block. rounds: of a block; 0: as many as it has codes, which is exact."""

    called = "a loop over blocks"
    exercised: ClassVar = {"rows": 2}  # of the gate's images, so that a block has more than 2 codes

    rows: Annotated[int, Within(1, 10**6)] = 1
    rounds: Annotated[int, Within(0, 10**6)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        height, self.row = self.model.target.grid()
        self.wide = min(self.rows, max(1, height - 1)) * self.row  # N
        self.claims_law = self.rounds == 0

    def __str__(self) -> str:
        return f"ssd(block={self.wide}, rounds={self.rounds or 'all'})"

    def pieces(self) -> Sequence[Piece]:
        return [("forward", self.forward), ("accept", self.settle)]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(codes, rounds) of each block."""
        length = self.model.target.length
        first = min(self.row, length)
        yield first, first - 1
        for start in range(first, length, self.wide):
            size = min(self.wide, length - start)
            yield size, min(self.rounds or size - 1, size - 1)

    def steps(self, run: Run) -> Iterator[int]:
        rounds = [rounds for _, rounds in self.blocks()]
        return iter(range(sum(rounds) + len(rounds) - 1))  # nobody reads the last block

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> Run:
        target = self.model.target
        slots = aligned(target.prefix + target.length + self.wide)
        kept = self.execution.kept(self, text.batch)
        start, shared = self.started(text, noise, slots, self.wide, kept)
        shared["record"].kind.fill_(int(CodeKind.TARGET))
        codes = F.pad(start.first[:, None], (0, self.wide - 1))  # [B, N], certain drafts
        q = certain(codes, start.law[:, None].expand(-1, self.wide, -1))
        q[:, 0] = start.law
        blank = torch.zeros(1, dtype=torch.long, device=self.model.device)
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        return Run(
            open=F.pad(valid, (0, slots - target.prefix)),
            pairs=PairSampler(pairs, start.noise, target.length),
            place=blank,
            size=blank + min(self.row, target.length),
            turn=blank.clone(),
            rounds=blank + min(self.row, target.length) - 1,
            codes=codes,
            q=q,
            above=q[:, : self.row].clone(),
            **shared,
        )

    def forward(self, run: Run) -> tuple[Tensor]:
        """The target on the block -> guided logits [B, N, V] of the codes behind its own. What lies
        behind a smaller block is written too, and seen by nothing that is read."""
        target, copies = self.model.target, self.sampling.guidance_rows
        span = torch.arange(self.wide, device=run.place.device)  # [N]
        places = (run.place + span).expand_as(run.codes)  # [B, N]
        slots = target.prefix + places
        every = torch.arange(run.open.shape[1], device=span.device)  # [S]
        seen = (every >= target.prefix) & (every <= slots[0][:, None])  # [N, S]
        mask = run.open[:, None] | seen  # [R, N, S]
        grid = places.clamp_max(target.length - 1)
        hidden = target.forward_codes(
            run.codes.repeat(copies, 1),
            grid.repeat(copies, 1),
            slots.repeat(copies, 1),
            mask,
            run.cache,
        )
        return (code_logits(target, hidden, self.sampling.cfg, places + 1),)

    def settle(self, run: Run, logits: Tensor) -> tuple[Any, ...]:
        """A round, or the next block behind the last one; what `PairSampler.offer` needs."""
        target = self.model.target
        p = law_of(logits, self.sampling)  # [B, N, V], behind each code
        run.record.check(p[..., 0])
        span = torch.arange(self.wide, device=p.device)  # [N]
        reads = run.turn >= run.rounds  # [1]
        own = torch.cat([run.q[:, :1], p[:, :-1]], 1)  # [B, N, V], of each code
        run.above.copy_(self.last_row(run, own))
        q = torch.where(reads, self.drafted(run, p), own)
        run.place.add_(torch.where(reads, run.size, 0))
        places = (run.place + span).expand_as(run.codes)
        codes = self.chosen(run, q, logits, reads, places)
        new = (span == run.turn + 1) | ((run.turn + 1 >= run.rounds) & (span > run.turn))
        new = torch.where(reads, span == 0, new & (span < run.size))
        new = new & (places < target.length)  # [B, N]
        index = torch.where(new, places, target.length + span)  # each written once
        run.record.put(index, codes, step=(run.record.steps + 1)[:, None].expand_as(codes))
        run.record.end_step(torch.zeros_like(codes[:, 0]))
        run.codes.copy_(codes)
        run.q.copy_(q)
        left = (target.length - run.place).clamp_max(self.wide)
        run.size.copy_(torch.where(reads, left, run.size))
        rounds = (run.size - 1).clamp_max(self.rounds or self.wide)
        run.rounds.copy_(torch.where(reads, rounds, run.rounds))
        run.turn.copy_(torch.where(reads, 0, run.turn + 1))
        at = torch.where(new, places, 0).flatten()
        row = torch.arange(new.numel(), device=at.device) // self.wide  # [B N]
        zero = torch.zeros_like(at)
        return q.flatten(0, 1), None, codes.view(-1, 1), new.reshape(-1, 1), zero, at, row

    def last_row(self, run: Run, own: Tensor) -> Tensor:
        """The laws of the block's last row, [B, W, V]; own [B, N, V]."""
        index = run.size - self.row + torch.arange(self.row, device=own.device)  # [W]
        wide = index.clamp_min(0)[:, None].expand(len(own), -1, own.shape[-1])
        return own.gather(1, wide)

    def drafted(self, run: Run, p: Tensor) -> Tensor:
        """What the next block is drawn from, [B, N, V]: its first code from the target, the others
        from the laws one row up."""
        last = (run.size - 1)[:, None].expand(len(p), 1, p.shape[-1])
        above = run.above.repeat(1, self.wide // self.row, 1)  # [B, N, V]
        return torch.cat([p.gather(1, last), above[:, 1:]], 1)

    def chosen(self, run: Run, q: Tensor, logits: Tensor, reads: Tensor, places: Tensor) -> Tensor:
        """The block's new codes [B, N], of the laws q [B, N, V]."""
        if self.sampling.greedy:
            last = (run.size - 1)[:, None].expand(len(q), 1, q.shape[-1])
            score = torch.cat([logits.gather(1, last), q[:, 1:]], 1)
            again = torch.cat([run.codes[:, :1], logits[:, :-1].argmax(-1)], 1)
            return torch.where(reads, score.argmax(-1), again)
        law = torch.where(reads, q, coupled(q, run.q, run.codes))
        first = sample(law[:, :1], run.noise.at(places[:, :1], TARGET_SLOT)[..., 0])
        if self.wide == 1:
            return first
        u = fresh_uniforms(run.noise, places[:, 1:], COUPLE_SLOT)[..., 0]
        return torch.cat([first, sample(law[:, 1:], u)], 1)
