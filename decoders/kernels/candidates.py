"""The ways to compute a tree's attention, under one contract: once a forward `prepare`, then
`attend` for every layer.

All of them rotate queries and keys, append keys and values to the cache, and attend over its slots;
`decoders.kernels.reference` says what must come out. `decoders.kernels.choose` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kernels.reference import additive, attended, rotate_and_append
from decoders.kernels.runtime import missing
from decoders.kernels.tree_attention import MOST_SPLITS, plan, refused, tree_attention


@dataclass(frozen=True)
class AttentionShape:
    """R rows, T queries a row, H heads of width d, S cache slots, on a device. group: heads that
    share a head of keys and values."""

    rows: int
    queries: int
    heads: int
    slots: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    group: int = 1

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.heads // self.group


class Implementation(Protocol):
    @property
    def name(self) -> str: ...

    def reason(self, shape: AttentionShape) -> str | None:
        """Why it cannot run this shape; None where it can."""
        ...

    def prepare(self, shape: AttentionShape, mask: Tensor, slots: Tensor) -> Any:
        """What all layers of a forward share: mask [R, T, S] bool, slots [R, T] int64."""
        ...

    def attend(
        self, qkv: Tensor, rope: Tensor, prepared: Any, keys: Tensor, values: Tensor
    ) -> Tensor:
        """qkv [R, T, H + 2 K, d], rope [R, T, d / 2] complex64, keys, values [R, K, S, d] (written)
        -> [R, T, H, d] in the dtype of qkv."""
        ...


class Products:
    """Plain matrix products and a softmax in the model's dtype: on CPUs the fastest at small
    sizes."""

    name = "products"
    fused = False

    def reason(self, shape: AttentionShape) -> str | None:
        del shape  # runs everywhere
        return None

    def prepare(self, shape: AttentionShape, mask: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """bias [R, 1, G T, S] of 0 and -inf in the model's dtype, and slots [R, T]."""
        return additive(mask, shape.dtype, shape.group), slots

    def attend(
        self, qkv: Tensor, rope: Tensor, prepared: Any, keys: Tensor, values: Tensor
    ) -> Tensor:
        bias, slots = prepared
        query = rotate_and_append(qkv, rope, slots, keys, values)  # [R, H, T, d]
        # The heads that read the same keys stand below each other: [R, K, G T, d].
        query = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
        out = attended(query, keys, values, bias, self.fused)
        split = out.unflatten(2, (-1, slots.shape[1]))  # [R, K, G, T, d]
        return split.flatten(1, 2).transpose(1, 2)  # [R, T, H, d]


class Sdpa(Products):
    """PyTorch's fused attention with an explicit mask."""

    name = "sdpa"
    fused = True


class Flex:
    """PyTorch's FlexAttention, compiled, with the mask read by its mask function; blocks of slots
    that no query sees are skipped. compiled=False runs its plain form anywhere, for tests."""

    name = "flex"

    def __init__(self, compiled: bool = True) -> None:
        self.compiled = compiled

    def reason(self, shape: AttentionShape) -> str | None:
        if find_spec("torch.nn.attention.flex_attention") is None:
            return f"FlexAttention needs PyTorch 2.5 or newer, found {torch.__version__}"
        if not self.compiled:
            return None
        if shape.device.type != "cuda":
            return f"FlexAttention is compiled for GPUs here, found {shape.device.type}"
        return missing(shape.device)

    @cached_property
    def _call(self) -> Callable[..., Tensor]:
        from torch.nn.attention.flex_attention import flex_attention

        if not self.compiled:
            return flex_attention
        return torch.compile(flex_attention, dynamic=False)

    def prepare(self, shape: AttentionShape, mask: Tensor, slots: Tensor) -> tuple[Any, Tensor]:
        """FlexAttention's block mask, and slots [R, T]."""
        from torch.nn.attention.flex_attention import create_block_mask

        def looks(row: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
            del head  # the same for all
            return mask[row, query, slot]

        blocks = create_block_mask(
            looks, shape.rows, None, shape.queries, shape.slots, device=mask.device
        )
        return blocks, slots

    def attend(
        self, qkv: Tensor, rope: Tensor, prepared: Any, keys: Tensor, values: Tensor
    ) -> Tensor:
        blocks, slots = prepared
        query = rotate_and_append(qkv, rope, slots, keys, values)  # [R, H, T, d]
        shares = query.shape[1] != keys.shape[1]
        out = self._call(query, keys, values, block_mask=blocks, enable_gqa=shares)
        return out.transpose(1, 2)  # [R, T, H, d]


class Triton:
    """The fused kernel; `splits` overrides how the slots are cut (`tree_attention.plan`)."""

    def __init__(self, splits: int | None = None) -> None:
        if splits is not None and not 1 <= splits <= MOST_SPLITS:
            raise DecoderError(f"triton splits must be in 1..{MOST_SPLITS}, found {splits}")
        self.splits = splits
        self.name = "triton" if splits is None else f"triton_{splits}"
        self._kept: dict[tuple[int, int, int, int], tuple[Any, ...]] = {}  # by shape

    def reason(self, shape: AttentionShape) -> str | None:
        return missing(shape.device) or refused(
            shape.queries, shape.head_dim, shape.dtype, shape.device
        )

    def prepare(self, shape: AttentionShape, mask: Tensor, slots: Tensor) -> tuple[Any, ...]:
        """Mask, slots, the workspace for calls of this shape on one stream at a time, and the
        plan."""
        key = (shape.rows, shape.queries, shape.heads, shape.slots)
        if key not in self._kept:
            own = (*key, shape.head_dim, shape.dtype, shape.device)
            how = plan(*own, splits=self.splits)
            parts = how.splits if how.splits > 1 else 0
            size = (shape.rows, shape.heads, parts, shape.queries, shape.head_dim + 2)
            sums = torch.empty(size, dtype=torch.float32, device=shape.device)
            arrived = torch.zeros(shape.rows * shape.heads, dtype=torch.int32, device=shape.device)
            self._kept[key] = (sums, arrived, how.block, how.splits, how.warps, how.stages)
        return mask, slots.contiguous(), *self._kept[key]

    def attend(
        self, qkv: Tensor, rope: Tensor, prepared: Any, keys: Tensor, values: Tensor
    ) -> Tensor:
        mask, slots, *how = prepared
        turns = torch.view_as_real(rope) if rope.is_complex() else rope  # [R, T, d / 2, 2]
        out: Tensor = tree_attention(qkv, turns, mask, slots, keys, values, *how)
        return out


def implementations() -> tuple[Implementation, ...]:
    """All of them, the kernel also with fixed numbers of splits."""
    return (Products(), Sdpa(), Flex(), Triton(), *(Triton(splits) for splits in (1, 2, 4, 8)))


def implementation(name: str) -> Implementation:
    """The one called `name`.

    Raises DecoderError for an unknown name.
    """
    known = {each.name: each for each in implementations()}
    if name not in known:
        raise DecoderError(f"attention is auto or one of {', '.join(known)}, found {name!r}")
    return known[name]
