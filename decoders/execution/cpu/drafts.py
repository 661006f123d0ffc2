"""Drafting as calls of the CPU kernel: a whole tree of an EAGLE drafter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import Draft
from decoders.capability import Capability, knows
from decoders.execution.cpu.advancing import NativeAdvance
from decoders.execution.cpu.drafting import NativeDrafter, Net, State
from decoders.execution.cpu.growing import Flat, NativeDynamic, NativeStatic


class NativeDraft:
    """A proposer's draft on B images: the drafter reads what was committed, and a tree grows."""

    def __init__(self, session: Any, drafter: NativeDrafter, grower: Any) -> None:
        """session: a `decoders.propose.grown.GrownSession`; grower: of its tree."""
        inner = session.session
        self.session, self.inner, self.grower = session, inner, grower
        self.advancing = NativeAdvance(drafter, inner.prefix[:, 0], inner.start, inner.max_new)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """See `decoders.propose.drafters.session.DraftSession.advance`."""
        self.inner.calls += 1
        return self.advancing(hidden, codes, count, start)

    def grow(self, logits: Tensor, noise: Any, place: Tensor) -> Draft:
        """See `decoders.propose.grown.GrownSession.grow`."""
        self.inner.calls += self.session.tree.depth - 1
        draft: Draft = self.grower(logits, noise, place)
        return draft

    def __call__(self, run: Any) -> tuple[Draft, None]:
        """The piece, without a mask: the kernel's forward makes its own."""
        seen = run.seen
        logits = self.advance(seen.hidden, seen.codes, seen.count, seen.start)
        draft = self.grow(logits, run.noise, run.length)
        self.session.check(logits, draft.q)
        return draft, None


def native_draft(session: Any, execution: Any, renews: bool = False) -> NativeDraft | None:
    """None where the kernel does not do all of the work. renews: numbers change from step to step;
    a tree then draws node by node, the kernel level by level."""
    if not knows(session, Capability.GROWN):
        return None
    tree, drafter = session.tree, drafter_of(session.session, execution)
    apart = renews and knows(tree, Capability.STATIC_TREE) and tree.wide
    grow = None if drafter is None or apart else grower(tree, drafter, session.sampling)
    return None if drafter is None or grow is None else NativeDraft(session, drafter, grow)


def drafter_of(session: Any, execution: Any) -> NativeDrafter | None:
    """An EAGLE session's calls, where its net and the target's head run in the kernel."""
    if not knows(session, Capability.EAGLE_SESSION):
        return None
    net, target = session.net, session.target
    own, theirs = execution.native(net), execution.native(target)
    if own is None or theirs is None or target.barred is not None:
        return None
    if not knows(net, Capability.EAGLE_NET) or not knows(target, Capability.HEAD):
        return None  # the kernel's calls have no norm before the layer, and the target's own head
    embedding = net.embed_tokens.weight.detach().contiguous()
    weights = Net(own.layers, own.project, theirs.project, embedding, net.code_tokens)
    state = State(
        session.features, session.seen, session.root_slot, session.root_code, session.cache
    )
    return NativeDrafter(weights, state, session.cfg)


def grower(tree: Any, drafter: NativeDrafter, sampling: Any) -> Any:
    """What grows a tree in one call; None for a tree that the kernel does not know."""
    if knows(tree, Capability.STATIC_TREE):
        shape = tree.shape_on(torch.device("cpu"))
        return NativeStatic(drafter, sampling, flat(shape), shape.draft)
    if knows(tree, Capability.DYNAMIC_TREE):
        return NativeDynamic(drafter, sampling, tree.depth, tree.top_k, tree.nodes)
    return None


def flat(shape: Any) -> Flat:
    """A `decoders.propose.trees.static.Shape` as the kernel takes it."""
    sizes = torch.tensor([0] + [len(level.parents) for level in shape.levels])
    parents = torch.cat([level.parents for level in shape.levels])
    return Flat(parents, sizes.cumsum(0), shape.parent[0], shape.children[0])
