"""Speculative decoding: propose a draft, verify it in one target forward, keep the accepted path.

A step: the proposer drafts under the root (the last committed code) -> the target runs on root and
drafts at once -> the verifier says which path is accepted and which code follows it -> path and
code are committed, and the cache keeps the path. Rows of a batch advance independently; shapes are
static; nothing inside a step waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Generation,
    ImageModel,
    Law,
    Piece,
    Proposer,
    Sampling,
    Settled,
    Start,
    TextFeatures,
    Verifier,
    completed,
)
from decoders.cache import BLOCK, aligned
from decoders.capability import Capability
from decoders.distribution import code_logits, law_of
from decoders.loops.recording import Expected, PairSampler, Recorder, kinds
from decoders.loops.speculative_run import (
    Run,
    begun,
    first_seen,
    show,
    tree_mask,
    visited_pairs,
)
from decoders.loops.start import Composed, Stopwatch, begin, require_finite
from decoders.noise import Noise

POLL = 8  # steps between looks at the lengths, at most, where caches grow on an asynchronous device


class Speculative(Composed):
    """The loop; proposer and verifier are separate choices."""

    proposer: Proposer
    verifier: Verifier
    known: ClassVar = {
        Capability.DRAFT: ("draft",),
        Capability.FORWARD: ("forward",),
        Capability.SETTLE: ("settle",),
    }

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        proposer: Proposer | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        if proposer is None or verifier is None:
            parts = {"drafter and tree, or a proposer": proposer, "acceptance rule": verifier}
            raise DecoderError(
                "speculative decoding needs a drafter, a tree and an acceptance rule; "
                f"missing: {', '.join(k for k, v in parts.items() if v is None)}"
            )
        proposer, verifier = completed(proposer, Proposer), completed(verifier, Verifier)
        super().__init__(model, sampling, proposer, verifier)
        self.renews = self.verifier.looks_ahead
        self.synchronous = model.device.type == "cpu"  # a look at the lengths costs nothing
        self.draft_calls: int | None = None  # drafter forwards of one step, see `_probe`
        self.drawn = True  # whether drafts are drawn, see `_probe`

    def pieces(self) -> Sequence[Piece]:
        return [("draft", self.draft), ("forward", self.forward), ("accept", self.settle)]

    def standing(self, text: TextFeatures, noise: Noise, place: int, told: int) -> Run:
        """A run whose next code is at `place`, `told` of those before it committed by its last step
        and not yet read by the proposer; caches are as large as they are there and empty behind the
        prefix: pieces of its step can be timed."""
        run = self.begin(text, noise, 0)
        run.length.fill_(place)
        run.seen.count.fill_(told)
        run.seen.start.fill_(place - told)
        run.seen.hidden.copy_(run.seen.hidden[:, :1].clone())
        capacity = self._capacity(place, self._unfinished(place))
        run.cache = run.cache.widened(max(run.cache.capacity, capacity))
        return run

    @torch.inference_mode()
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: float = 0) -> Generation:
        run = self.begin(text, noise.to(self.model.device), pairs)
        run = self.execution.begin(self, run)
        size = self.model.target.length
        expected = Expected()  # not of the run, whose tensors are the same in every recorded step
        blind = self._unfinished(1)  # steps until the next look at the lengths
        for _ in range(1, size):
            visited = self.execution.step(self, run)
            expected.note(visited[2])
            if run.pairs.wanted is not None:
                run.pairs.offer(*visited_pairs(*visited))
            blind -= 1
            if blind == 0 and (blind := self._look(run)) == 0:
                break
        require_finite(run.record, "speculative decoding")
        run.session.require_finite()
        trace = run.record.finish(
            run.watch.seconds(),
            run.target_calls,
            run.drafter_calls,
            self.proposer.depth,
            self.proposer.nodes,
            run.pairs.pairs(),
        )
        trace.path = run.path
        trace.expected = expected.mean(trace.accepted)
        return Generation(run.record.codes[:, :size].cpu(), trace)

    def begin(self, text: TextFeatures, noise: Noise, pairs: float) -> Run:
        """Prefill of target and proposer, and the first code."""
        target, proposer = self.model.target, self.proposer
        watch = Stopwatch(self.model.device)
        most = self._capacity(target.length, 0)
        capacity = self._capacity(1, self._unfinished(1)) if self.grows else most
        record = Recorder(text.batch, target.length, proposer.depth + 1, self.model.device)
        noise = noise.stepping(record.steps, self.renews)
        kept = self.execution.kept(self, text.batch)
        start = begin(self.model, self.sampling, text, noise, capacity, kept)
        record.check(start.law)
        record.first(start.first)
        watch.lap("prefill")
        if self.draft_calls is None:
            self._probe(start, record)
            watch.restart()
        session = begun(proposer, start, kept)
        watch.lap("draft")
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        ones = torch.ones_like(start.first)
        return Run(
            F.pad(valid, (0, most - target.prefix), value=True),
            noise,
            start.cache,
            session,
            self.verifier.begin(start),
            record,
            PairSampler(pairs, noise, target.length, proposer.depth),
            watch,
            ones,
            torch.zeros_like(ones),
            torch.full_like(ones, session.calls),
            first_seen(start, proposer, record.codes, self.drawn),
            torch.arange(most, device=self.model.device),
        )

    def draft(self, run: Run) -> tuple[Draft, Tensor]:
        """The proposer drafts under the root; with the draft comes its mask, made here, so that a
        compiled forward reads it instead of making it in every layer."""
        return self.masked(run, run.session.propose(run.seen, run.noise, run.length))

    def masked(self, run: Run, draft: Draft) -> tuple[Draft, Tensor]:
        """A draft and its mask [R, N + 1, S] bool."""
        base = (self.model.target.prefix + run.length - 1)[:, None]  # [B, 1], the root's slot
        return draft, tree_mask(run, draft, base, self.sampling.guidance_rows)

    def forward(self, run: Run, draft: Draft, mask: Tensor) -> tuple[Draft, Tensor, Tensor]:
        """The target on root and drafts -> hidden [R, N + 1, D], guided logits [B, N + 1, V]; mask
        [R, N + 1, S] bool."""
        target, copies = self.model.target, self.sampling.guidance_rows
        root_place = (run.length - 1)[:, None]  # [B, 1]
        base = target.prefix + root_place
        slots = base + torch.arange(draft.codes.shape[1], device=base.device)  # [B, N + 1]
        places = root_place + draft.depth  # [B, N + 1]
        hidden = target.forward_codes(
            draft.codes.repeat(copies, 1),
            places.repeat(copies, 1),
            slots.repeat(copies, 1),
            mask,
            run.cache,
        )
        return draft, hidden, code_logits(target, hidden, self.sampling.cfg, places + 1)

    def settle(self, run: Run, draft: Draft, hidden: Tensor, logits: Tensor) -> tuple[Any, ...]:
        """Judges, records and commits; returns what `visited_pairs` needs."""
        size = self.model.target.length
        law = Law(logits, law_of(logits, self.sampling), self.sampling.greedy)
        run.record.check(law.p[..., 0])  # one NaN makes a softmax's row NaN
        settled = self.verifier.decide(law, draft, run.noise, run.length, run.state)
        new = draft.codes.gather(1, settled.nodes[:, 1:])  # [B, D]
        span, active = run.record.span, run.length < size  # 0 .. D; [B]
        drafted = span < settled.count[:, None]  # [B, D + 1]
        committed = torch.where(drafted, F.pad(new, (0, 1)), settled.last_code[:, None])
        self._record(run, settled, committed, drafted, active)
        states = self._commit(run, settled, hidden)
        self._move(run, settled, committed, states, active)
        if self.renews:
            run.noise.renew(run.length[:, None] + span)
        if self.proposer.reads_laws:
            show(run.seen, draft, law.p, settled.nodes)
        return run.seen.start, size, draft, settled.nodes, settled.count, law.p

    def _move(
        self, run: Run, settled: Settled, committed: Tensor, states: Tensor, active: Tensor
    ) -> None:
        """What the next step starts from, in place."""
        size, seen = self.model.target.length, run.seen
        seen.hidden.copy_(states)
        seen.codes.copy_(committed)
        seen.count.copy_(settled.count).add_(1)
        # Not the lengths themselves: torch 2.11 compiles a copy of them to read what comes later.
        seen.start.copy_(run.length.clamp_max(size))
        run.length.add_(seen.count).clamp_max_(size)
        run.target_calls.add_(active)
        if self.draft_calls:
            run.drafter_calls.add_(active, alpha=self.draft_calls)

    def _record(
        self, run: Run, settled: Settled, committed: Tensor, drafted: Tensor, active: Tensor
    ) -> None:
        """drafted [B, D + 1] bool: which codes are drafts; active [B] bool: unfinished images. A
        finished one writes behind its end, where its length is."""
        record = run.record
        record.write(
            run.length,
            committed,
            kind=kinds(drafted, settled.relaxed, settled.bonus),
            moved=settled.moved,
            bound=settled.bound,
            step=(record.steps + 1).expand_as(committed),
            depth=record.depths * drafted,
        )
        kept = torch.minimum(settled.count, self.model.target.length - run.length)
        record.end_step(torch.where(active, kept, -1))

    def _commit(self, run: Run, settled: Settled, hidden: Tensor) -> Tensor:
        """Moves the path's keys and values behind the committed ones; returns its states [R, D+1,
        D]."""
        copies, span = self.sampling.guidance_rows, run.record.span
        base = (self.model.target.prefix + run.length - 1)[:, None]  # [B, 1], the root's slot
        live = span <= settled.count[:, None]
        source = torch.where(live, base + settled.nodes, base + span)
        destination = (base + span).expand_as(source)
        run.cache.commit(source.repeat(copies, 1), destination.repeat(copies, 1))
        index = settled.nodes.repeat(copies, 1)[..., None].expand(-1, -1, hidden.shape[-1])
        return hidden.gather(1, index)

    def _probe(self, start: Start, record: Recorder) -> None:
        """What is the same in all steps, whatever the batch: forwards of a drafter, and whether
        drafts are drawn. Found out once, on a session of its own, as a recorded step cannot."""
        session, seen = self.proposer.begin(start), first_seen(start, self.proposer, record.codes)
        before = session.calls
        draft = session.propose(seen, start.noise, torch.ones_like(start.first))
        self.draft_calls, self.drawn = session.calls - before, draft.q is not None

    def _look(self, run: Run) -> int:
        """Waits for the device and reads the lengths: steps until the next look, for which there is
        room in the cache then; 0 where all rows are done."""
        lengths = run.length.tolist()
        steps = self._unfinished(min(lengths))
        capacity = self._capacity(max(lengths), steps)
        if self.grows and capacity > run.cache.capacity:
            run.cache = run.cache.widened(capacity)
        return steps

    def _unfinished(self, length: int) -> int:
        """Steps that a row of `length` codes needs at least: a look before that tells nothing new,
        and a step after it is lost. No more than the cache has room for, where it grows; 1 on the
        CPU, where a look costs nothing."""
        least = math.ceil((self.model.target.length - length) / (self.proposer.depth + 1))
        if self.synchronous:
            return min(least, 1)
        return min(least, POLL) if self.grows else least

    def _capacity(self, length: int, steps: int) -> int:
        """Cache slots that so many steps may use when `length` codes are committed: one of a few
        sizes, since kernels and compilers prepare for each."""
        target, proposer = self.model.target, self.proposer
        reach = min(length + steps * (proposer.depth + 1), target.length)
        most = aligned(target.prefix + target.length + proposer.nodes + 1)
        return min(aligned(target.prefix + reach + proposer.nodes + 1, BLOCK), most)
