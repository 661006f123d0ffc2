"""A whole draft tree under the root in one call of the CPU kernel: what
`decoders.propose.trees.static` and `decoders.propose.trees.dynamic` do level by level.

An object serves one session and one tree, and returns one draft, whose tensors every call fills
anew: nothing is allocated in a step.
"""

from __future__ import annotations

import ctypes
from operator import is_
from typing import Any

import torch
from torch import Tensor

from decoders.api import Draft, Sampling
from decoders.capability import Capability, knows
from decoders.execution.cpu.drafting import NativeDraft, NativeDrafter, drafter_of
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.structures import Filter, Grow, GrowDynamic, GrowStatic, require
from decoders.noise import DRAFT_SLOT, SLOTS, Noise


class _Tree:
    """What both kinds share. widest: most nodes that are drafted on from at once."""

    def __init__(
        self,
        drafter: NativeDrafter,
        sampling: Sampling,
        nodes: int,
        children: int,
        levels: int,
        widest: int,
    ) -> None:
        call = drafter.structure(widest)
        size, batch = nodes + 1, drafter.batch
        self.drafter = drafter
        self.codes = torch.zeros(batch, size, dtype=torch.long)
        self.children = torch.zeros(batch, size, children, dtype=torch.long)
        self.given: tuple[Tensor, ...] = (self.codes,) * 3  # what the call was prepared for
        self.base = Grow(
            drafter=call, root_code=drafter.state.root_code, filter=Filter.of(sampling),
            size=size, children=children, levels=levels,
            left=torch.empty(call.layer.threads, drafter.vocab),
            codes=self.codes, child=self.children,
        )  # fmt: skip

    def check(self, root_logits: Tensor) -> Tensor:
        """Contiguous; DecoderError where it is not [B, V] float32."""
        wanted = (self.drafter.batch, self.drafter.vocab)
        return require("logits", root_logits, wanted, torch.float32)


class NativeStatic(_Tree):
    """Trees of one shape, a `decoders.propose.trees.static.Shape`; see its `Static.grow`."""

    def __init__(self, drafter: NativeDrafter, sampling: Sampling, shape: Any) -> None:
        size, children = shape.children.shape[1:]
        sizes = torch.tensor([len(level.parents) for level in shape.levels])
        super().__init__(drafter, sampling, size - 1, children, len(sizes), int(sizes.max()))
        self.children.copy_(shape.children)  # what greedy trees and chains keep
        # A leaf's rows are read by no one and stay zeros; the others are written in every call.
        q = None if sampling.greedy else torch.zeros(drafter.batch, size, drafter.vocab)
        self.draft: Draft = shape.draft(self.codes, self.children, q)
        if children == 1:
            self.base.set(child=None)  # no child is dropped
        self.call = GrowStatic(
            base=self.base, parents=shape.inner, parent=shape.parent, shape=shape.children, q=q,
            first=torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]),
        )  # fmt: skip
        self._function = library().lantern_grow_static

    def __call__(self, root_logits: Tensor, noise: Noise, position: Tensor) -> Draft:
        """root_logits [B, V] float32; position [B] int64 -> a draft that the next call
        overwrites."""
        given = (root_logits, noise.uniform, position)
        if not all(map(is_, given, self.given)):
            self._read(*given)
        run("grow", self._function, ctypes.byref(self.call), self.drafter.half)
        return self.draft

    def _read(self, root_logits: Tensor, uniform: Tensor, position: Tensor) -> None:
        """uniform [B, L + OVERRUN, SLOTS] float32."""
        batch, (places, slots) = self.drafter.batch, uniform.shape[1:]
        uniform = require("noise", uniform, (batch, places, max(slots, SLOTS)), torch.float32)
        position = require("places", position, (batch,), torch.int64)
        self.given = self.check(root_logits), uniform, position
        self.call.base.root_logits = self.given[0].data_ptr()
        self.call.set(
            uniform=uniform[:, :, DRAFT_SLOT:], places=places, row=slots, position=position
        )


class NativeDynamic(_Tree):
    """Trees of `nodes` nodes, see `decoders.propose.trees.dynamic.Dynamic.grow`."""

    def __init__(
        self, drafter: NativeDrafter, sampling: Sampling, depth: int, top_k: int, nodes: int
    ) -> None:
        super().__init__(drafter, sampling, nodes, top_k, depth, top_k)
        batch, size, total = drafter.batch, nodes + 1, top_k + (depth - 1) * top_k**2
        code, above = torch.empty(2, batch, total, dtype=torch.long)
        front, session = torch.empty(2, batch, top_k, dtype=torch.long)
        parents, level = torch.zeros(2, batch, size, dtype=torch.long)
        ancestry = torch.zeros(batch, size, size, dtype=torch.bool)
        expected = torch.ones(batch)
        draft = (self.codes, parents, level, self.children, None, ancestry, depth)
        self.draft = Draft(*draft, by_leaf=True, expected=expected)
        self.call = GrowDynamic(
            base=self.base, candidates=total, code=code, above=above,
            score=torch.empty(batch, total), front=front, session=session,
            best=torch.empty(batch, top_k), order=torch.empty(batch, 2, total, dtype=torch.long),
            parents=parents, depth=level, ancestry=ancestry, expected=expected,
        )  # fmt: skip
        self._function = library().lantern_grow_dynamic

    def __call__(self, root_logits: Tensor, noise: Noise, position: Tensor) -> Draft:
        """root_logits [B, V] float32 -> a draft that the next call overwrites."""
        del noise, position  # deterministic given the prefix
        if root_logits is not self.given[0]:
            self.given = (self.check(root_logits),)
            self.call.base.root_logits = self.given[0].data_ptr()
        run("grow", self._function, ctypes.byref(self.call), self.drafter.half)
        return self.draft


def native_draft(session: Any, execution: Any, renews: bool = False) -> NativeDraft | None:
    """None where the kernel does not do all of the work. renews: numbers change from step to step;
    a tree then draws node by node, the kernel level by level."""
    if not knows(session, Capability.GROWN):
        return None
    tree, drafter = session.tree, drafter_of(session.session, execution)
    apart = renews and knows(tree, Capability.STATIC_TREE) and tree.wide
    grow = None if drafter is None or apart else grower(tree, drafter, session.sampling)
    return None if drafter is None or grow is None else NativeDraft(session, drafter, grow)


def grower(tree: Any, drafter: NativeDrafter, sampling: Any) -> Any:
    """What grows a tree in one call; None for a tree that the kernel does not know."""
    if knows(tree, Capability.STATIC_TREE):
        return NativeStatic(drafter, sampling, tree.shape_on(torch.device("cpu")))
    if knows(tree, Capability.DYNAMIC_TREE):
        return NativeDynamic(drafter, sampling, tree.depth, tree.top_k, tree.nodes)
    return None
