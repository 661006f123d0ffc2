"""What a loop notes of its steps: codes and how they came to be, its time by phase, and verified
pairs. Rows of a batch advance by different lengths, without host round trips."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import TRACE_COLUMNS, Draft, Generation, Trace, VerifiedPairs
from decoders.noise import PAIR_SLOT, Noise
from decoders.verify.token_verifier import children_of


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
        self.columns = {  # of `Trace`, per code
            name: torch.full(size, math.nan if c.optional else 0, dtype=c.dtype, device=device)
            for name, c in TRACE_COLUMNS.items()
            if c.per_code
        }
        self.accepted = torch.full((batch, length), -1, dtype=torch.int16, device=device)
        self.steps = torch.zeros(batch, dtype=torch.long, device=device)  # of each image so far
        self.drafter_calls = torch.zeros_like(self.steps)
        # [B], sums over the steps of the levels and of the nodes of their drafts.
        self.drafted_depth = torch.zeros_like(self.steps)
        self.drafted_nodes = torch.zeros_like(self.steps)
        self.span = torch.arange(width, device=device)
        self.depths = (self.span + 1).to(torch.uint8)  # of a step's drafts
        self.bad = torch.zeros((), dtype=torch.bool, device=device)

    def put(self, positions: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, n] at any positions [B, n] of the image, at most one code a
        position; what lies past its end is cut off."""
        index = positions.clamp_max(self.codes.shape[1] - 1)
        self.codes.scatter_(1, index, codes)
        for name, value in fields.items():
            buffer = self.columns[name]
            if value.dtype != buffer.dtype:
                value = value.to(buffer.dtype)
            buffer.scatter_(1, index, value)

    def add_draft(self, draft: Draft, active: Tensor) -> None:
        """Adds the size of a step's draft; active [B] bool: unfinished images."""
        there = existing_nodes(draft)  # [B, N + 1]
        self.drafted_depth.add_((draft.depth * there).amax(-1) * active)
        self.drafted_nodes.add_(there.sum(-1) * active)

    def end_step(self, accepted: Tensor, drafter_calls: int = 0) -> None:
        """Counts a step. accepted [B]: drafts accepted, -1 for a row that was finished;
        drafter_calls: forwards of a drafter in this step."""
        self.accepted.scatter_(1, self.steps[:, None], accepted[:, None].to(torch.int16))
        self.steps.add_(accepted >= 0)
        if drafter_calls:
            self.drafter_calls.add_(accepted >= 0, alpha=drafter_calls)

    def check(self, p: Tensor) -> None:
        """Remembers in `bad` whether a distribution was not finite; the loop reports it at the
        end."""
        total = p.sum()
        self.bad |= (total - total) != 0


STEP_SUMS = ("drafted_depth", "drafted_nodes")  # over the steps of an image
PER_IMAGE = ("accepted", "steps", "drafter_calls", *STEP_SUMS)


