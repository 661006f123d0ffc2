"""A drafter that grows a tree: one proposer, whatever the drafter and the tree."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Drafter,
    DraftSession,
    NumericalError,
    Prefill,
    Proposer,
    ProposerSession,
    StepOutput,
    Tree,
    completed,
)
from decoders.checks import AnswerError, class_path, require_logits, require_root
from decoders.noise import MAX_CHILDREN, OVERRUN


class TreeSession(ProposerSession):
    """A drafter's session, and the tree that grows in it."""

    def __init__(self, part: Any, prefill: Prefill, nodes: int = 0) -> None:
        """part: a `TreeProposer`, or a proposer that has drafter and tree. nodes: how many session
        indices are in use; 0: the tree's."""
        model, tree = prefill.model, part.tree
        self.part, self.sampling = part, prefill.sampling
        self.tree: Tree = tree
        tree.prepare(prefill.first.device)
        self.vocab = model.target.vocab_size
        self.bad = torch.zeros((), dtype=torch.bool, device=prefill.first.device)
        session = part.drafter.begin(prefill, part.depth + 1, nodes or tree.session_nodes)
        self.session: DraftSession = completed(session, DraftSession)

    def propose(self, output: StepOutput, noise: Any, position: Tensor) -> Draft:
        """The session reads what was committed, and a tree grows under the root."""
        try:
            logits = self.advance(output)
            draft = self.grow(logits, noise, position)
            self.check(logits, draft.q)
            return draft
        except AnswerError as error:
            raise DecoderError(f"the drafter {class_path(self.part.drafter)}: {error}") from error

    def require_finite(self) -> None:
        """Raises NumericalError where the drafter's distributions were NaN or infinite."""
        if bool(self.bad):
            name = class_path(self.part.drafter)
            raise NumericalError(
                f"the drafter {name}: expected finite logits, found NaN or infinity"
            )

    def check(self, logits: Tensor, q: Tensor | None) -> None:
        """Remembers whether the drafter's distributions q [B, N + 1, V] were finite, or where it
        has none the logits of the root [B, V], which may rule codes out with minus infinity."""
        total = (logits.amax(-1) if q is None else q).sum()
        self.bad |= (total - total) != 0

    def advance(self, output: StepOutput) -> Tensor:
        """Logits after the root, [B, V]. They are checked in every step, as a drafter may be right
        for one image and wrong for a batch; no values are read."""
        logits = self.session.advance(output.hidden, output.codes, output.count, output.position)
        require_root(self.session, output.count)
        return require_logits(self.session, logits, len(output.count), self.vocab)

    def grow(self, logits: Tensor, noise: Any, position: Tensor) -> Draft:
        return self.tree.grow(self.session, logits, self.sampling, noise, position)


class TreeProposer(Proposer):
    """drafter x tree."""

    drafter: Drafter
    tree: Tree
    session: type[TreeSession] = TreeSession

    def __init__(self, drafter: Drafter | None, tree: Tree | None) -> None:
        if drafter is None or tree is None:
            missing, there = ("drafter", "tree") if drafter is None else ("tree", "drafter")
            raise DecoderError(
                f"a drafter and a tree go together; missing: {missing}. Set {missing}=NAME, or "
                f"{there}=none for a decoder that drafts without them"
            )
        if tree.branching > MAX_CHILDREN or tree.depth >= OVERRUN:
            raise DecoderError(
                f"tree with {tree.branching} children a node and {tree.depth} levels: "
                f"at most {MAX_CHILDREN} and {OVERRUN - 1} are supported"
            )
        self.drafter, self.tree = completed(drafter, Drafter), completed(tree, Tree)
        self.nodes, self.depth, self.branching = tree.nodes, tree.depth, tree.branching
        self.forwards, self.draws = self.drafter.forwards(tree.depth), self.tree.draws

    def begin(self, prefill: Prefill) -> TreeSession:
        return self.session(self, prefill)

    def varied(self, session: type[TreeSession], **sizes: int) -> TreeProposer:
        """A copy whose sessions are of another class, and draft otherwise than the tree says:
        sizes, its new `nodes`, `depth` or `forwards`."""
        other = copy(self)
        vars(other).update(sizes, session=session)
        return other
