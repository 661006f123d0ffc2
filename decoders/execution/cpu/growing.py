"""A whole draft tree under the root in one call of the CPU kernel: what
`decoders.propose.trees.static` and `decoders.propose.trees.dynamic` do level by level.

An object serves one session and one tree, and returns one draft, whose tensors every call fills
anew: nothing is allocated in a step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor

from decoders.api import Draft, Sampling
from decoders.execution.cpu.checks import require
from decoders.execution.cpu.drafting import NativeDrafter
from decoders.execution.cpu.library import Expand, Filter, filter_of, library, run
from decoders.noise import DRAFT_SLOT, SLOTS, Noise


class Grow(ctypes.Structure):
    """`Grow` of growing.h."""

    _fields_ = [
        ("drafter", Expand),
        *((n, ctypes.c_void_p) for n in ("root_logits", "root_code")),
        ("filter", Filter),
        *((n, ctypes.c_long) for n in ("size", "children", "levels")),
        *((n, ctypes.c_void_p) for n in ("left", "codes", "child")),
    ]


class GrowStatic(ctypes.Structure):
    """`GrowStatic` of growing.h."""

    _fields_ = [
        ("base", Grow),
        *((n, ctypes.c_void_p) for n in ("parents", "first", "parent", "shape", "uniform")),
        *((n, ctypes.c_long) for n in ("places", "row")),
        *((n, ctypes.c_void_p) for n in ("position", "q")),
    ]


class GrowDynamic(ctypes.Structure):
    """`GrowDynamic` of growing.h."""

    _fields_ = [
        ("base", Grow),
        ("candidates", ctypes.c_long),
        *((n, ctypes.c_void_p) for n in ("code", "above", "score", "front", "session", "best")),
        *((n, ctypes.c_void_p) for n in ("order", "parents", "depth", "ancestry", "expected")),
    ]


@dataclass(frozen=True)
class Flat:
    """A static tree, int64 on the CPU: parents, the nodes that have children, level by level, and
    first [levels + 1], where a level of them begins; parent [N + 1]; children [N + 1, K], 0 where
    there is none."""

    parents: Tensor
    first: Tensor
    parent: Tensor
    children: Tensor


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
        call, kept = drafter.structure(widest)
        left = torch.empty(call.layer.threads, drafter.vocab)
        size, batch = nodes + 1, drafter.batch
        self.drafter, self.kept = drafter, (kept, left)
        self.codes = torch.zeros(batch, size, dtype=torch.long)
        self.children = torch.zeros(batch, size, children, dtype=torch.long)
        self.given: tuple[Tensor, ...] = (self.codes,) * 3  # what the call was prepared for
        self.base = Grow(
            call, None, drafter.state.root_code.data_ptr(),
            filter_of(sampling), size, children, levels,
            left.data_ptr(), self.codes.data_ptr(), self.children.data_ptr(),
        )  # fmt: skip

    def check(self, root_logits: Tensor) -> Tensor:
        """Contiguous; DecoderError where it is not [B, V] float32."""
        wanted = (self.drafter.batch, self.drafter.vocab)
        return require("logits", root_logits, wanted, torch.float32)


class NativeStatic(_Tree):
    """Trees of one shape, see `decoders.propose.trees.static.Static.grow`. shaped: a draft of codes
    [B, N + 1], children [B, N + 1, K], and q [B, N + 1, V] or None."""

    def __init__(
        self,
        drafter: NativeDrafter,
        sampling: Sampling,
        flat: Flat,
        shaped: Callable[[Tensor, Tensor, Tensor | None], Draft],
    ) -> None:
        size, children = flat.children.shape
        levels = len(flat.first) - 1
        widest = int(flat.first.diff().max())
        super().__init__(drafter, sampling, size - 1, children, levels, widest)
        self.flat = flat
        self.children.copy_(flat.children)  # what greedy trees and chains keep
        # A leaf's rows are read by no one and stay zeros; the others are written in every call.
        q = None if sampling.greedy else torch.zeros(drafter.batch, size, drafter.vocab)
        self.draft = shaped(self.codes, self.children, q)
        if children == 1:
            self.base.child = None  # no child is dropped
        self.call = GrowStatic(
            self.base, flat.parents.data_ptr(), flat.first.data_ptr(), flat.parent.data_ptr(),
            flat.children.data_ptr(), None, 0, 0, None, None if q is None else q.data_ptr(),
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
        batch, call = self.drafter.batch, self.call
        places, slots = uniform.shape[1:]
        uniform = require("noise", uniform, (batch, places, max(slots, SLOTS)), torch.float32)
        position = require("places", position, (batch,), torch.int64)
        self.given = self.check(root_logits), uniform, position
        root_logits, uniform, position = self.given
        call.base.root_logits, call.position = root_logits.data_ptr(), position.data_ptr()
        call.uniform = uniform[:, :, DRAFT_SLOT:].data_ptr()
        call.places, call.row = uniform.shape[1:]


class NativeDynamic(_Tree):
    """Trees of `nodes` nodes, see `decoders.propose.trees.dynamic.Dynamic.grow`."""

    def __init__(
        self, drafter: NativeDrafter, sampling: Sampling, depth: int, top_k: int, nodes: int
    ) -> None:
        super().__init__(drafter, sampling, nodes, top_k, depth, top_k)
        batch, size, total = drafter.batch, nodes + 1, top_k + (depth - 1) * top_k**2
        levels = torch.empty(2, batch, top_k, dtype=torch.long)
        scores = torch.empty(batch, total), torch.empty(batch, top_k)
        code, above = torch.empty(2, batch, total, dtype=torch.long)
        order = torch.empty(batch, 2, total, dtype=torch.long)
        parents, level = torch.zeros(2, batch, size, dtype=torch.long)
        ancestry = torch.zeros(batch, size, size, dtype=torch.bool)
        self.space = (code, above, order, levels, scores)
        draft = (self.codes, parents, level, self.children, None, ancestry, depth)
        expected = torch.ones(batch)
        self.draft = Draft(*draft, by_leaf=True, expected=expected)
        self.call = GrowDynamic(
            self.base, total, code.data_ptr(), above.data_ptr(), scores[0].data_ptr(),
            levels[0].data_ptr(), levels[1].data_ptr(), scores[1].data_ptr(), order.data_ptr(),
            parents.data_ptr(), level.data_ptr(), ancestry.data_ptr(), expected.data_ptr(),
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
