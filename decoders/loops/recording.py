"""Builds a Trace while rows of a batch advance by different lengths, without host round trips."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import CodeKind, Trace, VerifiedPairs

NOTED = ("p", "q", "children", "valid", "depth", "place")  # of a visited node, in this order


class Recorder:
    """Per-code buffers [B, L + width]; what lies past the image's end is cut off by `finish`."""

    def __init__(self, batch: int, length: int, width: int, device: torch.device) -> None:
        self.length = length
        size = (batch, length + width)
        self.codes = torch.zeros(size, dtype=torch.long, device=device)
        self.kind = torch.zeros(size, dtype=torch.uint8, device=device)
        self.step = torch.zeros(size, dtype=torch.int32, device=device)
        self.depth = torch.zeros(size, dtype=torch.uint8, device=device)
        self.moved = torch.zeros(size, device=device)
        self.bound = torch.zeros(size, device=device)
        self.accepted = torch.full((batch, length), -1, dtype=torch.int16, device=device)
        self.steps = torch.zeros(1, dtype=torch.long, device=device)  # taken so far
        self.span = torch.arange(width, device=device)
        self.bad = torch.zeros((), dtype=torch.bool, device=device)

    def first(self, codes: Tensor) -> None:
        """The code sampled from the prefill, [B]."""
        self.codes[:, 0] = codes

    def write(self, start: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, width] at places start..start + width - 1, start [B]."""
        self.put(start[:, None] + self.span[: codes.shape[1]], codes, **fields)

    def put(self, places: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, n] at any places [B, n] of the image, at most one code a place; what
        lies past its end is cut off."""
        index = places.clamp_max(self.codes.shape[1] - 1)
        self.codes.scatter_(1, index, codes)
        for name, value in fields.items():
            buffer: Tensor = getattr(self, name)
            buffer.scatter_(1, index, value.to(buffer.dtype))

    def end_step(self, accepted: Tensor) -> None:
        """accepted [B]: drafts accepted in this step, -1 for a row that was finished."""
        self.accepted.index_copy_(1, self.steps, accepted.to(torch.int16)[:, None])
        self.steps += 1

    def check(self, p: Tensor) -> None:
        """Remembers in `bad` whether a distribution was not finite; the loop reports it at the
        end."""
        self.bad |= ~torch.isfinite(p.sum())

    def finish(
        self,
        seconds: dict[str, float],
        target_calls: Tensor,
        drafter_calls: Tensor,
        depth: int,
        nodes: int,
        pairs: VerifiedPairs | None,
    ) -> Trace:
        cut = slice(0, self.length)
        return Trace(
            kind=self.kind[:, cut].cpu(),
            step=self.step[:, cut].cpu(),
            depth=self.depth[:, cut].cpu(),
            moved=self.moved[:, cut].cpu(),
            bound=self.bound[:, cut].cpu(),
            accepted=self.accepted[:, : int(self.steps)].cpu(),
            target_calls=target_calls.int().cpu(),
            drafter_calls=drafter_calls.int().cpu(),
            seconds=seconds,
            tree_depth=depth,
            tree_nodes=nodes,
            pairs=pairs,
        )


class PairSampler:
    """Keeps (p, q, children) of visited nodes, evenly over the run, at most `count` in all.

    `places`: nodes the run will visit at most (B L); every one is offered, twice the wanted share
    is kept, and `pairs` draws `count` of those. `levels`: of the drafts.
    """

    def __init__(self, count: int, places: int, levels: int = 0, seed: int = 0) -> None:
        self.count, self.levels = count, levels
        self.rate = min(1.0, 2.0 * count / max(1, places))
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[tuple[Tensor | None, ...]] = []

    def offer(
        self,
        p: Tensor,
        q: Tensor | None,
        children: Tensor,
        valid: Tensor,
        depth: Tensor,
        place: Tensor,
    ) -> None:
        """p, q [n, V]; children, valid [n, K]; depth, place [n] of n nodes; those without a valid
        child are passed over."""
        drawn = torch.rand(len(p), generator=self.generator) < self.rate
        every = (p, q, children, valid, depth, place)
        for row in (drawn & valid.any(-1).cpu()).nonzero().flatten().tolist():
            self.rows.append(tuple(None if t is None else t[row].cpu() for t in every))

    def pairs(self) -> VerifiedPairs | None:
        if not self.rows:
            return None
        order = torch.randperm(len(self.rows), generator=self.generator)[: self.count].tolist()
        columns = zip(*(self.rows[i] for i in order), strict=True)
        found: dict[str, Any] = {
            name: None if column[0] is None else torch.stack(column)
            for name, column in zip(NOTED, columns, strict=True)
        }
        return VerifiedPairs(**found, levels=self.levels)


def kinds(count: Tensor, relaxed: Tensor, leaf: Tensor) -> Tensor:
    """count [B] drafts accepted, relaxed [B, D] bool, leaf [B] bool (the last accepted node had no
    child to reject) -> CodeKind [B, D + 1] of a step's codes."""
    depth = relaxed.shape[1]
    span = torch.arange(depth + 1, device=count.device)
    drafted = torch.where(relaxed, int(CodeKind.RELAXED), int(CodeKind.DRAFT))  # [B, D]
    drafted = torch.nn.functional.pad(drafted, (0, 1))
    last = torch.where(leaf, int(CodeKind.BONUS), int(CodeKind.CORRECTED))[:, None]
    return torch.where(span < count[:, None], drafted, last)
