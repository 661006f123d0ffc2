"""Attention of a draft tree against the cache as one kernel: rotation, append and softmax fused.

In plain tensor code a layer's attention is a dozen launches, of which most only move the T new
vectors. Here one program per (row, head) and split of the slots rotates the queries, appends the
new keys and values among its slots, and runs the softmax block by block in float32 (online, as in
FlashAttention 2205.14135). Query head h reads head h // G of keys and values, where G share it
(2305.13245); the programs of a group append the same numbers to the same slots. With few rows and
heads the slots are split over programs so that batch 1 fills a GPU (flash-decoding). The
preallocated cache may be much longer than what is used: slots behind a row's last new one are never
read.

Nothing waits for the device and no allocation depends on data, so a call can be captured in a CUDA
graph after one call outside (which compiles). It is one operator, so that the compiler takes it as
it is. `decoders.kernels.reference` is the same in plain tensor code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kernels.runtime import power, processors, programs, shared_memory

MOST_QUERIES = 64
SMALL = 128 * 1024  # bytes of shared memory: Ada and consumer Blackwell have less
MOST_SPLITS = 16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Plan:
    """How a shape is cut: slots a block, splits of the slots, warps a program, loads in flight."""

    block: int
    splits: int
    warps: int
    stages: int


padded = partial(power, least=16)  # what a tensor core takes


def plan(
    rows: int,
    queries: int,
    heads: int,
    slots: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    splits: int | None = None,
) -> Plan:
    """From the shape alone, so that it is the same inside and outside a captured graph.

    Two programs a processor where few queries make a program short, one where each split's partial
    result is large; `splits` overrides this. Only for what is not `refused`.
    """
    block, stages = _cut(queries, head_dim, dtype, shared_memory(device))[0]
    most = max(1, min(MOST_SPLITS, -(-slots // block)))
    if splits is None:
        programs_wanted = processors(device) * (2 if queries <= 16 else 1)
        splits = -(-programs_wanted // (rows * heads))
    large = padded(queries) * padded(head_dim) > 64 * 64
    return Plan(block, min(splits, most), 8 if large else 4, stages)


def shared_bytes(queries: int, head_dim: int, dtype: torch.dtype, block: int, stages: int) -> int:
    """Shared memory of a program, at most: keys and values of the blocks in flight, and the
    queries twice (operands in two parts, or sums in float32)."""
    return 2 * dtype.itemsize * padded(head_dim) * (stages * block + padded(queries))


def _cut(queries: int, head_dim: int, dtype: torch.dtype, room: int) -> list[tuple[int, int]]:
    """Slots a block and loads in flight that fit `room` bytes of shared memory, the largest first.

    Products of float32 are made in parts, which take twice the registers; so do scores of many
    queries. With blocks of 64 a program of 16 queries spills on the cards with least room.
    """
    wide = padded(head_dim) * dtype.itemsize * (2 if dtype == torch.float32 else 1)
    block = min(64 if wide <= 256 else 32 if wide <= 512 else 16, 2048 // padded(queries))
    if room < SMALL:
        block = min(block, 32)
    cuts = [(block, 2), (max(16, block // 2), 2), (16, 2), (16, 1)]
    return [cut for cut in cuts if shared_bytes(queries, head_dim, dtype, *cut) <= room]


def refused(queries: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why no program is made for T queries of width d; None where one is."""
    if not 1 <= queries <= MOST_QUERIES:
        return f"the kernel takes 1..{MOST_QUERIES} queries a row, found {queries}"
    if head_dim % 4 or not 4 <= head_dim <= 256:
        return f"the kernel takes heads of a width that divides by 4, up to 256, found {head_dim}"
    if dtype not in DTYPES:
        return f"the kernel is for {DTYPES}, found {dtype}"
    room = shared_memory(device)
    if _cut(queries, head_dim, dtype, room):
        return None
    least = shared_bytes(queries, head_dim, dtype, 16, 1)
    return (
        f"{queries} queries of width {head_dim} in {dtype} need {least:,} bytes of shared memory, "
        f"found {room:,} on this device"
    )


