"""The moving state of a speculative run, and what its steps read off it: who sees whom, what was
moved along the path, which pairs were verified.

Apart from the loop (`decoders.speculative`), which says in which order a step does what.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Draft
from decoders.cache import KVCache
from decoders.drafters.session import DraftSession
from decoders.kernels.cpu.speculation import NativeStep
from decoders.noise import Noise
from decoders.recording import PairSampler, Recorder
from decoders.timing import Stopwatch
from decoders.verification import Path, Verdicts, ancestry, children_of


@dataclass
class Told:
    """What was committed last, for the drafter to read: up to D + 1 codes a row, ending in the
    root."""

    hidden: Tensor  # [R, D + 1, D], hidden[:, i] is the target state that predicted codes[:, i]
    codes: Tensor  # [B, D + 1] int64
    count: Tensor  # [B] int64, how many of them are real
    start: Tensor  # [B] int64, place of the first


@dataclass
class Run:
    """The moving state of B images."""

    seen: Tensor  # [R, most S] bool, open to every query: valid prefix, and all behind it
    noise: Noise
    cache: KVCache
    session: DraftSession
    record: Recorder
    pairs: PairSampler
    watch: Stopwatch
    length: Tensor  # [B] int64, codes committed; the last one is the root, not yet in the cache
    target_calls: Tensor  # [B]
    drafter_calls: Tensor  # [B]
    told: Told
    native: NativeStep | None = None  # verification and settling in the CPU kernel

    @property
    def shape(self) -> int:
        """What decides the shapes of a step: B."""
        return len(self.length)


def at_node(values: Tensor, node: Tensor) -> Tensor:
    """values [B, N + 1, V], node [B] -> [B, V]."""
    return values.gather(1, node[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]


def tree_mask(run: Run, draft: Draft, base: Tensor, copies: int) -> Tensor:
    """Who sees whom: valid prefix, committed codes, ancestors and self -> [R, N + 1, S] bool."""
    nodes = draft.codes.shape[1]
    above = draft.ancestry
    if above is None:
        above = ancestry(draft.parents, len(run.record.span) - 1)
    relative = torch.arange(run.cache.capacity, device=base.device) - base  # [B, S], the root at 0
    inside = (relative >= 0) & (relative < nodes)  # [B, S]
    seen = run.seen[:, : run.cache.capacity]  # [R, S]
    before = ((relative < 0).repeat(copies, 1) & seen)[:, None]  # [R, 1, S]
    index = relative.clamp(0, nodes - 1)[:, None].expand(-1, nodes, -1)
    return before | (above.gather(2, index) & inside[:, None]).repeat(copies, 1, 1)


def along_path(path: Path, verdicts: Verdicts, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(moved, bound, relaxed) at each depth of the path, [B, D + 1], [B, D + 1], [B, D].

    Past the accepted drafts: the first child that was tested and rejected.
    """
    batch, _, width = u.shape
    depth = path.order.shape[1]
    flat = path.nodes * width + F.pad(path.order, (0, 1))  # [B, D + 1] (node, child taken)
    taken = flat.clamp_max(u.shape[1] * width - 1)
    moved = verdicts.moved.reshape(batch, -1).gather(1, taken)
    bound = verdicts.bound.reshape(batch, -1).gather(1, taken)
    relaxed = (u >= verdicts.strict).reshape(batch, -1).gather(1, taken[:, :depth])
    return moved, bound, relaxed


def visited_pairs(
    start: Tensor, size: int, draft: Draft, nodes: Tensor, count: Tensor, p: Tensor
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """(p, q, children, validity) of every node of the path, rows and depths flattened; what lies
    past the path's or the image's end has no valid child. start [B]: place of the root's child;
    nodes [B, D + 1], count [B]: the path."""
    span = torch.arange(nodes.shape[1], device=p.device)
    inside = start[:, None] + span < size  # [B, D + 1], places of the next codes
    live = (span <= count[:, None]) & inside
    rows = torch.arange(len(p), device=p.device)[:, None]
    codes, valid = children_of(draft)
    q = None if draft.q is None else draft.q[rows, nodes].flatten(0, 1)
    seen = valid[rows, nodes] & live[..., None]  # [B, D + 1, K]
    return (
        p[rows, nodes].flatten(0, 1),
        q,
        codes[rows, nodes].flatten(0, 1),
        seen.flatten(0, 1),
    )
