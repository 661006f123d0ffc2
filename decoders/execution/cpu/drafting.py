"""An EAGLE drafter's session through the CPU kernel: every call reads and writes the session's
features and masks in place.

`NativeDrafter` is what all calls share: the weights and the session's memory. `NativeAdvance` gives
the drafter what was committed, as `decoders.propose.drafters.eagle.EagleSession.advance` does in
some twenty operators; `growing` holds the calls that draft on. `NativeDraft` is a whole draft.
"""

from __future__ import annotations

import ctypes
from operator import is_
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft
from decoders.capability import Capability, knows
from decoders.execution.cpu.layers import NativeLinear, check
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.packing import Native
from decoders.execution.cpu.structures import Advance, Expand, require


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
        self.dtype = own.layers.dtype
        self.half = ctypes.c_int(self.dtype == torch.bfloat16)
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


class NativeAdvance:
    """One session's calls. prefix [R, S] bool, the valid places of the prefix; first: the slot of
    an image's first code; told: T of most calls."""

    def __init__(self, drafter: NativeDrafter, prefix: Tensor, first: int, told: int) -> None:
        self.drafter, self.prefix, self.first = drafter, prefix.contiguous(), first
        self.logits = torch.empty(drafter.batch, drafter.vocab)
        self._call = self._structure(told)
        self._given: tuple[Tensor, ...] = (self.prefix,) * 4
        self._function = library().lantern_advance

    def _structure(self, told: int) -> Advance:
        """A call at `told` codes an image."""
        own, state = self.drafter, self.drafter.state
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
            drafter=drafter, prefix=self.prefix, first=self.first, told=told,
            root_code=state.root_code, order=state.root_slot.new_empty(rows * told),
            inputs=inputs, pairs=torch.empty(rows * told, 2 * size),
        )  # fmt: skip

    def __call__(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """hidden [R, T, D], codes [B, T], count, start [B] -> guided logits [B, V] float32, which
        the next call overwrites; see `decoders.api.DraftSession.advance`."""
        given = (hidden, codes, count, start)
        if not all(map(is_, given, self._given)):  # a loop may change the same ones in every step
            self._read(*given)
        run("advance", self._function, ctypes.byref(self._call), self.drafter.half)
        return self.logits

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


class NativeDraft:
    """A proposer's draft on B images: the drafter reads what was committed, and a tree grows."""

    def __init__(self, session: Any, drafter: NativeDrafter, grower: Any) -> None:
        """session: a `decoders.propose.grown.GrownSession`; grower: of its tree, from `growing`."""
        inner = session.session
        self.session, self.inner, self.grower = session, inner, grower
        self.advancing = NativeAdvance(drafter, inner.prefix[:, 0], inner.start, inner.max_new)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """See `decoders.api.DraftSession.advance`."""
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
    return NativeDrafter(session, own, theirs.project)
