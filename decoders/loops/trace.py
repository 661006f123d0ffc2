"""What a run records: codes and how they came to be, its time by phase, and verified pairs. Rows of
a batch advance by different lengths, without host round trips."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import Draft, Generation, Trace, VerifiedPairs
from decoders.cache import ancestry_of
from decoders.noise import PAIR_SLOT, Noise


class Stopwatch:
    """Where an image's time goes: it charges laps to phases. On a GPU a lap is a pair of events
    that are resolved after the run, so that timing adds no synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda" and torch.cuda.is_available()  # a fake one has no clock
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = self._now()

    def _now(self) -> float | torch.cuda.Event:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def restart(self) -> None:
        """The time since the last lap is charged to nothing."""
        self._last = self._now()

    def lap(self, phase: str) -> None:
        """Charges the time since the last lap to `phase`."""
        now = self._now()
        if isinstance(now, float) and isinstance(self._last, float):
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        elif not isinstance(now, float) and not isinstance(self._last, float):
            self._events.append((phase, self._last, now))
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds per phase; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
            for phase, begin, end in self._events:
                spent = begin.elapsed_time(end) / 1e3
                self._seconds[phase] = self._seconds.get(phase, 0.0) + spent
            self._events.clear()
        return dict(self._seconds)


class TraceBuffers:
    """Buffers by position, [B, L + width]; `FinishedImages` cuts off what lies past the end."""

    def __init__(self, batch: int, length: int, width: int, device: torch.device) -> None:
        self.length = length
        size = (batch, length + width)
        self.codes = torch.zeros(size, dtype=torch.long, device=device)
        self.kind = torch.zeros(size, dtype=torch.uint8, device=device)
        self.step = torch.zeros(size, dtype=torch.int32, device=device)
        self.depth = torch.zeros(size, dtype=torch.uint8, device=device)
        self.tv_shift = torch.zeros(size, device=device)
        self.bound = torch.zeros(size, device=device)
        self.accepted = torch.full((batch, length), -1, dtype=torch.int16, device=device)
        self.steps = torch.zeros(batch, dtype=torch.long, device=device)  # of each image so far
        # [B], sum over the steps of what `expected_codes` says of their drafts.
        self.expected = torch.zeros(batch, dtype=torch.float64, device=device)
        self.span = torch.arange(width, device=device)
        self.depths = (self.span + 1).to(torch.uint8)  # of a step's drafts
        self.bad = torch.zeros((), dtype=torch.bool, device=device)

    def put(self, positions: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, n] at any positions [B, n] of the image, at most one code a
        position; what lies past its end is cut off."""
        index = positions.clamp_max(self.codes.shape[1] - 1)
        self.codes.scatter_(1, index, codes)
        for name, value in fields.items():
            buffer: Tensor = getattr(self, name)
            if value.dtype != buffer.dtype:
                value = value.to(buffer.dtype)
            buffer.scatter_(1, index, value)

    def expect(self, draft: Draft, active: Tensor) -> None:
        """Adds what the drafter expects of a step's draft; active [B] bool: unfinished images."""
        expected = expected_codes(draft)
        if expected is not None:
            self.expected.add_(torch.where(active, expected, 0.0))

    def end_step(self, accepted: Tensor) -> None:
        """accepted [B]: drafts accepted in this step, -1 for a row that was finished."""
        self.accepted.scatter_(1, self.steps[:, None], accepted[:, None].to(torch.int16))
        self.steps.add_(accepted >= 0)

    def check(self, p: Tensor) -> None:
        """Remembers in `bad` whether a distribution was not finite; the loop reports it at the
        end."""
        total = p.sum()
        self.bad |= (total - total) != 0


PER_CODE = ("codes", "kind", "step", "depth", "tv_shift", "bound")


