"""DuoDecoding (2503.00784, decoders.md (m)): the drafter goes on while the target verifies.

A step has g drafts. The forward reads the root and all drafts but the last: the test of the last
needs only the distribution before it. Meanwhile the drafter drafts g more codes after the last one.
Where all g are accepted, the last one is the next root and the g more are the next step's drafts,
so nothing is drafted before its forward. In other rows they are thrown away, and g new ones are
drafted before the forward.

Exact with every exact rule: the distribution of a kept draft was fixed before the tests that
decided to keep it, and its own random numbers have decided nothing. Three choices are this file's
and not the paper's. No code is drawn after the last draft, so that the g more codes follow a code
that is known. The drafter reads a kept draft again under its new root, where it has the target's
states, and so that rows of a batch stay in step. The drafter has a thread, on a GPU a stream; the
paper's drafter is on the CPU.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    DraftSession,
    Piece,
    Prefill,
    StepOutput,
    TargetProbs,
    TextFeatures,
    Verified,
    Verifier,
    completed,
)
from decoders.checks import require_logits
from decoders.loops.speculative import SpecState, Speculative
from decoders.loops.trace import Step
from decoders.noise import OVERRUN, Noise
from decoders.propose.tree_proposer import TreeProposer, TreeSession
from decoders.propose.trees.static import Static

FEWEST_DRAFTS = 2  # drafts of a step; with one a step would commit one code, as AR does


@dataclass
class LookaheadDraft(Draft):
    """What a forward reads of a chain of g drafts: root and g - 1 of them."""

    whole: Draft | None = None  # all g


class LookaheadSession(TreeSession):
    """Drafts for B images: nodes 1..g under the root, and g + 1..2g after the last of them."""

    def __init__(self, part: TreeProposer, prefill: Prefill) -> None:
        size = part.depth + 1
        super().__init__(part, prefill, 2 * size)
        shape = prefill.batch, size + 1
        # [B], rows whose g drafts were all accepted: the codes drafted behind them are of use.
        self.all_accepted = torch.zeros_like(prefill.first).bool()
        self.codes = prefill.first.new_zeros(shape)  # the last draft, and the g behind it
        drawn = not prefill.sampling.greedy
        self.q = prefill.probs.new_zeros(*shape, self.vocab) if drawn else None
        self.numbers = torch.arange(size + 1, device=prefill.first.device)

    def grow(self, logits: Tensor, noise: Any, position: Tensor) -> LookaheadDraft:
        """Drafts under the root, then after the last draft."""
        draft = self.drafts(logits, noise, position)
        self.extend(draft, noise, position)
        return draft

    def read(self, output: StepOutput, noise: Any, position: Tensor) -> LookaheadDraft:
        """Reads the committed codes; returns g drafts under the root."""
        return self.drafts(self.advance(output), noise, position)

    def drafts(self, logits: Tensor, noise: Any, position: Tensor) -> LookaheadDraft:
        """Returns the drafts of the last step in rows that keep them, new ones in others."""
        all_accepted = self.all_accepted[:, None]  # [B, 1]
        root = SubtreeSession(self.session, self.session.root_code, 0, (all_accepted, self.codes))
        grown = self.tree.grow(root, logits, self.sampling, noise, position)  # type: ignore[arg-type]
        self.check(logits, grown.q)
        codes, q = torch.where(all_accepted, self.codes, grown.codes), grown.q
        if q is not None:
            q = torch.where(all_accepted[..., None], self.q, q)  # type: ignore[arg-type]
        return self.without_last(codes, q)

    def without_last(self, codes: Tensor, q: Tensor | None) -> LookaheadDraft:
        """Returns the draft that the forward reads: codes [B, g + 1], root first, without the last.
        The acceptance judges all g drafts, the `whole`. q: [B, g + 1, V]."""
        size, chain = self.tree.depth, self.tree
        assert isinstance(chain, Static)
        shape = chain.shape_on(codes.device)
        whole = shape.draft(codes, shape.children.expand(len(codes), -1, -1), q)
        above = whole.ancestry
        assert above is not None
        return LookaheadDraft(
            codes[:, :size],
            whole.parents[:, :size],
            whole.depth[:, :size],
            whole.children[:, :size] * (whole.children[:, :size] < size),
            None if q is None else q[:, :size],
            size - 1,
            above[:, :size, :size],
            inner=whole.inner[:-1],
            whole=whole,
        )

    def extend(self, draft: LookaheadDraft, noise: Any, position: Tensor) -> None:
        """Drafts g more codes after the last draft of `read`."""
        assert draft.whole is not None
        size, last = self.tree.depth, draft.whole.codes[:, -1:]  # [B, 1]
        node, above = self.numbers[size:], self.numbers[None, size - 1 : size].expand_as(last)
        logits = self.session.expand(last, node, above, size)  # [B, 1, V]
        require_logits(self.session, logits, len(last), 1, self.vocab)
        below: Any = SubtreeSession(self.session, last[:, 0], size)
        grown = self.tree.grow(below, logits[:, 0], self.sampling, noise, position + size)
        self.check(logits[:, 0], grown.q)
        self.codes.copy_(grown.codes)
        if self.q is not None and grown.q is not None:
            self.q.copy_(grown.q)


class SubtreeSession:
    """A chain's session whose root is the node `first` of another session. drafted: which rows [B,
    1] have drafts already, and their codes [B, g + 1], which are read in place of what the tree
    draws."""

    confidence: Tensor | None = None

    def __init__(
        self,
        session: DraftSession,
        root_code: Tensor,
        first: int,
        drafted: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.session, self.root_code, self.first, self.drafted = session, root_code, first, drafted

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        if self.drafted is not None:
            codes = torch.where(self.drafted[0], self.drafted[1][:, depth : depth + 1], codes)
        first = self.first
        return self.session.expand(codes, nodes + first, parents + first, depth + first)


class UnreadLast(Verifier):
    """A verifier for a chain whose last draft the target has not read: it judges that draft as the
    others, and draws no code after it. Its state keeps in which rows it was accepted, [B] bool."""

    def __init__(self, inner: Verifier) -> None:
        self.inner, self.rule, self.resamples_noise = inner, inner.rule, inner.resamples_noise

    def __str__(self) -> str:
        return str(self.inner)

    def begin(self, prefill: Prefill) -> tuple[Any, Tensor]:
        return self.inner.begin(prefill), torch.zeros_like(prefill.first).bool()

    def verify(
        self, probs: TargetProbs, draft: Draft, noise: Any, position: Tensor, state: Any
    ) -> Verified:
        """See `decoders.api.Verifier`; the distribution after the last draft is not read."""
        inner, all_accepted = state
        whole, last = self.inner.verify(probs, draft, noise, position, inner), draft.levels - 1
        all_accepted.copy_(whole.count > last)
        return Verified(
            whole.nodes[:, :-1],
            whole.count.clamp_max(last),
            torch.where(all_accepted, draft.codes[:, -1], whole.last_code),
            whole.bonus,
            whole.tv_shift[:, :-1],
            whole.bound[:, :-1],
            whole.relaxed,
            last_is_draft=all_accepted,
        )


def lookahead(proposer: TreeProposer) -> TreeProposer:
    """The proposer of a chain of g drafts whose sessions also draft g codes after the last of them.
    Raises DecoderError for another tree, and for a drafter that reads the target's cache."""
    drafter, tree = proposer.drafter, proposer.tree
    if not isinstance(tree, Static) or tree.branching > 1:
        raise DecoderError(
            f"DuoDecoding goes on from the last draft of a chain: expected tree=chain, found {tree}"
        )
    if drafter.reads_cache:
        raise DecoderError(
            f"drafter {drafter} reads the target's cache, which the target writes "
            "meanwhile; DuoDecoding needs a drafter with a state of its own, as eagle"
        )
    if not FEWEST_DRAFTS <= tree.depth < OVERRUN // 2:
        raise DecoderError(
            f"DuoDecoding has {FEWEST_DRAFTS} to {OVERRUN // 2 - 1} drafts in a step, found "
            f"{tree.depth}; set the tree's depth"
        )
    read, forwards = tree.depth - 1, drafter.forwards(2 * tree.depth)
    return proposer.varied(LookaheadSession, nodes=read, depth=read, forwards=forwards)


