"""VVS, verification skipping (2511.13587, decoders.md (s)): some steps have no forward. Uniform:
every `interval`-th one; dynamic: those whose draft has paths that look alike.

What a skipped step commits is drafted by `decoders.loops.skipping.proposer` and fed in the next
forward. No rule tests it. Its distance from the target, TV(p, q), is known once that forward shows
p, and is recorded as moved mass and as bound. All other codes are judged by the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Law,
    Piece,
    Settled,
    Start,
    Verifier,
    completed,
)
from decoders.kinds import Within
from decoders.loops.skipping.proposer import Alike, SkippedDraft, Skipping, unskipped
from decoders.loops.speculative import Speculative
from decoders.loops.speculative_run import Run
from decoders.propose.grown import Grown
from decoders.verify.children import at_node


class Untested(Verifier):
    """A verifier that lets a draft's chain stand and has the tree under it judged by another."""

    def __init__(self, inner: Verifier, depth: int) -> None:
        self.inner, self.depth = inner, depth  # depth: most drafts that a step commits
        self.rule = inner.rule

    def __str__(self) -> str:
        return str(self.inner)

    def begin(self, start: Start) -> Any:
        return self.inner.begin(start)

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        assert isinstance(draft, SkippedDraft)
        assert draft.tree is not None and draft.taken is not None
        taken, tree = draft.taken[:, None], draft.tree  # [B, 1]
        size = draft.codes.shape[1] - tree.codes.shape[1]  # S
        every = torch.arange(1, tree.codes.shape[1], device=place.device) + size
        index = torch.cat([taken, every.expand(len(place), -1)], 1)  # [B, N + 1]
        wide = index[..., None].expand(-1, -1, law.p.shape[-1])
        own = Law(law.logits.gather(1, wide), law.p.gather(1, wide), law.greedy)
        made = self.inner.decide(own, tree, noise, place + taken[:, 0], state)

        span = torch.arange(self.depth + 1, device=place.device)
        chain = span < taken  # [B, D' + 1]
        behind = (span - taken).clamp(0, tree.levels)  # depth in the tree
        nodes = index.gather(1, made.nodes.gather(1, behind))
        away = self.away(law, draft, size)  # [B, D' + 1]
        relaxed = F.pad(made.relaxed, (0, 1)).gather(1, behind)
        return Settled(
            torch.where(span <= taken, span, nodes),
            taken[:, 0] + made.count,
            made.last_code,
            made.bonus,
            torch.where(chain, away, made.moved.gather(1, behind)),
            torch.where(chain, away, made.bound.gather(1, behind)),
            (chain | relaxed)[:, :-1],
        )

    def away(self, law: Law, draft: SkippedDraft, size: int) -> Tensor:
        """TV(p, q) of the chain's codes, [B, D' + 1], 0 past them."""
        if draft.laws is None:
            return law.p.new_zeros(len(law.p), self.depth + 1)
        found = 0.5 * (law.p[:, :size] - draft.laws).abs().sum(-1)  # [B, S]
        return F.pad(found, (0, self.depth + 1 - size))


@dataclass(eq=False, repr=False)
class Vvs(Speculative):
    """interval: every so many steps one is skipped, uniformly; 0: none, which is the rule's own
    loop. alike, decay: of the dynamic mode, see `decoders.loops.skipping.proposer`; there a forward
    follows every skipped step, and the interval is not read. released: as the authors' code skips.
    Steps are of two shapes, of which `choose` takes one and counts: an execution may not run a step
    to try it."""

    plain = frozenset({"choose"})
    exercised: ClassVar = {"alike": -1.0}  # random latents do not look alike

    interval: Annotated[int, Within(0, 10**6)] = 4
    mode: Literal["uniform", "dynamic"] = "uniform"
    alike: Annotated[float, Within(-1, 1)] = 0.65
    decay: Annotated[float, Within(0, 1, above=True)] = 0.9
    released: bool = False

    def __post_init__(self) -> None:
        model, proposer = self.model, self.proposer
        if self.interval == 1:
            raise DecoderError(
                "loop.interval is 1, which skips every step; expected 2 or more, or 0 for none"
            )
        if model.mode not in ("eager", "cpu"):
            raise DecoderError(
                f"VVS has steps of two kinds, which execution {model.mode!r} cannot repeat; use "
                "backend.mode=eager"
            )
        if isinstance(proposer, Grown) and self.verifier is not None:
            paths = None
            if self.mode == "dynamic":
                paths = Alike(model.codebook, self.alike, self.decay, self.released)
            self.proposer = Skipping(proposer, self.interval, paths, self.released)
            self.verifier = Untested(completed(self.verifier, Verifier), self.proposer.depth)
        elif proposer is not None:
            raise DecoderError("VVS takes paths of a draft tree: it needs drafter=... and tree=...")
        self.claims_law = self.mode == "uniform" and self.interval == 0
        super().__post_init__()

    def pieces(self) -> Sequence[Piece]:
        drafts: list[Piece] = [("draft", p) for p in (self.look, self.choose, self.drafted)]
        return [*drafts, ("forward", self.forward), ("accept", self.settle)]

    def look(self, run: Run) -> tuple[Draft, Tensor]:
        """A tree under the root, and which rows may skip a step on it, [B] bool."""
        session: Any = run.session
        tree = session.inner.propose(run.seen, run.noise, run.length)
        return tree, session.wanted(tree, run.seen, run.length)

    def choose(self, run: Run, tree: Draft, wanted: Tensor) -> tuple[Draft, Tensor | None]:
        """None for the rows where no step is skipped now."""
        session: Any = run.session
        return tree, wanted if session.skips(wanted) else None

    def drafted(self, run: Run, tree: Draft, wanted: Tensor | None) -> tuple[Draft, Tensor]:
        """What the forward runs on, and its mask."""
        session: Any = run.session
        if wanted is None:
            return self.masked(run, unskipped(tree))
        return self.masked(run, session.after(tree, wanted, run.seen, run.noise, run.length))

    def forward(self, run: Run, draft: Draft, mask: Tensor) -> tuple[Draft, Tensor, Tensor]:
        """As speculative decoding does; said here because no kernel is prepared for two widths."""
        return super().forward(run, draft, mask)

    def settle(self, run: Run, draft: Draft, hidden: Tensor, logits: Tensor) -> tuple[Any, ...]:
        active = run.length < self.model.target.length
        made = super().settle(run, draft, hidden, logits)
        nodes, p = made[3], made[5]
        session: Any = run.session
        session.last.copy_(at_node(p, nodes[:, -1]))
        if draft.laws is not None:  # type: ignore[attr-defined]
            run.drafter_calls.add_(active, alpha=self.draft_calls or 0)  # it drafted twice
        return made
