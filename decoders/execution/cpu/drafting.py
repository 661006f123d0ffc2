"""A drafter's part of a step as two calls of the CPU kernel: it reads what was committed, and a
whole tree grows under the root.

They compute what `decoders.propose.drafters.eagle.EagleSession.advance` does in some twenty
operators, and level by level `decoders.propose.trees.static` and `decoders.propose.trees.dynamic`.
Every call reads and writes the session's features and masks in place, and fills the same draft
anew: nothing is allocated in a step.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling
from decoders.capability import Capability, knows
from decoders.execution.cpu.layers import Native, NativeLinear, check
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.structures import (
    Advance,
    Expand,
    Filter,
    Grow,
    GrowDynamic,
    GrowStatic,
    require,
)
from decoders.noise import DRAFT_SLOT, SLOTS, Noise


class NativeDrafter:
    """One session of an EAGLE drafter, whose tensors are read and changed in place: features [R, n,
    D], seen [R, n, S] bool, root_slot [R, 1] and root_code [B] int64. own: the packed weights of
    its net, head: the target's. Raises DecoderError where a code has no row in the embedding."""

    def __init__(self, session: Any, own: Native, head: NativeLinear) -> None:
        self.state, self.layers, self.fc, self.head = session, own.layers, own.project, head
        self.embedding = session.net.embed_tokens.weight.detach().contiguous()
        self.tokens = session.net.code_tokens  # [V], the codes' rows of it, or None
        self.rows, self.batch = session.cache.rows, len(session.root_code)
        self.width, self.vocab = own.layers.width, head.outputs
        self.dtype, self.half = own.layers.dtype, own.layers.half
        check(session.features, self.width, self.dtype)
        check(self.embedding, self.width, self.dtype)
        tokens = torch.tensor([0, self.vocab - 1]) if self.tokens is None else self.tokens
        if int(tokens.min()) < 0 or int(tokens.max()) >= len(self.embedding):
            raise DecoderError(
                f"the drafter's codes are rows {int(tokens.min())}..{int(tokens.max())} of an "
                f"embedding of {len(self.embedding)}; is it this target's drafter?"
            )

    def structure(self, width: int) -> Expand:
        """A call at up to `width` nodes of every image."""
        state, rows = self.state, self.rows
        x = state.features.new_empty(2, rows, width, self.width)  # input, output
        places = state.root_slot.new_empty(2, rows, width)
        mask = state.seen.new_empty(rows, width, state.cache.capacity)
        return self.of(
            x[0], places[0], places[1], mask, x[1],
            mixed=state.features.new_empty(rows, width, 2 * self.width),
            raw=torch.empty(rows, width, self.vocab),
            logits=torch.empty(self.batch, width, self.vocab),
        )  # fmt: skip

    def of(
        self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, out: Tensor, **memory: Tensor
    ) -> Expand:
        """A call of these tensors of the layer; memory: mixed, raw and logits."""
        state, fc = self.state, self.fc
        return Expand(
            layer=self.layers.forward(x, places, slots, mask, state.cache.data, out),
            batch=self.batch, nodes=state.features.shape[1],
            embedding=self.embedding, embedded=len(self.embedding), tokens=self.tokens,
            fc=fc.weight, fc_bias=fc.bias, head=self.head.weight, vocab=self.vocab,
            cfg=state.cfg, features=state.features, seen=state.seen, root_slot=state.root_slot,
            **memory,
        )  # fmt: skip


