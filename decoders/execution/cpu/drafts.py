"""Drafting through the CPU kernel: calls in the place of an EAGLE session's methods and of a tree's
growth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import Draft
from decoders.capability import computed
from decoders.execution.cpu.advancing import NativeAdvance
from decoders.execution.cpu.drafting import NativeDrafter, Net, State
from decoders.execution.cpu.growing import Flat, NativeDynamic, NativeStatic


def replace_draft(session: Any, execution: Any) -> bool:
    """Gives a proposer's session of one image the kernel's calls. Returns whether they do all of
    its work."""
    whole = computed(session, "grown")
    inner = session.session if whole else session
    drafter = drafter_of(inner, execution)
    if drafter is None:
        return False
    advance = NativeAdvance(drafter, inner.prefix[:, 0], inner.start, inner.max_new)

    def advanced(hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        inner.calls += 1
        return advance(hidden, codes, count, start)

    def expanded(codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        inner.calls += 1
        return drafter.expand(codes, nodes, parents, depth)

    inner.advance, inner.expand = advanced, expanded
    grow = grower(session.tree, drafter, session.sampling) if whole else None
    if grow is None:
        return False

    slow, apart = session.grow, computed(session.tree, "static tree") and session.tree.wide

    def grown(logits: Tensor, noise: Any, place: Tensor) -> Draft:
        if noise.renewed and apart:  # the kernel draws a level's nodes with the same numbers
            drafted: Draft = slow(logits, noise, place)
            return drafted
        inner.calls += session.tree.depth - 1
        return grow(logits, noise, place)

    session.grow = grown
    return True


def drafter_of(session: Any, execution: Any) -> NativeDrafter | None:
    """An EAGLE session's calls, where its net and the target's head run in the kernel."""
    if not computed(session, "eagle session"):
        return None
    net, target = session.net, session.target
    own, theirs = execution.native(net), execution.native(target)
    if own is None or theirs is None or target.barred is not None:
        return None
    if not computed(net, "eagle net") or not computed(target, "guided_logits"):
        return None  # the kernel's calls have no norm before the layer, and the target's own head
    embedding = net.embed_tokens.weight.detach().contiguous()
    weights = Net(own.layers, own.project, theirs.project, embedding, net.code_tokens)
    state = State(
        session.features, session.seen, session.root_slot, session.root_code, session.cache
    )
    return NativeDrafter(weights, state, session.cfg)


def grower(tree: Any, drafter: NativeDrafter, sampling: Any) -> Any:
    """What grows a tree in one call; None for a tree that the kernel does not know."""
    if computed(tree, "static tree"):
        shape = tree.shape_on(torch.device("cpu"))
        return NativeStatic(drafter, sampling, flat(shape), shape.draft)
    if computed(tree, "dynamic tree"):
        return NativeDynamic(drafter, sampling, tree.depth, tree.top_k, tree.nodes)
    return None


def flat(shape: Any) -> Flat:
    """A `decoders.propose.trees.static.Shape` as the kernel takes it."""
    sizes = torch.tensor([0] + [len(level.parents) for level in shape.levels])
    parents = torch.cat([level.parents for level in shape.levels])
    return Flat(parents, sizes.cumsum(0), shape.parent[0], shape.children[0])