class FinishedImages:
    """What was recorded of finished images, of so many `images`, which are decoded `rows` at once
    and finish in any order."""

    def __init__(self, images: int, rows: int) -> None:
        self.images, self.rows, self.steps = images, rows, 0  # steps: of all rows together
        self.order: list[int] = []
        self.parts: list[dict[str, Tensor]] = []
        self.pairs: list[VerifiedPairs] = []  # of each step

    def take(self, images: Sequence[int], trace: TraceBuffers, rows: Sequence[int]) -> None:
        """Keeps the traces of these images, which stood in these rows."""
        index = torch.tensor(rows, device=trace.codes.device)
        per_code = {"codes": trace.codes, **trace.columns}
        part = {name: t[index, : trace.length].cpu() for name, t in per_code.items()}
        part |= {name: getattr(trace, name)[index].cpu() for name in PER_IMAGE}
        self.parts.append(part)
        self.order += images

    def keep_pairs(
        self, sampler: PairSampler, images: Sequence[int | None], nodes: VerifiedPairs
    ) -> None:
        """Keeps the verified pairs that the sampler chooses of a step's nodes. images: of each row,
        None where its image is kept elsewhere or done."""
        index = sampler.choose(nodes)
        if len(index) == 0:
            return
        of_rows = [-1 if image is None else image for image in images]
        image = torch.tensor(of_rows, device=nodes.image.device)[nodes.image]
        index = index[image[index] >= 0]
        fields = vars(nodes) | {"image": image}
        picked: dict[str, Any] = {
            n: t[index].cpu() if isinstance(t, Tensor) else t for n, t in fields.items()
        }
        self.pairs.append(VerifiedPairs(**picked))

    def generation(self, seconds: dict[str, float], path: dict[str, str]) -> Generation:
        """All images in their order. seconds, path: as in `Trace`."""
        order = torch.tensor(self.order).argsort()
        columns: dict[str, Any] = {
            n: torch.cat([p[n] for p in self.parts])[order] for n in self.parts[0]
        }
        codes, calls = columns.pop("codes"), columns.pop("steps").int()
        accepted = columns.pop("accepted")[:, : int(calls.max())]
        columns["drafter_calls"] = columns["drafter_calls"].int()
        for name in STEP_SUMS:
            mean = columns[name] / calls.clamp_min(1)
            columns[name] = torch.where(mean > 0, mean, math.nan).float()
        taken, pairs = int(calls.sum()), None
        if self.pairs:
            fields = vars(self.pairs[0])
            joined = {
                name: torch.cat([vars(part)[name] for part in self.pairs])
                for name, value in fields.items()
                if isinstance(value, Tensor)
            }
            pairs = VerifiedPairs(**fields | joined)
        trace = Trace(
            accepted=accepted,
            target_calls=calls,
            seconds=seconds,
            path=path,
            idle=1 - taken / (self.steps * self.rows) if self.steps else math.nan,
            pairs=pairs,
            **columns,
        )
        return Generation(codes, trace)


@dataclass
class Step:
    """What a step of a batch verified: of its B rows the path through the draft, and where that
    stands."""

    position: Tensor  # [B] int64, position of the root's child
    draft: Draft
    nodes: Tensor  # [B, D + 1] int64, the path
    count: Tensor  # [B] int64, drafts accepted
    p: Tensor  # [B, N + 1, V]

    def visited(self, size: int) -> VerifiedPairs:
        """Lists the nodes of the path, rows and depths flattened; what lies past the path's or the
        image's end (`size` codes) has no valid child."""
        nodes, p = self.nodes, self.p
        span = torch.arange(nodes.shape[1], device=p.device)
        inside = self.position[:, None] + span < size  # [B, D + 1], positions of the next codes
        live = (span <= self.count[:, None]) & inside
        rows = torch.arange(len(p), device=p.device)[:, None]
        codes, valid = children_of(self.draft)
        valid = valid[rows, nodes] & live[..., None]  # [B, D + 1, K]
        q = self.draft.q
        return VerifiedPairs(
            p=p[rows, nodes].flatten(0, 1),
            q=None if q is None else q[rows, nodes].flatten(0, 1),
            children=codes[rows, nodes].flatten(0, 1),
            valid=valid.flatten(0, 1),
            depth=span.expand_as(nodes).flatten(),
            position=self.position[:, None].expand_as(nodes).flatten(),
            levels=self.draft.levels,
            image=rows.expand_as(nodes).flatten(),
        )


class PairSampler:
    """Chooses about `pairs` visited nodes of an image of `length` codes, to keep (p, q, children).

    Each position of an image is decided by one node. Whether that node is kept is up to the image's
    noise at the position, so it does not depend on the batch.
    """

    def __init__(self, pairs: float, noise: Noise, length: int) -> None:
        positions = torch.arange(length, device=noise.uniform.device)
        drawn = noise.at(positions.expand(len(noise.uniform), -1), PAIR_SLOT)  # [B, L, 1]
        self.wanted = drawn[..., 0] < pairs / length  # [B, L] bool

    def choose(self, nodes: VerifiedPairs) -> Tensor:
        """Indices of the nodes to keep. Those without a valid child are passed over."""
        decided = (nodes.position + nodes.depth).clamp_max(self.wanted.shape[1] - 1)
        return (self.wanted[nodes.image, decided] & nodes.valid.any(-1)).nonzero().flatten()


def existing_nodes(draft: Draft) -> Tensor:
    """Marks the nodes that are some node's child, [B, N + 1] int64 0 or 1: a tree that stops early
    has others, which nobody reaches. The root is not marked."""
    there = torch.zeros_like(draft.codes).scatter(1, draft.children.flatten(1), 1)
    there[:, 0] = 0  # what `children` has where there is no child
    return there
