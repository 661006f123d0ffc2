"""The moving state of a speculative run, the images that wait for it, and which pairs its steps
verified.

Apart from the loop (`decoders.loops.speculative`), which says in which order a step does what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Prefill,
    Proposer,
    ProposerSession,
    StepOutput,
    TextFeatures,
)
from decoders.loops.base_loop import DecodeState
from decoders.loops.trace import FinishedImages, VisitedNodes
from decoders.noise import Noise
from decoders.verify.token_verifier import children_of


@dataclass(kw_only=True)
class SpecState(DecodeState):
    open: Tensor  # [R, S] float32, 0: open to every query (valid prefix, all behind it), -inf
    session: ProposerSession
    verifier_state: Any
    length: Tensor  # [B] int64, codes committed; the last one is the root, not yet in the cache
    drafter_calls: Tensor  # [B]
    output: StepOutput  # of the last step
    slots: Tensor  # [S] int64, 0, 1, ...


class Queue:
    """The images of a call, `rows` of them decoded at once: on which row each is, which wait, which
    are done. pairs: verified pairs to keep of an image."""

    def __init__(self, text: TextFeatures, noise: Noise, rows: int, pairs: float) -> None:
        self.text, self.noise, self.pairs = text, noise, pairs
        self.done = FinishedImages(text.batch, rows)
        self.on: list[int | None] = [*range(rows)]  # by row; None: it was taken off
        self.next = rows  # the first image that waits
        self.spare: Any = None  # a run of one image, in whose cache the next may begin

    @property
    def waiting(self) -> int:
        return self.text.batch - self.next

    def take(self, state: SpecState, rows: Sequence[int]) -> None:
        """The images on these rows are done."""
        images = [image for row in rows if (image := self.on[row]) is not None]
        self.done.take(images, state.trace, rows, drafter_calls=state.drafter_calls)
        for row in rows:
            self.on[row] = None

    def following(self, row: int, begin: Callable[..., SpecState]) -> SpecState:
        """A run of the next image alone, which goes on in this row. begin: as of the loop."""
        image = self.on[row] = self.next
        self.next += 1
        one = self.text.rows([image]), self.noise.rows([image])
        self.spare = begin(*one, self.pairs, self.spare)
        return self.spare


def first_output(
    prefill: Prefill, proposer: Proposer, image: Tensor, drawn: bool = True
) -> StepOutput:
    """What the first draft is given: the code sampled from the prefill, and the state that
    predicted it. image [B, >= L]: where the run records its codes; drawn: whether drafts are drawn
    from distributions q."""
    depth, ones = proposer.depth, torch.ones_like(prefill.first)
    output = StepOutput(
        F.pad(prefill.hidden[:, -1:], (0, 0, 0, depth)),  # [R, D + 1, D]
        F.pad(prefill.first[:, None], (0, depth)),  # [B, D + 1]
        ones,
        ones - 1,
        image,
    )
    if proposer.reads_probs:
        batch, nodes = prefill.batch, proposer.nodes + 1
        size = prefill.model.target.vocab_size
        blank = torch.zeros(batch, nodes, dtype=torch.long, device=ones.device)
        kids = blank[..., None].repeat(1, 1, proposer.branching)
        probs = prefill.probs.new_zeros(batch, nodes, size)
        q = probs.clone() if drawn else None
        output.draft = Draft(blank, blank.clone(), blank.clone(), kids, q, levels=depth)
        output.p, output.nodes = probs, blank[:, :1].repeat(1, depth + 1)
    return output


def write_probs(output: StepOutput, draft: Draft, p: Tensor, nodes: Tensor) -> None:
    """The draft, the target's distributions at its nodes and the path, for the next proposal. In
    place, as an execution may hold their addresses. Raises DecoderError where drafts are drawn in
    some steps and deterministic in others."""
    last = output.draft
    assert last is not None and output.p is not None and output.nodes is not None
    if (draft.q is None) != (last.q is None):
        raise DecoderError(
            "a proposer draws its drafts in every step or in none: expected q "
            f"{'None' if last.q is None else 'of every node'}, as in its first draft, found "
            f"{'None' if draft.q is None else 'a tensor'}"
        )
    for name in ("codes", "parents", "depth", "children"):
        getattr(last, name).copy_(getattr(draft, name))
    if draft.q is not None and last.q is not None:
        last.q.copy_(draft.q)
    output.p.copy_(p)
    output.nodes.copy_(nodes)


@dataclass
class Step:
    """What a step of a batch verified: of its B rows the path through the draft, and where that
    stands."""

    position: Tensor  # [B] int64, position of the root's child
    draft: Draft
    nodes: Tensor  # [B, D + 1] int64, the path
    count: Tensor  # [B] int64, drafts accepted
    p: Tensor  # [B, N + 1, V]


def visited(step: Step, size: int) -> VisitedNodes:
    """Every node of a step's path, rows and depths flattened; what lies past the path's or the
    image's end (`size` codes) has no valid child."""
    nodes, p = step.nodes, step.p
    span = torch.arange(nodes.shape[1], device=p.device)
    inside = step.position[:, None] + span < size  # [B, D + 1], positions of the next codes
    live = (span <= step.count[:, None]) & inside
    rows = torch.arange(len(p), device=p.device)[:, None]
    codes, valid = children_of(step.draft)
    q = None if step.draft.q is None else step.draft.q[rows, nodes].flatten(0, 1)
    valid = valid[rows, nodes] & live[..., None]  # [B, D + 1, K]
    return VisitedNodes(
        p=p[rows, nodes].flatten(0, 1),
        q=q,
        children=codes[rows, nodes].flatten(0, 1),
        valid=valid.flatten(0, 1),
        depth=span.expand_as(nodes).flatten(),
        position=step.position[:, None].expand_as(nodes).flatten(),
        row=rows.expand_as(nodes).flatten(),
    )