class NativeDraft:
    """A proposer's draft on B images."""

    def __init__(self, session: Any, drafter: NativeDrafter, grower: _Tree) -> None:
        """session: a `decoders.propose.grown.GrownSession`; grower: of its tree."""
        self.session, self.inner = session, session.session
        self.grower, self.drafter = grower, drafter
        self.prefix = self.inner.prefix[:, 0].contiguous()  # [R, S] bool, its valid places
        self.logits = torch.empty(drafter.batch, drafter.vocab)
        self._call = self._structure(self.inner.max_new)
        self._given: tuple[Tensor, ...] = (self.prefix,) * 4  # what the call was prepared for
        self._function = library().lantern_advance

    def _structure(self, told: int) -> Advance:
        """A call at `told` codes an image."""
        own, state = self.drafter, self.inner
        rows, size = own.rows, own.width
        inputs = state.features.new_empty(rows * told, size)
        # The root's row of the mask is made where the session keeps it.
        slots, mask = state.root_slot, state.seen[:, :1]
        drafter = own.of(
            inputs[:rows, None], slots, slots, mask, state.features.new_empty(rows, 1, size),
            mixed=state.features.new_empty(rows * told, 2 * size),
            raw=torch.empty(rows, own.vocab), logits=self.logits,
        )  # fmt: skip
        return Advance(
            drafter=drafter, prefix=self.prefix, first=state.start, told=told,
            root_code=state.root_code, order=state.root_slot.new_empty(rows * told),
            inputs=inputs, pairs=torch.empty(rows * told, 2 * size),
        )  # fmt: skip

    def _read(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> None:
        own, told = self.drafter, codes.shape[1]
        hidden = require("hidden states", hidden, (own.rows, told, own.width), own.dtype)
        if told != self._call.told:
            self._call = self._structure(told)
        batch, whole = own.batch, torch.int64
        codes = require("codes", codes, (batch, told), whole)
        count = require("counts", count, (batch,), whole)
        start = require("places", start, (batch,), whole)
        self._given = hidden, codes, count, start
        self._call.set(hidden=hidden, codes=codes, count=count, start=start)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """hidden [R, T, D], codes [B, T], count, start [B] -> guided logits [B, V] float32, which
        the next call overwrites; see `decoders.api.DraftSession.advance`."""
        self.inner.calls += 1
        given = (hidden, codes, count, start)
        if not all(map(is_, given, self._given)):  # a loop may change the same ones in every step
            self._read(*given)
        run("advance", self._function, self._call, self.drafter.half)
        return self.logits

    def grow(self, logits: Tensor, noise: Noise, place: Tensor) -> Draft:
        """See `decoders.propose.grown.GrownSession.grow`."""
        self.inner.calls += self.session.tree.depth - 1
        return self.grower(logits, noise, place)

    def __call__(self, run: Any) -> tuple[Draft, None]:
        """The piece, without a mask: the kernel's forward makes its own."""
        seen = run.seen
        logits = self.advance(seen.hidden, seen.codes, seen.count, seen.start)
        draft = self.grow(logits, run.noise, run.length)
        self.session.check(logits, draft.q)
        return draft, None


class _Tree:
    """Grows one tree of one session. widest: most nodes that are drafted on from at once."""

    call: GrowStatic | GrowDynamic
    draft: Draft

    def __init__(
        self,
        drafter: NativeDrafter,
        sampling: Sampling,
        nodes: int,
        children: int,
        levels: int,
        widest: int,
        function: str,
    ) -> None:
        call = drafter.structure(widest)
        size, batch = nodes + 1, drafter.batch
        self.drafter, self._function = drafter, getattr(library(), function)
        self.codes = torch.zeros(batch, size, dtype=torch.long)
        self.children = torch.zeros(batch, size, children, dtype=torch.long)
        self.given: tuple[Tensor, ...] = (self.codes,) * 3  # what the call was prepared for
        self.base = Grow(
            drafter=call, root_code=drafter.state.root_code, filter=Filter.of(sampling),
            size=size, children=children, levels=levels,
            left=torch.empty(call.layer.threads, drafter.vocab),
            codes=self.codes, child=self.children,
        )  # fmt: skip

    def __call__(self, root_logits: Tensor, noise: Noise, position: Tensor) -> Draft:
        """root_logits [B, V] float32; position [B] int64 -> a draft that the next call
        overwrites."""
        given = (root_logits, noise.uniform, position)
        if not all(map(is_, given, self.given)):
            self.read(*given)
        run("grow", self._function, self.call, self.drafter.half)
        return self.draft

    def read(self, root_logits: Tensor, uniform: Tensor, position: Tensor) -> None:
        """Prepares the call for these tensors."""
        wanted = (self.drafter.batch, self.drafter.vocab)
        root_logits = require("logits", root_logits, wanted, torch.float32)
        self.given = root_logits, uniform, position
        self.call.base.root_logits = root_logits.data_ptr()


class NativeStatic(_Tree):
    """Trees of one shape, a `decoders.propose.trees.static.Shape`; see its `Static.grow`."""

    def __init__(self, drafter: NativeDrafter, sampling: Sampling, tree: Any) -> None:
        shape = tree.shape_on(torch.device("cpu"))
        size, children = shape.children.shape[1:]
        sizes = torch.tensor([len(level.parents) for level in shape.levels])
        levels = (len(sizes), int(sizes.max()))
        super().__init__(
            drafter, sampling, size - 1, children, *levels, function="lantern_grow_static"
        )
        self.children.copy_(shape.children)  # what greedy trees and chains keep
        # A leaf's rows are read by no one and stay zeros; the others are written in every call.
        q = None if sampling.greedy else torch.zeros(drafter.batch, size, drafter.vocab)
        self.draft = shape.draft(self.codes, self.children, q)
        if children == 1:
            self.base.set(child=None)  # no child is dropped
        self.call: GrowStatic = GrowStatic(
            base=self.base, parents=shape.inner, parent=shape.parent, shape=shape.children, q=q,
            first=torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]),
        )  # fmt: skip

    def read(self, root_logits: Tensor, uniform: Tensor, position: Tensor) -> None:
        """uniform [B, L + OVERRUN, SLOTS] float32."""
        batch, (places, slots) = self.drafter.batch, uniform.shape[1:]
        uniform = require("noise", uniform, (batch, places, max(slots, SLOTS)), torch.float32)
        position = require("places", position, (batch,), torch.int64)
        super().read(root_logits, uniform, position)
        self.call.set(
            uniform=uniform[:, :, DRAFT_SLOT:], places=places, row=slots, position=position
        )


