"""Speculative decoding: propose a draft, verify it in one target forward, keep the accepted path.

A step: the proposer drafts under the root (the last committed code) -> the target runs on root and
drafts at once -> the verifier says which path is accepted and which code follows it -> path and
code are committed, and the cache keeps the path. Rows of a batch advance independently; shapes are
static; nothing inside a step waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    StepOutput,
    TargetProbs,
    TextFeatures,
    Verifier,
    completed,
)
from decoders.cache import CLOSED, additive_mask, ancestry_of, cache_mask, round_up
from decoders.distribution import code_logits, probabilities
from decoders.execution.state import put_row
from decoders.loops.base_loop import BaseLoop, DecodeState, one_at_a_time, require_finite
from decoders.loops.trace import FinishedImages, PairSampler, Step
from decoders.noise import Noise


@dataclass(kw_only=True)
class SpecState(DecodeState):
    open: Tensor  # [R, S] float32, 0: visible (valid prefix and everything after it), else -inf
    session: ProposerSession
    verifier_state: Any
    length: Tensor  # [B] int64, codes committed; the last one is the root, not yet in the cache
    output: StepOutput  # of the last step
    slots: Tensor  # [S] int64, 0, 1, ...


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

    # ---- a step ---------------------------------------------------------------------------------

    def pieces(self) -> Sequence[Piece]:
        return [
            ("draft", self.draft),
            ("forward", self.forward),
            ("accept", self.verify_and_commit),
        ]

    def draft(self, state: SpecState) -> tuple[Draft, Tensor]:
        """Drafts under the root; returns the draft with its mask."""
        draft = state.session.propose(state.output, state.noise, state.length)
        return draft, self.mask_of(state, draft)

    def mask_of(self, state: SpecState, draft: Draft) -> Tensor:
        """Makes the mask of a draft, [R, N + 1, S] float32 (`decoders.cache`): a node sees the
        valid prefix, committed codes, what is above it and itself. Made before the forward, so that
        a compiled one reads it instead of making it in every layer."""
        base = (self.model.target.prefix + state.length - 1)[:, None]  # [B, 1], the root's slot
        above, copies = additive_mask(ancestry_of(draft)), self.sampling.guidance_rows
        if copies > 1:
            base, above = base.repeat(copies, 1), above.repeat(copies, 1, 1)
        return cache_mask(torch.where(state.slots < base, state.open, CLOSED), above, base)

    def forward(self, state: SpecState, draft: Draft, mask: Tensor) -> tuple[Draft, Tensor, Tensor]:
        """Runs the target on root and drafts -> hidden [R, N + 1, D], guided logits [B, N + 1, V];
        mask [R, N + 1, S] float32."""
        target, copies = self.model.target, self.sampling.guidance_rows
        root = (state.length - 1)[:, None]  # [B, 1], its position
        numbers = torch.arange(draft.codes.shape[1], device=root.device)
        positions, slots = root + draft.depth, target.prefix + root + numbers  # [B, N + 1]
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
        """Judges the draft by the logits [B, N + 1, V], commits the accepted path and the code
        behind it, and writes what the next step begins with. A finished image keeps
        stepping with its batch: what it writes past its end is cut off."""
        target, copies, trace, output = (
            self.model.target,
            self.sampling.guidance_rows,
            state.trace,
            state.output,
        )
        length, active, span = state.length, state.length < target.length, trace.span  # 0 .. D
        probs = TargetProbs(logits, probabilities(logits, self.sampling), self.sampling.greedy)
        trace.check(probs.p[..., 0])  # one NaN makes a softmax's row NaN
        verified = self.verifier.verify(probs, draft, state.noise, length, state.verifier_state)
        path, count = verified.nodes, verified.count  # [B, D + 1], [B]

        # Codes: the path's drafts, then the last code. Kinds by arithmetic: RELAXED = DRAFT + 1,
        # BONUS = CORRECTED + 1.
        is_draft = span < count[:, None]  # [B, D + 1]
        new = F.pad(draft.codes.gather(1, path[:, 1:]), (0, 1))  # [B, D + 1]
        committed = torch.where(is_draft, new, verified.last_code[:, None])
        trace.add_draft(draft, active)
        sure = {} if draft.confidence is None else {"confidence": tested(draft, path, count)}
        if verified.last_is_draft is not None:
            is_draft = is_draft | (verified.last_is_draft[:, None] & (span == count[:, None]))
        relaxed = verified.relaxed.to(torch.uint8)  # [B, D], or with the last code
        draft_kinds = F.pad(relaxed, (0, len(span) - relaxed.shape[1])) + int(CodeKind.DRAFT)
        last_kind = verified.bonus.to(torch.uint8) + int(CodeKind.CORRECTED)  # [B]
        trace.put(
            length[:, None] + span,
            committed,
            kind=torch.where(is_draft, draft_kinds, last_kind[:, None]),
            tv_shift=verified.tv_shift,
            bound=verified.bound,
            step=(trace.steps + 1)[:, None].expand_as(committed),
            depth=trace.depths * is_draft,
            **sure,
        )
        within = torch.minimum(count, target.length - length)
        trace.end_step(torch.where(active, within, -1), self.proposer.forwards)

        # The cache keeps the path's keys and values after the committed ones. Slots past the path
        # are copied onto themselves, so that the shape is static.
        base = (target.prefix + length - 1)[:, None]  # [B, 1], the root's slot
        source = torch.where(span <= count[:, None], base + path, base + span)
        destination = (base + span).expand_as(source)
        state.cache.commit(source.repeat(copies, 1), destination.repeat(copies, 1))

        # What the next step begins with.
        index = path.repeat(copies, 1)[..., None].expand(-1, -1, hidden.shape[-1])
        output.hidden.copy_(hidden.gather(1, index))  # [R, D + 1, D]
        output.codes.copy_(committed)
        output.count.copy_(count).add_(1)
        # clamp_max changes no value: torch 2.11 would compile a plain copy to read `length` after
        # the add_ below.
        output.position.copy_(length.clamp_max(target.length))
        length.add_(output.count).clamp_max_(target.length)
        if self.resamples_noise:
            state.noise.renew(length[:, None] + span)
        if self.proposer.reads_probs:
            write_probs(output, draft, probs.p, path)
        return (Step(output.position, draft, path, count, probs.p),)

    # ---- an image -------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """One draft may reach past the image's end."""
        return round_up(super().slots + self.proposer.nodes + 1)

    def begin(
        self, text: TextFeatures, noise: Noise, pairs: float = 0, reuse: Any = None
    ) -> SpecState:
        """Runs the prefill of target and proposer, and draws the first code. reuse: see
        `BaseLoop.prefilled`."""
        target, proposer = self.model.target, self.proposer
        prefill, shared = self.prefilled(text, noise, proposer.depth + 1, reuse)
        session = completed(proposer.begin(prefill), ProposerSession)
        shared["watch"].lap("draft")
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        if pairs:
            shared["pairs"] = PairSampler(pairs, prefill.noise, target.length)
        return SpecState(
            open=F.pad(additive_mask(valid), (0, self.slots - target.prefix)),
            session=session,
            verifier_state=self.verifier.begin(prefill),
            length=torch.ones_like(prefill.first),
            output=first_output(prefill, proposer, shared["trace"].codes),
            slots=torch.arange(self.slots, device=self.model.device),
            **shared,
        )

    def steps(self, state: SpecState) -> Iterator[int]:
        """One for each code that is left: a step commits at least one."""
        return iter(range(self.model.target.length - 1))

    @one_at_a_time
    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        """See `decoders.api.Decoder`. Rows of images that are done go on with the images that wait.
        Raises RefillError where `rows` are fewer than the images and a part's state cannot begin
        another image in a row."""
        size, noise = self.model.target.length, noise.to(self.model.device)
        rows = min(rows or text.batch, text.batch)
        state = self.begin(text.rows(slice(rows)), noise.rows(slice(rows)), pairs)
        state = self.execution.begin(self, state)
        done = FinishedImages(text.batch, rows)
        image_of_row: list[int | None] = [*range(rows)]  # None: it is done, and none waits
        waiting = list(range(text.batch))[rows:]
        spare: Any = None  # a state of one image, in whose cache the next may begin
        until_read = self._steps_until_a_row_may_end(1)  # steps until lengths are read
        while until_read:
            (step,) = self.execution.step(self, state)
            done.steps += 1
            if state.pairs is not None:
                done.keep_pairs(state.pairs, image_of_row, step.visited(size))
            until_read -= 1
            if until_read:
                continue
            lengths = state.length.tolist()  # waits for the device
            ended = [r for r, n in enumerate(lengths) if n == size and image_of_row[r] is not None]
            if ended:
                self._require_finite(state)
                done.take(
                    [i for r in ended if (i := image_of_row[r]) is not None], state.trace, ended
                )
            for row in ended:
                image_of_row[row] = waiting.pop(0) if waiting else None
                if (following := image_of_row[row]) is not None:
                    one = text.rows([following]), noise.rows([following])
                    spare = self.begin(*one, pairs, spare)
                    self._require_finite(spare)
                    put_row(state, row, spare)
                    state.watch.lap("prefill")
                    lengths[row] = 1
            # While images wait the row nearest to its end decides, else the farthest. 0: the end.
            until_read = self._steps_until_a_row_may_end(max(lengths) if waiting else min(lengths))
        generation = done.generation(state.watch.seconds(), state.path)
        trace = generation.trace
        trace.tree_depth, trace.tree_nodes = self.proposer.depth, self.proposer.nodes
        return generation

    def _steps_until_a_row_may_end(self, length: int) -> int:
        """Lower bound on the steps until a row with `length` codes is finished: lengths are read
        from the device only then. At most 1 on the CPU, where reading costs nothing."""
        least = math.ceil((self.model.target.length - length) / (self.proposer.depth + 1))
        return min(least, 1) if self.model.device.type == "cpu" else least

    def _require_finite(self, state: SpecState) -> None:
        require_finite(state.trace, "speculative decoding")
        state.session.require_finite()


