"""VVS, verification skipping (2511.13587, decoders.md (s)): of `interval` steps one has no forward.

Such a step commits the path to one of the draft tree's leaves, drawn uniformly, without a test. The
path is cut to the mean codes per forward so far, less one; a root from the target's last
distribution follows. The drafter drafts on from there with its last feature. The next forward reads
the skipped codes too, so a skipped step and the verified one after it are one draft here: a chain
of S codes with a tree below it. The rule judges the tree alone; of a code of the chain TV(p, q) is
recorded, as TV shift and as bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Acceptance, DecoderError, Draft, Piece, Prefill, StepOutput, TargetProbs
from decoders.cache import ancestry_of
from decoders.distribution import take
from decoders.kinds import Within
from decoders.loops.speculative import SpecState, Speculative
from decoders.loops.trace import Step
from decoders.noise import PLUGIN_SLOT, sample
from decoders.propose.tree_proposer import TreeProposer, TreeSession
from decoders.verify.token_verifier import TokenVerifier, at_node, children_of, path_to


@dataclass
class SkippedDraft(Draft):
    """A chain of S nodes under the root, and a tree under one of the root and the first nodes of
    the chain, all of which are committed untested."""

    untested: Any = None  # [B, N + 1] bool, nodes whose first child is committed untested
    probs: Any = None  # [B, S, V], where the chain's codes were drawn from


class SkippingSession(TreeSession):
    def __init__(self, part: Any, prefill: Prefill) -> None:
        super().__init__(part, prefill)
        self.turn, self.row = -1, prefill.model.target.grid()[1]  # the first row is never skipped
        self.last = torch.zeros_like(prefill.probs)  # [B, V], the target's last, from the loop

    def propose_step(self, output: StepOutput, noise: Any, position: Tensor, skips: bool) -> Draft:
        """Proposes a draft; skips: of a skipped step and the verified one after it. Raises
        DecoderError for trees that are drawn."""
        tree: Any = self.propose(output, noise, position)
        if self.part.draws:
            raise DecoderError("VVS needs a tree that is not drawn; set tree=dynamic or tree=opt")
        if not skips:
            return replace(tree, levels=self.part.depth)
        root, (codes, taken, probs) = tree.codes[:, :1].clone(), self.skip(tree, noise, position)
        copies, end = len(output.hidden) // len(position), taken[:, None]  # [B, 1]
        old = take(output.hidden, (output.count - 1).repeat(copies)[:, None])  # [R, 1, D]
        wide = F.pad(codes, (0, output.codes.shape[1] - codes.shape[1]))  # [B, T]
        changed: dict[str, Any] = {
            "hidden": torch.where(end.repeat(copies, 1)[..., None] > 0, old, output.hidden),
            "codes": torch.where(end > 0, wide, output.codes),
            "count": torch.where(taken > 0, taken, output.count),
            "position": torch.where(taken > 0, position, output.position),
        }
        skipped = replace(output, **changed)
        tree, size = self.propose(skipped, noise, position + taken), codes.shape[1]
        level = torch.arange(size + 1, device=codes.device).expand(len(codes), -1)  # [B, S + 1]
        parents = torch.where(tree.parents > 0, tree.parents + size, end)[:, 1:]
        kids = torch.where(tree.children > 0, tree.children + size, 0)  # [B, N + 1, K]
        chain = F.pad(torch.where(level < end, level + 1, 0)[..., None], (0, kids.shape[-1] - 1))
        chain = torch.where((level == end)[..., None], kids[:, :1], chain)  # [B, S + 1, K]
        return SkippedDraft(
            torch.cat([root, codes, tree.codes[:, 1:]], 1),
            torch.cat([(level - 1).clamp_min(0), parents], 1),
            torch.cat([level, tree.depth[:, 1:] + end], 1),
            torch.cat([chain, kids[:, 1:]], 1),
            q=None,
            levels=size + tree.levels,
            by_leaf=tree.by_leaf,
            probs=probs,
            untested=F.pad(level < end, (0, kids.shape[1] - 1)),
        )

    def skip(self, tree: Draft, noise: Any, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A path at random and the root after it: codes [B, S], how many are committed [B], and the
        distributions [B, S, V] that they come from: of a code the shares of leaves below it and its
        siblings, of the root the target's last."""
        (code, valid), above = children_of(tree), ancestry_of(tree)  # [B, N + 1, K], [.., N + 1]
        u, leaf = noise.at(position, PLUGIN_SLOT, 2), ~valid.any(-1)  # [B, 2], [B, N + 1]
        rank = (u[:, :1] * leaf.sum(-1, keepdim=True)).long()
        path = path_to(tree, above, (leaf.cumsum(-1) <= rank).sum(-1), tree.levels)  # [B, D + 1]
        below = (leaf[..., None] & above).sum(1)  # [B, N + 1], leaves at or below
        share = below.gather(1, tree.children.flatten(1)).view_as(code) * valid / below[..., None]
        probs = share.new_zeros(*leaf.shape, self.vocab).scatter_add(2, code, share)
        probs = F.pad(take(probs, path[:, :-1]), (0, 0, 0, 1))  # [B, S, V]
        mean = (position - 1) // noise.round  # [B], whole codes per forward so far
        count = torch.minimum(tree.depth.gather(1, path[:, -1:])[:, 0], mean - 1)
        count = torch.where(position > self.row, count, 0).clamp_min(0)[:, None]  # [B, 1]
        root = self.last.argmax(-1) if self.sampling.greedy else sample(self.last, u[:, 1])
        codes = F.pad(tree.codes.gather(1, path[:, 1:]), (0, 1)).scatter(1, count, root[:, None])
        probs = probs.scatter(1, count[..., None].expand(-1, 1, self.vocab), self.last[:, None])
        return codes, torch.where(count > 0, count + 1, 0)[:, 0], probs