class NativeDynamic(_Tree):
    """Trees of `nodes` nodes, which no noise moves; see `decoders.propose.trees.dynamic`."""

    def __init__(self, drafter: NativeDrafter, sampling: Sampling, tree: Any) -> None:
        depth, top_k, nodes = tree.depth, tree.top_k, tree.nodes
        super().__init__(
            drafter, sampling, nodes, top_k, depth, top_k, function="lantern_grow_dynamic"
        )
        batch, size, total = drafter.batch, nodes + 1, top_k + (depth - 1) * top_k**2
        code, above = torch.empty(2, batch, total, dtype=torch.long)
        front, session = torch.empty(2, batch, top_k, dtype=torch.long)
        parents, level = torch.zeros(2, batch, size, dtype=torch.long)
        ancestry = torch.zeros(batch, size, size, dtype=torch.bool)
        expected = torch.ones(batch)
        draft = (self.codes, parents, level, self.children, None, ancestry, depth)
        self.draft = Draft(*draft, by_leaf=True, expected=expected)
        self.call: GrowDynamic = GrowDynamic(
            base=self.base, candidates=total, code=code, above=above,
            score=torch.empty(batch, total), front=front, session=session,
            best=torch.empty(batch, top_k), order=torch.empty(batch, 2, total, dtype=torch.long),
            parents=parents, depth=level, ancestry=ancestry, expected=expected,
        )  # fmt: skip


def native_draft(session: Any, execution: Any, renews: bool = False) -> NativeDraft | None:
    """None where the kernel does not do all of the work. renews: numbers change from step to step;
    a tree then draws node by node, the kernel level by level."""
    if not knows(session, Capability.GROWN):
        return None
    tree, own = session.tree, session.session
    kinds = {Capability.STATIC_TREE: NativeStatic, Capability.DYNAMIC_TREE: NativeDynamic}
    grower = next((kind for known, kind in kinds.items() if knows(tree, known)), None)
    if grower is None or not knows(own, Capability.EAGLE_SESSION):
        return None
    if grower is NativeStatic and renews and tree.wide:
        return None
    net, target = own.net, own.target
    mine, theirs = execution.native(net), execution.native(target)
    if mine is None or theirs is None or target.barred is not None:
        return None
    if not knows(net, Capability.EAGLE_NET) or not knows(target, Capability.HEAD):
        return None  # the kernel's calls have no norm before the layer, and the target's own head
    drafter = NativeDrafter(own, mine, theirs.project)
    return NativeDraft(session, drafter, grower(drafter, session.sampling, tree))
