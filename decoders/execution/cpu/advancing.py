"""What was committed, told to an EAGLE drafter in one call of the CPU kernel:
`decoders.propose.drafters.eagle.EagleSession.advance`."""

from __future__ import annotations

import ctypes
from operator import is_

import torch
from torch import Tensor

from decoders.execution.cpu.checks import require
from decoders.execution.cpu.drafting import NativeDrafter
from decoders.execution.cpu.library import Expand, library, run


class Advance(ctypes.Structure):
    """`Advance` of advancing.h."""

    _fields_ = [
        ("drafter", Expand),
        ("prefix", ctypes.c_void_p),
        ("first", ctypes.c_long),
        ("told", ctypes.c_long),
        *((n, ctypes.c_void_p) for n in ("hidden", "codes", "count", "start", "root_code")),
        *((n, ctypes.c_void_p) for n in ("order", "inputs", "pairs")),
    ]


class NativeAdvance:
    """One session's calls. prefix [R, S] bool, the valid places of the prefix; first: the slot of
    an image's first code; told: T of most calls."""

    def __init__(self, drafter: NativeDrafter, prefix: Tensor, first: int, told: int) -> None:
        self.drafter, self.prefix, self.first = drafter, prefix.contiguous(), first
        self.logits = torch.empty(drafter.batch, drafter.vocab)
        self._call, self._kept = self._structure(told)
        self._given: tuple[Tensor, ...] = (self.prefix,) * 4
        self._function = library().lantern_advance

    def _structure(self, told: int) -> tuple[Advance, tuple[Tensor, ...]]:
        """A call at `told` codes an image, and what it refers to."""
        own, state = self.drafter, self.drafter.state
        rows, size = own.rows, own.width
        inputs = state.features.new_empty(rows * told, size)
        mixed = state.features.new_empty(rows * told, 2 * size)
        out = state.features.new_empty(rows, 1, size)
        pairs, raw = torch.empty(rows * told, 2 * size), torch.empty(rows, own.vocab)
        order = state.root_slot.new_empty(rows * told)
        # The root's row of the mask is made where the session keeps it.
        slots, mask = state.root_slot, state.seen[:, :1]
        call = own.of(inputs[:rows, None], slots, slots, mask, out)
        call.mixed, call.raw, call.logits = mixed.data_ptr(), raw.data_ptr(), self.logits.data_ptr()
        made = Advance(
            call, self.prefix.data_ptr(), self.first, told, None, None, None, None,
            state.root_code.data_ptr(), order.data_ptr(), inputs.data_ptr(), pairs.data_ptr(),
        )  # fmt: skip
        return made, (inputs, mixed, out, pairs, raw, order, own.net.layers.scratch)

    def __call__(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """hidden [R, T, D], codes [B, T], count, start [B] -> guided logits [B, V] float32, which
        the next call overwrites; see `decoders.propose.drafters.session.DraftSession.advance`."""
        given = (hidden, codes, count, start)
        if not all(map(is_, given, self._given)):  # a loop may change the same ones in every step
            self._read(*given)
        run("advance", self._function, ctypes.byref(self._call), self.drafter.half)
        return self.logits

    def _read(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> None:
        own, told = self.drafter, codes.shape[1]
        hidden = require("hidden states", hidden, (own.rows, told, own.width), own.dtype)
        if told != self._call.told:
            self._call, self._kept = self._structure(told)
        batch, whole = own.batch, torch.int64
        self._given = (
            hidden,
            require("codes", codes, (batch, told), whole),
            require("counts", count, (batch,), whole),
            require("places", start, (batch,), whole),
        )
        call = self._call
        call.hidden, call.codes, call.count, call.start = (t.data_ptr() for t in self._given)