@dataclass(eq=False, repr=False)
class Duo(Speculative):
    """parallel: the drafter in a thread of its own; false: the same steps one after the other, with
    the same codes."""

    # As the drafter's thread runs what it drafts.
    uncompiled_pieces = frozenset({"draft", "start_drafting", "join_drafting"})
    capturable = False
    # The gate looks at drafts as they are proposed; both schedules have the same codes.
    exercised: ClassVar = {"parallel": False}

    parallel: bool = True

    def __post_init__(self) -> None:
        proposer = self.proposer
        if isinstance(proposer, TreeProposer) and self.verifier is not None:
            self.proposer = lookahead(proposer)
            self.verifier = UnreadLast(completed(self.verifier, Verifier))
        elif proposer is not None:
            raise DecoderError(
                "DuoDecoding goes on from the last draft of a chain: it needs drafter=... and "
                "tree=chain"
            )
        super().__post_init__()
        torch.get_num_threads()  # the target's own number is fixed before the drafter's 1
        self.worker = ThreadPoolExecutor(1, "drafter", torch.set_num_threads, (1,))
        self.drafting: Future[None] | None = None
        self.side: torch.cuda.Stream | None = None  # the drafter's, on a GPU

    def pieces(self) -> list[Piece]:
        if not self.parallel:
            return [*super().pieces()]
        forward: list[Piece] = [("draft", self.start_drafting), ("forward", self.forward)]
        return [*forward, ("draft", self.join_drafting), ("accept", self.verify_and_commit)]

    def begin(
        self, text: TextFeatures, noise: Noise, pairs: float = 0, reuse: Any = None
    ) -> SpecState:
        state = super().begin(text, noise, pairs, reuse)
        session: Any = state.session
        session.all_accepted = state.verifier_state[1]
        return state

    def start_drafting(self, state: SpecState) -> tuple[LookaheadDraft, Tensor]:
        """Returns what the forward reads, while the drafter's thread drafts the codes after it."""
        session: Any = state.session
        ready = bool(session.all_accepted.all())  # in all rows: nothing need be drafted now
        if ready:
            q = None if session.q is None else session.q.clone()
            draft = session.without_last(session.codes.clone(), q)
        else:
            draft = session.read(state.output, state.noise, state.length)
        if self.model.device.type == "cuda":
            self.side = self.side or torch.cuda.Stream(self.model.device)
            self.side.wait_stream(torch.cuda.current_stream(self.side.device))
        self.drafting = self.worker.submit(self.draft_ahead, state, draft, ready)
        return draft, self.mask_of(state, draft)

    def draft_ahead(self, state: SpecState, draft: LookaheadDraft, ready: bool) -> None:
        """The drafter's part of a step, at the same time as the target's."""
        session: Any = state.session
        with torch.inference_mode(), torch.cuda.stream(self.side):
            if ready:
                session.read(state.output, state.noise, state.length)  # drafted, and not yet read
            session.extend(draft, state.noise, state.length)

    def join_drafting(self, state: SpecState, *carry: Any) -> tuple[Any, ...]:
        """Waits for the drafter."""
        assert self.drafting is not None, "drafting starts before it is joined"
        self.drafting.result()
        self.drafting = None
        if self.side is not None:
            torch.cuda.current_stream(self.side.device).wait_stream(self.side)
        return carry

    def verify_and_commit(
        self, state: SpecState, draft: Draft, hidden: Tensor, logits: Tensor
    ) -> tuple[Step]:
        """Judges all g drafts by the distributions behind root and g - 1 of them, [B, g, V]."""
        assert isinstance(draft, LookaheadDraft) and draft.whole is not None
        return super().verify_and_commit(state, draft.whole, hidden, F.pad(logits, (0, 0, 0, 1)))