def tested(draft: Draft, path: Tensor, count: Tensor) -> Tensor:
    """How sure the drafter was of the draft that was tested behind each node of the path [B, D +
    1] -> [B, D + 1]; NaN where there is none, and past the path's end."""
    assert draft.confidence is not None
    there = draft.children.amax(-1).gather(1, path) > 0
    there &= torch.arange(path.shape[1], device=path.device) <= count[:, None]
    return torch.where(there, draft.confidence.gather(1, path), math.nan)


def first_output(prefill: Prefill, proposer: Proposer, image: Tensor) -> StepOutput:
    """Makes what the first draft is given: the code sampled from the prefill, and the state that
    predicted it. image [B, >= L]: where the loop keeps its codes."""
    depth, ones = proposer.depth, torch.ones_like(prefill.first)
    output = StepOutput(
        hidden=F.pad(prefill.hidden[:, -1:], (0, 0, 0, depth)),  # [R, D + 1, D]
        codes=F.pad(prefill.first[:, None], (0, depth)),  # [B, D + 1]
        count=ones,
        position=ones - 1,
        image=image,
    )
    if proposer.reads_probs:
        batch, nodes = prefill.batch, proposer.nodes + 1
        output.draft_codes = ones.new_zeros(batch, nodes)
        output.p = prefill.probs.new_zeros(batch, nodes, prefill.model.target.vocab_size)
        if proposer.draws and not prefill.sampling.greedy:
            output.draft_q = output.p.clone()
        output.nodes = ones.new_zeros(batch, depth + 1)
    return output


def write_probs(output: StepOutput, draft: Draft, p: Tensor, nodes: Tensor) -> None:
    """Writes the draft, the target's distributions at its nodes and the path for the next proposal,
    in place, as an execution may hold their addresses. Raises DecoderError where drafts are drawn
    and the proposer does not say so, or the other way round."""
    assert output.draft_codes is not None and output.p is not None and output.nodes is not None
    if (draft.q is None) != (output.draft_q is None):
        raise DecoderError(
            "a proposer says by `draws` whether its drafts are drawn from q (at temperature 0 none "
            f"are): expected q {'None' if output.draft_q is None else 'of every node'}, found "
            f"{'None' if draft.q is None else 'a tensor'}"
        )
    output.draft_codes.copy_(draft.codes)
    if draft.q is not None and output.draft_q is not None:
        output.draft_q.copy_(draft.q)
    output.p.copy_(p)
    output.nodes.copy_(nodes)