class FinishedImages:
    """What was recorded of finished images, of so many `images`, which are decoded `rows` at once
    and finish in any order."""

    def __init__(self, images: int, rows: int) -> None:
        self.images, self.rows, self.steps = images, rows, 0  # steps: of all rows together
        self.order: list[int] = []
        self.parts: list[dict[str, Tensor]] = []
        self.pairs: list[tuple[Any, ...]] = []  # of each step, as `VerifiedPairs` has them

    def take(
        self, images: Sequence[int], trace: TraceBuffers, rows: Sequence[int], **more: Any
    ) -> None:
        """What a run has recorded of these images, in these of its rows. more: [B] each."""
        index = torch.tensor(rows, device=trace.codes.device)
        size = trace.length
        part = {name: getattr(trace, name)[index, :size].cpu() for name in PER_CODE}
        every = {"accepted": trace.accepted, "target_calls": trace.steps, **more}
        every["expected"] = trace.expected
        self.parts.append(part | {name: value[index].cpu() for name, value in every.items()})
        self.order += images

    def keep_pairs(
        self, sampler: PairSampler, images: Sequence[int | None], nodes: VisitedNodes
    ) -> None:
        """Keeps the verified pairs that the sampler chooses of a step's nodes. images: of each row,
        None where its image is kept elsewhere or done."""
        index = sampler.choose(nodes)
        if len(index) == 0:
            return
        of_rows = [-1 if image is None else image for image in images]
        image = torch.tensor(of_rows, device=nodes.row.device)[nodes.row]
        index = index[image[index] >= 0]
        every = [value for name, value in vars(nodes).items() if name != "row"] + [image]
        self.pairs.append(tuple(None if t is None else t[index].cpu() for t in every))

    def verified(self, levels: int) -> VerifiedPairs | None:
        """The pairs of all steps; levels: of the drafts. None where there are none."""
        if not self.pairs:
            return None
        columns: list[Any] = [
            None if column[0] is None else torch.cat(column)
            for column in zip(*self.pairs, strict=True)
        ]
        p, q, children, valid, depth, position, image = columns
        return VerifiedPairs(p, q, children, valid, depth, position, levels, image)

    def generation(
        self, seconds: dict[str, float], path: dict[str, str], sampler: PairSampler | None = None
    ) -> Generation:
        """All images in their order. seconds, path: as in `Trace`; sampler: of their pairs."""
        position = torch.tensor(self.order).argsort()
        fields: dict[str, Any] = {
            name: torch.cat([p[name] for p in self.parts])[position] for name in self.parts[0]
        }
        codes, calls = fields.pop("codes"), fields["target_calls"].int()
        most, taken = int(calls.max()), int(calls.sum())
        fields["target_calls"], fields["accepted"] = calls, fields["accepted"][:, :most]
        idle = 1 - taken / (self.steps * self.rows) if self.steps else math.nan
        drafts = fields.pop("drafter_calls", torch.zeros(len(calls))).int()
        sums = fields.pop("expected")
        expected = torch.where(sums > 0, sums / calls.clamp_min(1), math.nan).float()
        trace = Trace(
            **fields, drafter_calls=drafts, seconds=seconds, path=path, idle=idle, expected=expected
        )
        trace.pairs = None if sampler is None else self.verified(sampler.levels)
        return Generation(codes, trace)


@dataclass
class VisitedNodes:
    """The n nodes that a step visited in all rows, for `VerifiedPairs`."""

    p: Tensor  # [n, V]
    q: Tensor | None  # [n, V]; None: deterministic children
    children: Tensor  # [n, K] int64
    valid: Tensor  # [n, K] bool
    depth: Tensor  # [n] int64
    position: Tensor  # [n] int64, of the root's child
    row: Tensor  # [n] int64


class PairSampler:
    """Chooses about `pairs` visited nodes of an image of `length` codes, to keep (p, q, children).

    Each position of an image is decided by one node. Whether that node is kept is up to the image's
    noise at the position, so it does not depend on the batch. `levels`: of the drafts.
    """

    def __init__(self, pairs: float, noise: Noise, length: int, levels: int = 0) -> None:
        self.levels = levels
        positions = torch.arange(length, device=noise.uniform.device)
        drawn = noise.at(positions.expand(len(noise.uniform), -1), PAIR_SLOT)  # [B, L, 1]
        self.wanted = drawn[..., 0] < pairs / length  # [B, L] bool

    def choose(self, nodes: VisitedNodes) -> Tensor:
        """Indices of the nodes to keep. Those without a valid child are passed over."""
        decided = (nodes.position + nodes.depth).clamp_max(self.wanted.shape[1] - 1)
        return (self.wanted[nodes.row, decided] & nodes.valid.any(-1)).nonzero().flatten()


def expected_codes(draft: Draft) -> Tensor | None:
    """What the drafter expects of its draft (decoders.md (h)): codes per forward, 1 + the sum over
    nodes of its probability of the path to the node, [B] float32. None where drafts are certain
    codes of no probability.

    It is what a test by equality would commit, were the target's distribution the drafter's. A tree
    that knows it says so (`Draft.expected`). Of drawn children it follows from q.
    """
    if draft.expected is not None or draft.q is None:
        return draft.expected
    rows = torch.arange(len(draft.codes), device=draft.codes.device)[:, None]
    share = draft.q[rows, draft.parents, draft.codes]  # [B, N + 1], of each node at its parent
    there = torch.zeros_like(share).scatter(1, draft.children.flatten(1), 1.0)
    share = share * there
    share[:, 0] = 1.0
    return torch.where(ancestry_of(draft), share[:, None], 1.0).prod(-1).sum(-1)
