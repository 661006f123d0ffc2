"""Speculative decoding: propose a draft, verify it in one target forward, keep the accepted path.

A step: the proposer drafts under the root (the last committed code) -> the target runs on root and
drafts at once -> the verifier says which path is accepted and which code follows it -> path and
code are committed, and the cache keeps the path. Rows of a batch advance independently; shapes are
static; nothing inside a step waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    CodeKind,
    DecoderError,
    Draft,
    Generation,
    Piece,
    Prefill,
    Proposer,
    ProposerSession,
    TargetProbs,
    TextFeatures,
    Verified,
    Verifier,
    completed,
)
from decoders.cache import CLOSED, additive_mask, ancestry_of, cache_mask, round_up
from decoders.distribution import code_logits, probabilities
from decoders.execution.state import put_row
from decoders.loops.base_loop import BaseLoop, one_at_a_time, require_finite
from decoders.loops.speculative_state import (
    Queue,
    SpecState,
    Step,
    first_output,
    visited,
    write_probs,
)
from decoders.loops.trace import PairSampler, TraceBuffers
from decoders.noise import Noise


class Speculative(BaseLoop):
    """The loop; proposer and verifier are separate choices."""

    proposer: Proposer
    verifier: Verifier

    def __post_init__(self) -> None:
        parts = {"drafter and tree, or a proposer": self.proposer, "acceptance rule": self.verifier}
        if missing := [name for name, part in parts.items() if part is None]:
            raise DecoderError(
                "speculative decoding needs a drafter, a tree and an acceptance rule; "
                f"missing: {', '.join(missing)}"
            )
        self.proposer = completed(self.proposer, Proposer)
        self.verifier = completed(self.verifier, Verifier)
        self.verifier.check(self.proposer)
        super().__post_init__()
        self.resamples_noise = self.verifier.resamples_noise
        self.synchronous = self.model.device.type == "cpu"  # a look at the lengths costs nothing
        self.draft_calls: int | None = None  # drafter forwards of one step, see `_probe`
        self.draws_drafts = True  # whether drafts are drawn, see `_probe`

    def pieces(self) -> Sequence[Piece]:
        return [
            ("draft", self.draft),
            ("forward", self.forward),
            ("accept", self.verify_and_commit),
        ]

    @one_at_a_time
    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        """See `decoders.api.Decoder`. Raises RefillError where `rows` are fewer than the images and
        a part's state cannot begin another image in a row."""
        images, noise = text.batch, noise.to(self.model.device)
        rows = min(rows or images, images)
        first = text.rows(slice(rows)), noise.rows(slice(rows))
        state = self.execution.begin(self, self.begin(*first, pairs))
        queue = Queue(text, noise, rows, pairs)
        steps_left = self._unfinished(1)  # steps until the next look at the lengths
        for _ in range(images * self.model.target.length):
            (step,) = self.execution.step(self, state)
            queue.done.steps += 1
            if state.pairs is not None:
                nodes = visited(step, self.model.target.length)
                queue.done.keep_pairs(state.pairs, queue.on, nodes)
            steps_left -= 1
            if steps_left == 0 and (steps_left := self._poll_lengths(state, queue)) == 0:
                break
        generation = queue.done.generation(state.watch.seconds(), state.path, state.pairs)
        trace = generation.trace
        trace.tree_depth, trace.tree_nodes = self.proposer.depth, self.proposer.nodes
        return generation

    @property
    def slots(self) -> int:
        """A draft stands behind the image."""
        return round_up(super().slots + self.proposer.nodes + 1)

    def steps(self, state: SpecState) -> Iterator[int]:
        """One for each code that is left: a step commits at least one."""
        return iter(range(self.model.target.length - 1))

    def begin(
        self, text: TextFeatures, noise: Noise, pairs: float = 0, reuse: Any = None
    ) -> SpecState:
        """Prefill of target and proposer, and the first code. reuse: see `BaseLoop.prefilled`."""
        target, proposer = self.model.target, self.proposer
        prefill, shared = self.prefilled(text, noise, proposer.depth + 1, reuse)
        trace, watch = shared["trace"], shared["watch"]
        if self.draft_calls is None:
            self._probe(prefill, trace)
            watch.restart()
        session = completed(proposer.begin(prefill), ProposerSession)
        watch.lap("draft")
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        ones = torch.ones_like(prefill.first)
        sampler = (
            PairSampler(pairs, prefill.noise, target.length, proposer.depth) if pairs else None
        )
        return SpecState(
            open=F.pad(additive_mask(valid), (0, self.slots - target.prefix)),
            session=session,
            verifier_state=self.verifier.begin(prefill),
            pairs=sampler,
            length=ones,
            drafter_calls=torch.full_like(ones, session.calls),
            output=first_output(prefill, proposer, trace.codes, self.draws_drafts),
            slots=torch.arange(self.slots, device=self.model.device),
            **shared,
        )

    def draft(self, state: SpecState) -> tuple[Draft, Tensor]:
        """The proposer drafts under the root; with the draft comes its mask, made here, so that a
        compiled forward reads it instead of making it in every layer."""
        return self.with_mask(state, state.session.propose(state.output, state.noise, state.length))

    def with_mask(self, state: SpecState, draft: Draft) -> tuple[Draft, Tensor]:
        """A draft and its mask [R, N + 1, S] float32 (`decoders.cache`): a node sees the valid
        prefix, committed codes, what is above it and itself."""
        base = (self.model.target.prefix + state.length - 1)[:, None]  # [B, 1], the root's slot
        above, copies = additive_mask(ancestry_of(draft)), self.sampling.guidance_rows
        if copies > 1:
            base, above = base.repeat(copies, 1), above.repeat(copies, 1, 1)
        return draft, cache_mask(torch.where(state.slots < base, state.open, CLOSED), above, base)

    def forward(self, state: SpecState, draft: Draft, mask: Tensor) -> tuple[Draft, Tensor, Tensor]:
        """The target on root and drafts -> hidden [R, N + 1, D], guided logits [B, N + 1, V]; mask
        [R, N + 1, S] float32."""
        target, copies = self.model.target, self.sampling.guidance_rows
        root_position = (state.length - 1)[:, None]  # [B, 1]
        base = target.prefix + root_position
        slots = base + torch.arange(draft.codes.shape[1], device=base.device)  # [B, N + 1]
        positions = root_position + draft.depth  # [B, N + 1]
        hidden = target.forward_codes(
            draft.codes.repeat(copies, 1),
            positions.repeat(copies, 1),
            slots.repeat(copies, 1),
            mask,
            state.cache,
        )
        return draft, hidden, code_logits(target, hidden, self.sampling.cfg, positions + 1)

    def verify_and_commit(
        self, state: SpecState, draft: Draft, hidden: Tensor, logits: Tensor
    ) -> tuple[Step]:
        """Judges, records and commits."""
        size = self.model.target.length
        probs = TargetProbs(logits, probabilities(logits, self.sampling), self.sampling.greedy)
        state.trace.check(probs.p[..., 0])  # one NaN makes a softmax's row NaN
        verified = self.verifier.verify(
            probs, draft, state.noise, state.length, state.verifier_state
        )
        new = draft.codes.gather(1, verified.nodes[:, 1:])  # [B, D]
        span, active = state.trace.span, state.length < size  # 0 .. D; [B]
        drafted = span < verified.count[:, None]  # [B, D + 1]
        committed = torch.where(drafted, F.pad(new, (0, 1)), verified.last_code[:, None])
        state.trace.expect(draft, active)
        self._record(state, verified, committed, drafted, active)
        states = self._commit(state, verified, hidden)
        self._advance(state, verified, committed, states, active)
        if self.resamples_noise:
            state.noise.renew(state.length[:, None] + span)
        if self.proposer.reads_probs:
            write_probs(state.output, draft, probs.p, verified.nodes)
        return (Step(state.output.position, draft, verified.nodes, verified.count, probs.p),)

    def _advance(
        self,
        state: SpecState,
        verified: Verified,
        committed: Tensor,
        states: Tensor,
        active: Tensor,
    ) -> None:
        """What the next step starts from, in place."""
        size, output = self.model.target.length, state.output
        output.hidden.copy_(states)
        output.codes.copy_(committed)
        output.count.copy_(verified.count).add_(1)
        # Not the lengths themselves: torch 2.11 compiles a copy of them to read what comes later.
        output.position.copy_(state.length.clamp_max(size))
        state.length.add_(output.count).clamp_max_(size)
        if self.draft_calls:
            state.drafter_calls.add_(active, alpha=self.draft_calls)

    def _record(
        self,
        state: SpecState,
        verified: Verified,
        committed: Tensor,
        drafted: Tensor,
        active: Tensor,
    ) -> None:
        """drafted [B, D + 1] bool: which codes are drafts; active [B] bool: unfinished images. A
        finished one writes behind its end, where its length is."""
        trace = state.trace
        # RELAXED is the number behind DRAFT, and BONUS the one behind CORRECTED.
        relaxed = verified.relaxed.to(torch.uint8)  # [B, D], or also of a last code that is a draft
        drafts = F.pad(relaxed, (0, drafted.shape[1] - relaxed.shape[1])) + int(CodeKind.DRAFT)
        last = verified.bonus.to(torch.uint8) + int(CodeKind.CORRECTED)  # [B]
        trace.put(
            state.length[:, None] + trace.span,
            committed,
            kind=torch.where(drafted, drafts, last[:, None]),
            tv_shift=verified.tv_shift,
            bound=verified.bound,
            step=(trace.steps + 1)[:, None].expand_as(committed),
            depth=trace.depths * drafted,
        )
        within = torch.minimum(verified.count, self.model.target.length - state.length)
        trace.end_step(torch.where(active, within, -1))

    def _commit(self, state: SpecState, verified: Verified, hidden: Tensor) -> Tensor:
        """Moves the path's keys and values behind the committed ones; returns its states [R, D+1,
        D]."""
        copies, span = self.sampling.guidance_rows, state.trace.span
        base = (self.model.target.prefix + state.length - 1)[:, None]  # [B, 1], the root's slot
        live = span <= verified.count[:, None]
        source = torch.where(live, base + verified.nodes, base + span)
        destination = (base + span).expand_as(source)
        state.cache.commit(source.repeat(copies, 1), destination.repeat(copies, 1))
        index = verified.nodes.repeat(copies, 1)[..., None].expand(-1, -1, hidden.shape[-1])
        return hidden.gather(1, index)

    def _probe(self, prefill: Prefill, trace: TraceBuffers) -> None:
        """What is the same in all steps, whatever the batch: forwards of a drafter, and whether
        drafts are drawn. Found out once, on a session of its own, as a captured step cannot."""
        session = self.proposer.begin(prefill)
        output, before = first_output(prefill, self.proposer, trace.codes), session.calls
        draft = session.propose(output, prefill.noise, torch.ones_like(prefill.first))
        self.draft_calls, self.draws_drafts = session.calls - before, draft.q is not None

    def _poll_lengths(self, state: SpecState, queue: Queue) -> int:
        """Waits for the device and reads the lengths: steps until the next look; 0 where all rows
        are done. Places of images that are done are taken by the next ones; as long as some wait, a
        look comes as soon as another may be done."""
        lengths, size = state.length.tolist(), self.model.target.length
        ended = [row for row, n in enumerate(lengths) if n == size and queue.on[row] is not None]
        if ended:
            self._require_finite(state)
            queue.take(state, ended)
        for row in ended[: queue.waiting]:
            one = queue.following(row, self.begin)
            self._require_finite(one)
            put_row(state, row, one)
            state.watch.lap("prefill")
            lengths[row] = 1
        return self._unfinished(max(lengths) if queue.waiting else min(lengths))

    def _require_finite(self, state: SpecState) -> None:
        require_finite(state.trace, "speculative decoding")
        state.session.require_finite()

    def _unfinished(self, length: int) -> int:
        """Steps that a row of `length` codes needs at least: a look before that tells nothing new,
        and a step after it is lost. At most 1 on the CPU, where a look costs nothing."""
        least = math.ceil((self.model.target.length - length) / (self.proposer.depth + 1))
        return min(least, 1) if self.synchronous else least
