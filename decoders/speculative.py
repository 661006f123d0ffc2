"""Speculative decoding: draft a tree, verify it in one target forward, keep the accepted path.

A step: the drafter grows a tree under the root (the last committed code) -> the target runs on root
and nodes at once -> the rule judges every node's children -> the uniforms decide, the path is
walked -> the path's codes and one corrected or bonus code are committed, and the caches keep the
path. Rows of a batch advance independently; shapes are static; nothing inside a step waits for the
device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    AcceptRule,
    DecoderError,
    Draft,
    Generation,
    ImageModel,
    Sampling,
    TextFeatures,
)
from decoders.autoregressive import choose, require_finite
from decoders.backends.execution import Execution, Piece, execution
from decoders.cache import BLOCK, aligned
from decoders.distribution import code_logits, probabilities
from decoders.drafters.session import (
    Drafter,
    DraftError,
    DraftSession,
    Tree,
    named,
    require_logits,
    require_root,
)
from decoders.kernels.acceptance import Judge, judge_of
from decoders.kernels.cpu.rules import rule_of
from decoders.kernels.cpu.speculation import NativeStep, Parts, State
from decoders.models.whole_steps import parts_of
from decoders.noise import ACCEPT_SLOT, MAX_CHILDREN, OVERRUN, TARGET_SLOT, Noise, sample
from decoders.recording import PairSampler, Recorder, kinds
from decoders.speculative_run import Run, Told, along_path, at_node, tree_mask, visited_pairs
from decoders.timing import Stopwatch
from decoders.verification import (
    Path,
    Verdicts,
    children_of,
    longest,
    test_children,
    walk,
)

POLL = 8  # steps between looks at the lengths, at most, where caches grow on an asynchronous device


class Speculative:
    """The loop; drafter, tree and acceptance rule are separate choices."""

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        drafter: Drafter | None,
        tree: Tree | None,
        acceptance: AcceptRule | None,
    ) -> None:
        if drafter is None or tree is None or acceptance is None:
            parts = {"drafter": drafter, "tree": tree, "acceptance": acceptance}
            raise DecoderError(
                "speculative decoding needs a drafter, a tree and an acceptance rule; "
                f"missing: {', '.join(k for k, v in parts.items() if v is None)}"
            )
        if tree.branching > MAX_CHILDREN or tree.depth >= OVERRUN:
            raise DecoderError(
                f"tree with {tree.branching} children a node and {tree.depth} levels: "
                f"at most {MAX_CHILDREN} and {OVERRUN - 1} are supported"
            )
        self.model, self.sampling = model, sampling
        self.drafter, self.tree, self.rule = drafter, tree, acceptance
        self.execution: Execution = model.execution or execution("eager")
        self.prepared: dict[Any, Any] = {}
        compiled = self.execution.name == "compile"  # fuses the tensor code by itself
        native = getattr(model.target, "native", None) is not None
        self.judge: Judge = (
            partial(test_children, acceptance)
            if compiled
            else judge_of(acceptance, model.device, native)
        )
        self.synchronous = model.device.type == "cpu"  # a look at the lengths costs nothing
        self.draft_calls: int | None = None  # drafter forwards of one step, counted once

    def pieces(self) -> Sequence[Piece]:
        return [("draft", self._draft), ("verify", self._verify), ("accept", self._settle)]

    def standing(self, text: TextFeatures, noise: Noise, place: int, told: int) -> Run:
        """A run whose next code is at `place`, `told` of those before it committed by its last step
        and not yet read by the drafter; caches are as large as they are there and empty behind the
        prefix: pieces of its step can be timed."""
        run = self._begin(text, noise, 0)
        run.length.fill_(place)
        run.told.count.fill_(told)
        run.told.start.fill_(place - told)
        run.told.hidden.copy_(run.told.hidden[:, :1].clone())
        capacity = self._capacity(place, self._unfinished(place))
        run.cache = run.cache.widened(max(run.cache.capacity, capacity))
        return run

    @torch.inference_mode()
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: int = 0) -> Generation:
        try:
            return self._decoded(text, noise, pairs)
        except DraftError as error:
            raise DecoderError(f"the drafter {named(self.drafter)}: {error}") from error

    def _decoded(self, text: TextFeatures, noise: Noise, pairs: int) -> Generation:
        run = self._begin(text, noise.to(self.model.device), pairs)
        run = self.execution.begin(self, run)
        size = self.model.target.length
        blind = self._unfinished(1)  # steps until the next look at the lengths
        for _ in range(1, size):
            visited = self.execution.step(self, run)
            if run.pairs.count:
                run.pairs.offer(*visited_pairs(*visited))
            blind -= 1
            if blind == 0 and (blind := self._look(run)) == 0:
                break
        require_finite(run.record, "speculative decoding")
        if bool(run.record.bad_draft):
            raise DraftError("expected finite logits, found NaN or infinity")
        trace = run.record.finish(
            run.watch.seconds(),
            run.target_calls,
            run.drafter_calls,
            self.tree.depth,
            self.tree.nodes,
            run.pairs.pairs(),
        )
        return Generation(run.record.codes[:, :size].cpu(), trace)

    def _look(self, run: Run) -> int:
        """Waits for the device and reads the lengths: steps until the next look, for which there is
        room in the cache then; 0 where all rows are done."""
        lengths = run.length.tolist()
        steps = self._unfinished(min(lengths))
        capacity = self._capacity(max(lengths), steps)
        if self.execution.grows and capacity > run.cache.capacity:
            run.cache = run.cache.widened(capacity)
        return steps

    def _unfinished(self, length: int) -> int:
        """Steps that a row of `length` codes needs at least: a look before that tells nothing new,
        and a step after it is lost. No more than the cache has room for, where it grows; 1 on the
        CPU, where a look costs nothing."""
        least = math.ceil((self.model.target.length - length) / (self.tree.depth + 1))
        if self.synchronous:
            return min(least, 1)
        return min(least, POLL) if self.execution.grows else least

    def _capacity(self, length: int, steps: int) -> int:
        """Cache slots that so many steps may use when `length` codes are committed: one of a few
        sizes, since kernels and compilers prepare for each."""
        target, tree = self.model.target, self.tree
        reach = min(length + steps * (tree.depth + 1), target.length)
        most = aligned(target.prefix + target.length + tree.nodes + 1)
        return min(aligned(target.prefix + reach + tree.nodes + 1, BLOCK), most)

    def _begin(self, text: TextFeatures, noise: Noise, pairs: int) -> Run:
        """Prefill of target and drafter, and the first code."""
        target, tree, copies = self.model.target, self.tree, self.sampling.guidance_rows
        device, batch = self.model.device, text.batch
        watch = Stopwatch(device)
        capacity = self._capacity(target.length, 0)
        # The kernel reads only the slots that are seen: its cache need not grow.
        grows = self.execution.grows and self._parts() is None
        most = self._capacity(1, self._unfinished(1)) if grows else capacity
        cache = target.new_cache(batch * copies, most)
        record = Recorder(batch, target.length, tree.depth + 1, device)
        hidden = target.prefill(text, copies, cache)  # [R, P, D]
        ones = torch.ones(batch, dtype=torch.long, device=device)
        logits = code_logits(target, hidden[:, -1:], self.sampling.cfg, ones[:, None] - 1)[:, 0]
        first, p = choose(logits, self.sampling, noise.uniform[:, 0, TARGET_SLOT])
        record.check(p)
        record.first(first)
        watch.lap("prefill")
        session = self.drafter.begin(
            text, hidden, self.sampling, tree.depth + 1, tree.session_nodes
        )
        told = Told(
            F.pad(hidden[:, -1:], (0, 0, 0, tree.depth)),  # [R, D + 1, D]
            F.pad(first[:, None], (0, tree.depth)),  # [B, D + 1]
            ones.clone(),
            ones - 1,
        )
        watch.lap("draft")
        if self.draft_calls is None:
            self.draft_calls = self._count_calls(text, hidden, told, noise)
            watch.restart()
        run = Run(
            F.pad(text.row_mask(copies), (0, capacity - target.prefix), value=True),
            noise,
            cache,
            session,
            record,
            PairSampler(pairs, batch * target.length),
            watch,
            ones,
            torch.zeros_like(ones),
            torch.full_like(ones, session.calls),
            told,
        )
        run.native = self._native(run)
        return run

    def _count_calls(self, text: TextFeatures, hidden: Tensor, told: Told, noise: Noise) -> int:
        """Forwards of the drafter in one step, the same in all, whatever the batch: counted once,
        on a session of its own, as a recorded step counts nothing."""
        session = self.drafter.begin(
            text, hidden, self.sampling, self.tree.depth + 1, self.tree.session_nodes
        )
        before = session.calls
        self._grown(session, told, noise, told.count)
        return session.calls - before

    def _grown(
        self,
        session: DraftSession,
        told: Told,
        noise: Noise,
        length: Tensor,
        record: Recorder | None = None,
    ) -> Draft:
        """The session reads what was committed, and a tree grows under the root; length [B], the
        place of the root's child. What it answers is checked every time, as a drafter may be right
        for one image and wrong for a batch; no values are read, `record` remembers whether they
        were finite. Raises DraftError."""
        logits = session.advance(told.hidden, told.codes, told.count, told.start)  # [B, V]
        require_root(session, length)
        require_logits(session, logits, len(length), self.model.target.vocab_size)
        draft = self.tree.grow(session, logits, self.sampling, noise, length)
        if record is not None:
            record.check_draft(logits, draft.q)
        return draft

    def _draft(self, run: Run) -> tuple[Draft, Tensor | None]:
        """The drafter reads what was committed and grows a tree under the root; with the tree comes
        its mask (made here, so that a compiled forward reads it instead of making it in every
        layer; the CPU kernel makes its own)."""
        draft = self._grown(run.session, run.told, run.noise, run.length, run.record)
        if run.native is not None:
            return draft, None
        base = (self.model.target.prefix + run.length - 1)[:, None]  # [B, 1], the root's slot
        return draft, tree_mask(run, draft, base, self.sampling.guidance_rows)

    def _verify(self, run: Run, draft: Draft, mask: Tensor | None) -> tuple[Draft, Tensor, Tensor]:
        if run.native is not None:
            return draft, *run.native.verify(draft, run.cache)
        if mask is None:
            raise DecoderError("a tree is verified with its mask, found none")
        return draft, *self._forward(run, draft, mask)

    def _settle(self, run: Run, draft: Draft, hidden: Tensor, logits: Tensor) -> tuple[Any, ...]:
        """Accepts, records and commits; returns what `visited_pairs` needs."""
        size = self.model.target.length
        if run.native is not None:
            nodes, count, p = run.native.settle(draft)
            return run.told.start, size, draft, nodes, count, p
        p = probabilities(logits, self.sampling)  # [B, N + 1, V]
        run.record.check(p)
        codes, valid = children_of(draft)
        path, verdicts, taken_moved = self._decide(run, draft, p, codes, valid)
        final = self._last_code(run, path, verdicts, logits)
        new = draft.codes.gather(1, path.nodes[:, 1:])  # [B, D]
        span = torch.arange(self.tree.depth + 1, device=new.device)
        committed = torch.where(span < path.count[:, None], F.pad(new, (0, 1)), final[:, None])
        leaf = ~at_node(valid, path.last).any(-1)  # [B]
        self._record(run, path, committed, taken_moved, leaf)
        start, active = run.length.clone(), run.length < size  # it outlives the step
        run.told = Told(self._commit(run, path, hidden), committed, path.count + 1, start)
        run.length = (start + path.count + 1).clamp_max(size)
        run.target_calls = run.target_calls + active
        run.drafter_calls = run.drafter_calls + active * (self.draft_calls or 0)
        return start, size, draft, path.nodes, path.count, p

    def _parts(self) -> Parts | None:
        """What verifies and settles as a call of the CPU kernel each, where it runs whole steps of
        this loop; a subclass may decide in another way."""
        rule, found = rule_of(self.rule), parts_of(self.model.target, self.sampling)
        other = self.execution.name != "eager" or type(self) is not Speculative
        if other or rule is None or found is None:
            return None
        size, calls = self.model.target.length, self.draft_calls or 0
        return Parts(*found, size, self.sampling, rule, self.tree.depth, calls)

    def _native(self, run: Run) -> NativeStep | None:
        """The calls of this run."""
        parts = self._parts()
        if parts is None:
            return None
        uniform = run.noise.uniform.contiguous()
        done = run.target_calls, run.drafter_calls
        state = State(run.seen, uniform, run.length, run.record, *done, *vars(run.told).values())
        return NativeStep(parts, state, self.tree.nodes + 1, self.tree.branching)

    def _forward(self, run: Run, draft: Draft, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The target on root and nodes -> hidden [R, N + 1, D], guided logits [B, N + 1, V]; mask
        [R, N + 1, S] bool."""
        target, copies = self.model.target, self.sampling.guidance_rows
        root_place = (run.length - 1)[:, None]  # [B, 1]
        base = target.prefix + root_place
        nodes = draft.codes.shape[1]
        slots = base + torch.arange(nodes, device=base.device)  # [B, N + 1]
        places = root_place + draft.depth  # [B, N + 1]
        hidden = target.forward_codes(
            draft.codes.repeat(copies, 1),
            places.repeat(copies, 1),
            slots.repeat(copies, 1),
            mask,
            run.cache,
        )
        return hidden, code_logits(target, hidden, self.sampling.cfg, places + 1)

    def _decide(
        self, run: Run, draft: Draft, p: Tensor, codes: Tensor, valid: Tensor
    ) -> tuple[Path, Verdicts, tuple[Tensor, Tensor, Tensor]]:
        """Verdicts on all children, the walk, and per depth (moved, bound, relaxed) of the path."""
        depth, width = self.tree.depth, codes.shape[-1]
        if self.sampling.greedy:
            judged = self.rule.greedy(p[:, :, None].expand(-1, -1, width, -1), codes)
            verdicts = Verdicts(
                accept=torch.where(valid, judged.accept, 0.0),
                strict=torch.where(valid, judged.strict, 0.0),
                moved=torch.where(valid, judged.moved, 0.0),
                bound=torch.where(valid, judged.bound, 0.0),
                residual=p,
            )
            u = torch.full_like(verdicts.accept, 0.5)
            path = longest(draft, (u < verdicts.accept) & valid, depth)
        else:
            verdicts = self.judge(p, draft.q, codes, valid)
            u = run.noise.at(run.length[:, None] + draft.depth, ACCEPT_SLOT, width)  # [B, N+1, K]
            path = walk(draft, u < verdicts.accept, depth)
        return path, verdicts, along_path(path, verdicts, u)

    def _last_code(self, run: Run, path: Path, verdicts: Verdicts, logits: Tensor) -> Tensor:
        """The corrected or bonus code after the path, [B]."""
        if self.sampling.greedy:
            return at_node(logits, path.last).argmax(-1)
        u = run.noise.at(run.length + path.count, TARGET_SLOT)[:, 0]
        return sample(at_node(verdicts.residual, path.last), u)

    def _record(
        self,
        run: Run,
        path: Path,
        committed: Tensor,
        along: tuple[Tensor, Tensor, Tensor],
        leaf: Tensor,
    ) -> None:
        size, depth = self.model.target.length, self.tree.depth
        moved, bound, relaxed = along
        span = torch.arange(depth + 1, device=committed.device)
        active = run.length < size
        start = torch.where(active, run.length, size)
        run.record.write(
            start,
            committed,
            kind=kinds(path.count, relaxed, leaf),
            moved=moved,
            bound=bound,
            step=(run.record.steps + 1).expand_as(committed),
            depth=torch.where(span < path.count[:, None], span + 1, 0),
        )
        kept = torch.minimum(path.count, size - run.length)
        run.record.end_step(torch.where(active, kept, -1))

    def _commit(self, run: Run, path: Path, hidden: Tensor) -> Tensor:
        """Moves the path's keys and values behind the committed ones; returns its states [R, D+1,
        D]."""
        copies = self.sampling.guidance_rows
        base = (self.model.target.prefix + run.length - 1)[:, None]  # [B, 1], the root's slot
        span = torch.arange(self.tree.depth + 1, device=base.device)
        live = span <= path.count[:, None]
        source = torch.where(live, base + path.nodes, base + span)
        destination = (base + span).expand_as(source)
        run.cache.commit(source.repeat(copies, 1), destination.repeat(copies, 1))
        index = path.nodes.repeat(copies, 1)[..., None].expand(-1, -1, hidden.shape[-1])
        return hidden.gather(1, index)