@torch.library.custom_op("lantern::tree_attention", mutates_args=("keys", "values"))
def tree_attention(
    qkv: Tensor,
    turns: Tensor,
    mask: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    sums: Tensor,
    arrived: Tensor,
    block: int,
    splits: int,
    warps: int,
    stages: int,
) -> Tensor:
    """T <= 64 queries a row against the cache -> [R, T, H, d] in the dtype of qkv.

    qkv [R, T, H + 2 K, d] float32, bfloat16 or float16: query, key and value heads; turns float32
    [R, T, d / 2, 2], the rotary table's rows at the queries' places; mask [R, T, S] bool, True
    where a query may look (its own slot included); slots [R, T] int64, different within a row;
    keys, values [R, K, S, d], one layout, written at `slots`, behind the last of which no query
    looks. sums [R, H, splits, T, d + 2] float32 (of one split nothing): the splits' partial sums;
    arrived [R * H] int32: how many have, zero between calls; every layer may use the same two. The
    rest is a `Plan`. A query that may look nowhere gives zeros.

    Raises DecoderError where Triton cannot run and for shapes that do not fit.
    """
    device = programs("tree_attention_programs", qkv.device)
    heads = _check(qkv, turns, mask, slots, keys, values)
    rows, queries, _, size = qkv.shape
    out = qkv.new_empty(rows, queries, heads, size)
    device.attend_tree[(rows * heads, splits)](
        qkv, turns, mask, slots, keys, values, out, sums, arrived,
        queries, heads, heads // keys.shape[1], size, keys.shape[2],
        size**-0.5 * math.log2(math.e),
        *qkv.stride()[:3], *turns.stride()[:2], *mask.stride(), *slots.stride(),
        *keys.stride()[:3], *out.stride()[:3],
        TP=padded(queries), DP=padded(size), BLOCK=block, SPLITS=splits, WIDE=power(splits),
        PRECISION=device.PRECISION,
        UNIT=device.unit(qkv.dtype),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@tree_attention.register_fake
def _(qkv: Tensor, turns: Tensor, mask: Tensor, slots: Tensor, keys: Tensor, *_: Any) -> Tensor:
    rows, queries, every, size = qkv.shape
    return qkv.new_empty(rows, queries, every - 2 * keys.shape[1], size)


def _check(
    qkv: Tensor, rope: Tensor, mask: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> int:
    """H, or DecoderError where the shapes do not fit."""
    shared = keys.shape[1] if qkv.ndim == keys.ndim == 4 else 0  # K
    heads = qkv.shape[2] - 2 * shared if shared else 0
    if heads < 1 or heads % shared:
        raise DecoderError(
            f"tree attention takes qkv [R, T, H + 2 K, d] and keys [R, K, S, d], H a multiple of "
            f"K, found {tuple(qkv.shape)} and {tuple(keys.shape)}"
        )
    rows, queries, _, size = qkv.shape
    slots_all = keys.shape[2]
    expected = {
        "rope": (rope, (rows, queries, size // 2, 2), torch.float32),
        "mask": (mask, (rows, queries, slots_all), torch.bool),
        "slots": (slots, (rows, queries), torch.int64),
        "keys": (keys, (rows, shared, slots_all, size), qkv.dtype),
        "values": (values, (rows, shared, slots_all, size), qkv.dtype),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise DecoderError(
                f"tree attention: {name} must be {shape} {dtype}, found {tuple(tensor.shape)} "
                f"{tensor.dtype}"
            )
    reason = refused(queries, size, qkv.dtype, qkv.device)
    if reason is not None:
        raise DecoderError(f"tree attention: {reason}; use another implementation")
    if keys.stride() != values.stride() or {t.stride(-1) for t in (qkv, keys)} != {1}:
        raise DecoderError(
            "tree attention: keys and values must have one layout, and the last dimension of qkv "
            f"and keys must be dense; found strides {keys.stride()}, {values.stride()}, "
            f"{qkv.stride()}"
        )
    if any(step % 4 for step in (*qkv.stride()[:3], *keys.stride()[:3])):
        raise DecoderError(
            "tree attention: vectors must start at multiples of four numbers, found strides "
            f"{qkv.stride()} of qkv, {keys.stride()} of keys"
        )
    return heads