class SkipVerifier(TokenVerifier):
    """Judges the tree of a draft by the rule, and accepts its chain untested."""

    def verdicts(self, probs: TargetProbs, draft: Draft, *tests: Tensor) -> Acceptance:
        verdicts = super().verdicts(probs, draft, *tests)
        if isinstance(draft, SkippedDraft):
            size = draft.probs.shape[1]
            away = 0.5 * (probs.p[:, :size] - draft.probs).abs().sum(-1)  # [B, S], TV(p, q)
            values = {"accept": 1.0, "strict": 0.0, "tv_shift": away, "bound": away}
            for name, value in values.items():
                first = vars(verdicts)[name][:, :size, 0]  # of each node's first child
                first.copy_(torch.where(draft.untested[:, :size], value, first))
        return verdicts


@dataclass(eq=False, repr=False)
class Vvs(Speculative):
    """interval: of so many steps one is skipped. `choose` counts the steps and picks one of two
    shapes of a step, so no execution may run it for a trial."""

    uncompiled_pieces, capturable, claims_law = frozenset({"choose"}), False, False
    interval: Annotated[int, Within(2, 10**6)] = 4

    def __post_init__(self) -> None:
        proposer, verifier = self.proposer, self.verifier
        if not isinstance(proposer, TreeProposer) or not isinstance(verifier, TokenVerifier):
            raise DecoderError("VVS needs a rule on a draft tree: set drafter, tree, acceptance")
        self.verifier, chain = SkipVerifier(verifier.rule), proposer.depth + 1  # S
        sizes = {"nodes": proposer.nodes + chain, "depth": 2 * chain - 1}
        self.proposer = proposer.varied(SkippingSession, **sizes)
        super().__post_init__()

    def pieces(self) -> Sequence[Piece]:
        return [("draft", self.choose), *super().pieces()]

    def choose(self, state: SpecState) -> tuple[bool]:
        """Whether a step is skipped now; asked once per draft."""
        session: Any = state.session
        session.turn += 1
        return (session.turn > 0 and session.turn % (self.interval - 1) == 0,)

    def draft(self, state: SpecState, skips: bool = False) -> tuple[Draft, Tensor]:
        session: Any = state.session
        if skips:  # it drafts twice
            active = state.length < self.model.target.length
            state.trace.drafter_calls.add_(active, alpha=self.proposer.forwards)
        draft = session.propose_step(state.output, state.noise, state.length, skips)
        return draft, self.mask_of(state, draft)

    def verify_and_commit(
        self, state: SpecState, draft: Draft, hidden: Tensor, logits: Tensor
    ) -> tuple[Step]:
        (step,) = super().verify_and_commit(state, draft, hidden, logits)
        state.session.last.copy_(at_node(step.p, step.nodes[:, -1]))  # type: ignore[attr-defined]
        if isinstance(draft, SkippedDraft):  # nothing tested its chain
            draft = replace(draft, children=draft.children * ~draft.untested[..., None])
        return (replace(step, draft=draft),)
