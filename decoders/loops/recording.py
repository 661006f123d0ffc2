"""Builds a Trace while rows of a batch advance by different lengths, without host round trips."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Generation,
    TextFeatures,
    Trace,
    VerifiedPairs,
)
from decoders.noise import PAIR_SLOT, Noise


class Recorder:
    """Per-code buffers [B, L + width]; what lies past the image's end is cut off by `Finished`."""

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
        self.steps = torch.zeros(batch, dtype=torch.long, device=device)  # of each image so far
        self.span = torch.arange(width, device=device)
        self.depths = (self.span + 1).to(torch.uint8)  # of a step's drafts
        self.bad = torch.zeros((), dtype=torch.bool, device=device)

    def write(self, start: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, width] at places start..start + width - 1, start [B]."""
        span = self.span[: codes.shape[1]]
        self.put(start[:, None] + span, codes, **fields)

    def put(self, places: Tensor, codes: Tensor, **fields: Tensor) -> None:
        """codes and fields [B, n] at any places [B, n] of the image, at most one code a place; what
        lies past its end is cut off."""
        index = places.clamp_max(self.codes.shape[1] - 1)
        self.codes.scatter_(1, index, codes)
        for name, value in fields.items():
            buffer: Tensor = getattr(self, name)
            if value.dtype != buffer.dtype:
                value = value.to(buffer.dtype)
            buffer.scatter_(1, index, value)

    def end_step(self, accepted: Tensor) -> None:
        """accepted [B]: drafts accepted in this step, -1 for a row that was finished."""
        self.accepted.scatter_(1, self.steps[:, None], accepted[:, None].to(torch.int16))
        self.steps.add_(accepted >= 0)

    def check(self, p: Tensor) -> None:
        """Remembers in `bad` whether a distribution was not finite; the loop reports it at the
        end."""
        total = p.sum()
        self.bad |= (total - total) != 0


PER_CODE = ("codes", "kind", "step", "depth", "moved", "bound")


class Finished:
    """The images that are done, of `images`, decoded `rows` at once, in whichever order."""

    def __init__(self, images: int, rows: int) -> None:
        self.images, self.rows, self.steps = images, rows, 0  # steps: of all rows together
        self.order: list[int] = []
        self.parts: list[dict[str, Tensor]] = []

    def take(
        self, images: Sequence[int], record: Recorder, rows: Sequence[int], **more: Any
    ) -> None:
        """What a run has recorded of these images, in these of its rows. more: [B] each."""
        index = torch.tensor(rows, device=record.codes.device)
        size = record.length
        part = {name: getattr(record, name)[index, :size].cpu() for name in PER_CODE}
        every = {"accepted": record.accepted, "target_calls": record.steps, **more}
        self.parts.append(part | {name: value[index].cpu() for name, value in every.items()})
        self.order += images

    def generation(self, seconds: dict[str, float], path: dict[str, str]) -> Generation:
        """All images in their order. seconds, path: as in `Trace`."""
        place = torch.tensor(self.order).argsort()
        found: dict[str, Any] = {
            name: torch.cat([p[name] for p in self.parts])[place] for name in self.parts[0]
        }
        codes, calls = found.pop("codes"), found["target_calls"].int()
        most, taken = int(calls.max()), int(calls.sum())
        found["target_calls"], found["accepted"] = calls, found["accepted"][:, :most]
        idle = 1 - taken / (self.steps * self.rows) if self.steps else math.nan
        drafts = found.pop("drafter_calls", torch.zeros(len(calls))).int()
        trace = Trace(**found, drafter_calls=drafts, seconds=seconds, path=path, idle=idle)
        return Generation(codes, trace)


def rows_at_once(images: int, rows: int | None, pairs: float = 0) -> int:
    """How many of so many images are decoded at once; rows None: all. Raises DecoderError for
    verified pairs of images that are not."""
    if pairs and rows is not None and rows < images:
        raise DecoderError(
            f"verified pairs are recorded of images that are decoded at once, found {images} "
            f"images on {rows} rows; set rows to their number, or pairs to 0"
        )
    return min(rows or images, images)


def batch_by_batch(
    text: TextFeatures,
    noise: Noise,
    rows: int | None,
    pairs: float,
    decode: Callable[[TextFeatures, Noise], Any],
) -> Generation:
    """All images, one batch of `rows` after the other, the last one filled up with copies: for
    loops whose images are done in the same step, or wait for the slowest. decode: the finished run
    of a batch. Raises DecoderError as `rows_at_once`."""
    rows = rows_at_once(text.batch, rows, pairs)
    images = [*range(text.batch)]
    done, seconds, run = Finished(text.batch, rows), Counter[str](), None
    for first in images[::rows]:
        own = images[first : first + rows]
        filled = [*own, *([own[-1]] * (rows - len(own)))]
        whole = rows == text.batch
        run = decode(text, noise) if whole else decode(text.rows(filled), noise.rows(filled))
        done.take(own, run.record, range(len(own)))
        done.steps += int(run.record.steps.max())
        seconds.update(run.watch.seconds())
    assert run is not None, "a batch has an image"
    made = done.generation(dict(seconds), run.path)
    if run.pairs is not None:
        made.trace.pairs = run.pairs.pairs()
    return made


class PairSampler:
    """Keeps (p, q, children) of visited nodes, about `pairs` of an image of `length` codes.

    Each place of an image is decided by one node. Whether that node is kept is up to the image's
    noise at the place, so it does not depend on the batch. `levels`: of the drafts.
    """

    def __init__(self, pairs: float, noise: Noise, length: int, levels: int = 0) -> None:
        self.levels = levels
        self.wanted: Tensor | None = None  # [B, L] bool
        self.parts: list[tuple[Any, ...]] = []  # a step's each
        if pairs:
            places = torch.arange(length, device=noise.uniform.device)
            drawn = noise.at(places.expand(len(noise.uniform), -1), PAIR_SLOT)  # [B, L, 1]
            self.wanted = drawn[..., 0] < pairs / length

    def offer(
        self,
        p: Tensor,
        q: Tensor | None,
        children: Tensor,
        valid: Tensor,
        depth: Tensor,
        place: Tensor,
        image: Tensor,
    ) -> None:
        """p, q [n, V]; children, valid [n, K]; depth, place (of the root's child), image [n] of n
        nodes; those without a valid child are passed over."""
        assert self.wanted is not None, "no pairs were asked for"
        decided = (place + depth).clamp_max(self.wanted.shape[1] - 1)
        kept = (self.wanted[image, decided] & valid.any(-1)).nonzero().flatten()
        if len(kept):
            every = (p, q, children, valid, depth, place, image)
            self.parts.append(tuple(None if t is None else t[kept].cpu() for t in every))

    def pairs(self) -> VerifiedPairs | None:
        if not self.parts:
            return None
        columns: list[Any] = [
            None if column[0] is None else torch.cat(column)
            for column in zip(*self.parts, strict=True)
        ]
        p, q, children, valid, depth, place, image = columns
        return VerifiedPairs(p, q, children, valid, depth, place, self.levels, image)


class Expected:
    """What the drafter expects of its drafts (decoders.md (h)): codes per forward, 1 + the sum over
    nodes of its probability of the path to the node. Of one run: `note` every draft, then `mean`.

    It is what a test by equality would commit, were the target's law the drafter's. A tree that
    knows it says so (`Draft.expected`). Of drawn children it follows from q. A step only keeps the
    q of the drafted codes; all else is done once, behind the last step.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None  # [B, 1], 0, 1, ...
        self.known: list[Tensor] = []  # [B] of a step, where drafts say it themselves
        self.shares: list[Tensor] = []  # [B, N + 1] of a step: q of each node's code at its parent
        self.children: list[Tensor] = []  # [B, N + 1, K] of a step, where nodes have siblings
        self.parents: list[Tensor] = []  # [B, N + 1] of a step; one where all have the same shape
        self.levels = 0

    def note(self, draft: Draft) -> None:
        """Keeps of a draft what its expectation needs; a draft lasts until the next one."""
        if draft.expected is not None:
            self.known.append(draft.expected.clone())
        elif draft.q is not None:
            if self.rows is None:
                self.rows = torch.arange(len(draft.codes), device=draft.codes.device)[:, None]
            self.shares.append(draft.q[self.rows, draft.parents, draft.codes])
            if draft.ancestry is None or not self.parents:
                self.parents.append(draft.parents.clone())
            if draft.children.shape[-1] > 1:
                self.children.append(draft.children.clone())
            self.levels = draft.levels

    def mean(self, spans: Sequence[tuple[int, int, int]]) -> Tensor | None:
        """Mean over the steps of each image, [n] float32; None where not every draft said
        something. spans: of an image its row, its first step of the run's, and how many it took."""
        noted = max(first + count for _, first, count in spans)
        if len(self.known) >= noted > 0:
            found = torch.stack(self.known)
        elif len(self.shares) >= noted > 0:
            found = self.weights().sum(-1)
        else:
            return None
        found = found.double().cpu()  # [S, B]; sums in another order then round alike
        own = [found[first : first + count, row] for row, first, count in spans]
        return torch.stack([one.sum() / max(len(one), 1) for one in own]).float()

    def weights(self) -> Tensor:
        """The probability of every node's path, 1 of the root: [S, B, N + 1]."""
        share = torch.stack(self.shares)
        if self.children:
            child = torch.stack(self.children).flatten(-2)  # [S, B, (N + 1) K]
            share = share * torch.zeros_like(share).scatter(-1, child, 1.0)
        share[..., 0] = 1.0
        parents = torch.stack(self.parents).expand(len(share), -1, -1)
        weights = share
        for _ in range(self.levels - 1):
            weights = share * weights.gather(-1, parents)
        return weights


def expected_of(draft: Draft) -> Tensor:
    """Of a single draft with drawn children, [B] float32."""
    one = Expected()
    one.note(draft)
    return one.weights().sum(-1)[0]
