"""A whole draft tree under the root in one call of the CPU kernel: what `decoders.trees.static` and
`decoders.trees.dynamic` do level by level, for a distribution without filters.

An object serves one session and one tree; the tensors that it returns are its own, but for those
that are said to be reused.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.kernels.cpu.drafting import NativeDrafter
from decoders.kernels.cpu.library import Expand, library, run
from decoders.noise import DRAFT_SLOT, Noise


class Grow(ctypes.Structure):
    """`Grow` of growing.h."""

    _fields_ = [
        ("drafter", Expand),
        *((n, ctypes.c_void_p) for n in ("root_logits", "root_code")),
        ("temperature", ctypes.c_float),
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
        *((n, ctypes.c_void_p) for n in ("order", "parents", "depth", "ancestry")),
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
        self.drafter, self.kept = drafter, (kept, left)
        self.size, self.children = nodes + 1, children
        self.base = Grow(
            call, None, drafter.state.root_code.data_ptr(),
            1.0 if sampling.greedy else sampling.temperature, self.size, children, levels,
            left.data_ptr(), None, None,
        )  # fmt: skip

    def check(self, root_logits: Tensor) -> Tensor:
        """Contiguous; DecoderError where it is not [B, V] float32."""
        wanted = (self.drafter.batch, self.drafter.vocab)
        if root_logits.shape != wanted or root_logits.dtype != torch.float32:
            raise DecoderError(
                f"the CPU kernel expected logits {list(wanted)} in torch.float32, found "
                f"{list(root_logits.shape)} in {root_logits.dtype}"
            )
        return root_logits.contiguous()


class NativeStatic(_Tree):
    """Trees of one shape, see `decoders.trees.static.Static.grow`."""

    def __init__(self, drafter: NativeDrafter, sampling: Sampling, flat: Flat) -> None:
        size, children = flat.children.shape
        levels = len(flat.first) - 1
        widest = int(flat.first.diff().max())
        super().__init__(drafter, sampling, size - 1, children, levels, widest)
        self.flat = flat
        # A leaf's rows are read by no one and stay zeros; the others are written in every call.
        drawn = not sampling.greedy
        self.q = torch.zeros(drafter.batch, size, drafter.vocab) if drawn else None
        self._of_shape = flat.children.expand(drafter.batch, -1, -1)
        self._dropped = drawn and children > 1  # some children may be impossible
        self._uniform = torch.empty(0)
        self.call = GrowStatic(
            self.base, flat.parents.data_ptr(), flat.first.data_ptr(), flat.parent.data_ptr(),
            flat.children.data_ptr(), None, 0, 0, None,
            None if self.q is None else self.q.data_ptr(),
        )  # fmt: skip

    def __call__(
        self, root_logits: Tensor, noise: Noise, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """root_logits [B, V] float32; position [B] int64 -> codes [B, N + 1], children [B, N + 1,
        K], and q [B, N + 1, V] or None (greedy). q is reused by the next call."""
        root_logits, position = self.check(root_logits), position.contiguous()
        if noise.uniform is not self._uniform:
            self._read(noise.uniform)
        batch, call = self.drafter.batch, self.call
        codes = position.new_empty(batch, self.size)
        children = position.new_empty(batch, self.size, self.children)
        base = call.base
        base.root_logits, base.codes = root_logits.data_ptr(), codes.data_ptr()
        base.child, call.position = children.data_ptr(), position.data_ptr()
        base.drafter.layer.scratch = self.drafter.net.layers.scratch.data_ptr()
        run("grow", library().lantern_grow_static, ctypes.byref(call), self.drafter.half)
        return codes, children if self._dropped else self._of_shape, self.q

    def _read(self, uniform: Tensor) -> None:
        """uniform [B, L + OVERRUN, SLOTS] float32."""
        if len(uniform) != self.drafter.batch or uniform.dtype != torch.float32:
            raise DecoderError(
                f"the CPU kernel expected noise for {self.drafter.batch} images in torch.float32, "
                f"found {len(uniform)} in {uniform.dtype}"
            )
        self._uniform = uniform
        self._table = uniform.contiguous()
        self.call.uniform = self._table[:, :, DRAFT_SLOT:].data_ptr()
        self.call.places, self.call.row = uniform.shape[1:]


class NativeDynamic(_Tree):
    """Trees of `nodes` nodes, see `decoders.trees.dynamic.Dynamic.grow`."""

    def __init__(
        self, drafter: NativeDrafter, sampling: Sampling, depth: int, top_k: int, nodes: int
    ) -> None:
        super().__init__(drafter, sampling, nodes, top_k, depth, top_k)
        batch, total = drafter.batch, top_k + (depth - 1) * top_k**2
        levels = torch.empty(2, batch, top_k, dtype=torch.long)
        scores = torch.empty(batch, total), torch.empty(batch, top_k)
        code, above = torch.empty(2, batch, total, dtype=torch.long)
        order = torch.empty(batch, 2, total, dtype=torch.long)
        self.space = (code, above, order, levels, scores)
        self.call = GrowDynamic(
            self.base, total, code.data_ptr(), above.data_ptr(), scores[0].data_ptr(),
            levels[0].data_ptr(), levels[1].data_ptr(), scores[1].data_ptr(), order.data_ptr(),
            None, None, None,
        )  # fmt: skip

    def __call__(self, root_logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """root_logits [B, V] float32 -> codes, parents, depth [B, N + 1], children [B, N + 1, K]
        int64, and ancestry [B, N + 1, N + 1] bool."""
        root_logits = self.check(root_logits)
        batch, size, call = self.drafter.batch, self.size, self.call
        codes, parents, depth = torch.empty(3, batch, size, dtype=torch.long).unbind(0)
        children = torch.empty(batch, size, self.children, dtype=torch.long)
        ancestry = torch.empty(batch, size, size, dtype=torch.bool)
        base = call.base
        base.root_logits, base.codes = root_logits.data_ptr(), codes.data_ptr()
        base.child, call.parents = children.data_ptr(), parents.data_ptr()
        call.depth, call.ancestry = depth.data_ptr(), ancestry.data_ptr()
        base.drafter.layer.scratch = self.drafter.net.layers.scratch.data_ptr()
        run("grow", library().lantern_grow_dynamic, ctypes.byref(call), self.drafter.half)
        return codes, parents, depth, children, ancestry
