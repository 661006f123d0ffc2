"""The device program of `decoders.kernels.tree_attention`; import it through that module.

One program per (row and head, split of the slots). A split's slots are read by its program alone,
so that program also appends the new keys and values that fall among them: nothing written here is
read by another program, but by those of heads that share these keys, which write the same numbers
themselves; no barrier over the grid is needed. The splits' partial softmax sums
(as in flash-decoding) are put together by the program that finishes last.
"""

# Triton reads a program's annotations itself; parameters here are pointers, numbers or constexpr.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def rotated(x, turn, e, here, TP: tl.constexpr, DP: tl.constexpr):
    """Interleaved pairs of x turned by `turn` -> [T, d] fp32; both point at [T, 1] rows of d.

    `turn` holds (cos, sin) where x holds a pair, so both are read in whole rows.
    """
    pairs = tl.load(x + e, mask=here, other=0.0).to(tl.float32)  # [T, d]
    turns = tl.load(turn + e, mask=here, other=0.0)  # [T, d]
    even, odd = tl.split(tl.reshape(pairs, [TP, DP // 2, 2]))  # [T, d / 2]
    cos, sin = tl.split(tl.reshape(turns, [TP, DP // 2, 2]))
    both = tl.join(even * cos - odd * sin, even * sin + odd * cos)  # [T, d / 2, 2]
    return tl.reshape(both, [TP, DP])


@triton.jit
def part_of(
    slots, split, queries, slots_t, TP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr
):
    """The slots [low, high) of a split: a row's up to the last one written, cut into equal splits
    of whole blocks."""
    new = tl.arange(0, TP)
    written = tl.load(slots + new * slots_t, mask=new < queries, other=-1)
    last = (tl.max(written, 0) + 1).to(tl.int32)
    part = tl.cdiv(tl.cdiv(last, SPLITS), BLOCK) * BLOCK
    low = split * part
    return low, tl.minimum(low + part, last)


@triton.jit
def append_new(
    new_keys, new_values, rope, slots, keys, values, low, high, queries, size,
    qkv_t, rope_t, slots_t, cache_s, TP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Writes the new keys and values whose slot is in [low, high). Pointers are at (row, head)."""
    t = tl.arange(0, TP)[:, None]
    e = tl.arange(0, DP)[None, :]
    slot = tl.load(slots + t * slots_t, mask=t < queries, other=-1)  # [T, 1]
    mine = (slot >= low) & (slot < high) & (e < size)  # [T, d]
    place = slot * cache_s + e
    key = rotated(new_keys + t * qkv_t, rope + t * rope_t, e, mine, TP, DP)
    tl.store(keys + place, key.to(keys.dtype.element_ty), mask=mine)
    value = tl.load(new_values + t * qkv_t + e, mask=mine, other=0.0)
    tl.store(values + place, value, mask=mine)


@triton.jit
def look(
    query, mask, keys, values, low, high, queries, size, slots_all, scale,
    mask_t, mask_s, cache_s, TP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Softmax sums of the slots [low, high): peak [T], sum [T] and weighted values [T, d], fp32.

    No query sees a slot past the row's last, and splits end on whole blocks: the mask is read by
    whole blocks. Scores are in units of log 2; `scale` carries log2(e) / sqrt(d). UNIT: dtype of
    the products.
    """
    t = tl.arange(0, TP)[:, None]
    e = tl.arange(0, DP)[None, :]
    peak = tl.full([TP], float("-inf"), tl.float32)
    total = tl.zeros([TP], tl.float32)
    found = tl.zeros([TP, DP], tl.float32)
    for start in range(low, high, BLOCK):
        s = tl.multiple_of(start, 16) + tl.arange(0, BLOCK)
        real = (s[:, None] < high) & (e < size)  # [S, d]
        place = s[:, None] * cache_s + e
        key = tl.load(keys + place, mask=real, other=0.0)
        inside = (t < queries) & (s[None, :] < slots_all)  # [T, S]
        seen = tl.load(mask + t * mask_t + s[None, :] * mask_s, mask=inside, other=0)
        score = tl.dot(query.to(UNIT), tl.trans(key.to(UNIT)), input_precision=PRECISION)
        score = score * scale  # [T, S]
        score = tl.where(seen != 0, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))  # [T]
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weight, 1)
        value = tl.load(values + place, mask=real, other=0.0)
        found = found * fade[:, None]
        weight = weight.to(value.dtype).to(UNIT)
        found = tl.dot(weight, value.to(UNIT), found, input_precision=PRECISION)
        peak = higher
    return peak, total, found


@triton.jit
def gather_splits(
    sums, queries, size, TP: tl.constexpr, DP: tl.constexpr, SPLITS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Puts the partial sums of one (row, head) together -> [T, d] fp32.

    sums [splits, T, d + 2]: the weighted values, then peak and sum. WIDE: splits, a power of two.
    """
    t = tl.arange(0, TP)
    e = tl.arange(0, DP)[None, :]
    split = tl.arange(0, WIDE)[:, None]
    pitch = size + 2
    row = (split * queries + t[None, :]) * pitch + size  # [splits, T]
    real = (split < SPLITS) & (t[None, :] < queries)
    peak = tl.load(sums + row, mask=real, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums + row + 1, mask=real, other=0.0, cache_modifier=".cg")
    highest = tl.max(peak, 0)  # [T]
    weight = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest)[None, :])
    whole = tl.sum(weight * total, 0)  # [T]
    found = tl.zeros([TP, DP], tl.float32)
    for i in tl.static_range(SPLITS):
        own = tl.sum(tl.where(split == i, weight, 0.0), 0)  # [T]
        place = sums + (i * queries + t[:, None]) * pitch + e
        here = (t[:, None] < queries) & (e < size)
        found += own[:, None] * tl.load(place, mask=here, other=0.0, cache_modifier=".cg")
    return found / tl.where(whole > 0, whole, 1.0)[:, None]


@triton.jit
def attend_tree(
    qkv, rope, mask, slots, keys, values, out, sums, arrived,
    queries, heads, group, size, slots_all, scale,
    qkv_r, qkv_t, qkv_h, rope_r, rope_t, mask_r, mask_t, mask_s, slots_r, slots_t,
    cache_r, cache_h, cache_s, out_r, out_t, out_h,
    TP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (R * H, splits). T and d are padded to TP and DP; see `tree_attention` for shapes."""
    # Triton notices multiples of 16 itself; heads of width 100 are read four numbers at a time.
    size = size // 4 * 4
    cache_s, cache_h, cache_r = cache_s // 4 * 4, cache_h // 4 * 4, cache_r // 4 * 4
    qkv_t, qkv_h, qkv_r = qkv_t // 4 * 4, qkv_h // 4 * 4, qkv_r // 4 * 4
    line = tl.program_id(0)
    split = tl.program_id(1)
    row = (line // heads).to(tl.int64)
    head = (line % heads).to(tl.int64)
    qkv += row * qkv_r
    rope += row * rope_r
    shared = head // group  # of the heads / group heads of keys and values
    new_keys = qkv + (heads + shared) * qkv_h
    new_values = new_keys + (heads // group) * qkv_h
    qkv += head * qkv_h
    keys += row * cache_r + shared * cache_h
    values += row * cache_r + shared * cache_h
    slots += row * slots_r
    low, high = part_of(slots, split, queries, slots_t, TP, BLOCK, SPLITS)
    append_new(
        new_keys, new_values, rope, slots, keys, values, low, high, queries, size,
        qkv_t, rope_t, slots_t, cache_s, TP, DP,
    )  # fmt: skip
    tl.debug_barrier()  # what this program has written, all its threads now see
    t = tl.arange(0, TP)[:, None]
    e = tl.arange(0, DP)[None, :]
    here = (t < queries) & (e < size)  # [T, d]
    query = rotated(qkv + t * qkv_t, rope + t * rope_t, e, here, TP, DP)
    query = query.to(qkv.dtype.element_ty)
    peak, total, found = look(
        query, mask + row * mask_r, keys, values, low, high, queries, size, slots_all, scale,
        mask_t, mask_s, cache_s, TP, DP, BLOCK, PRECISION, UNIT,
    )  # fmt: skip
    out += row * out_r + head * out_h + t * out_t + e
    if SPLITS == 1:
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out, found.to(out.dtype.element_ty), mask=here)
    else:
        sums += line.to(tl.int64) * SPLITS * queries * (size + 2)
        mine = sums + (split * queries + t) * (size + 2)  # [T, 1]
        tl.store(mine + e, found, mask=here)
        tl.store(mine + size, peak[:, None], mask=t < queries)
        tl.store(mine + size + 1, total[:, None], mask=t < queries)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + line, 1, sem="acq_rel")
        if before == SPLITS - 1:
            tl.debug_barrier()
            whole = gather_splits(sums, queries, size, TP, DP, SPLITS, WIDE)
            tl.store(out, whole.to(out.dtype.element_ty), mask=here)
            tl.store(arrived + line, 0)  # ready for the next call


# The interpreter multiplies bfloat16 as integers, so there products are made in float32.
INTERPRETED = not isinstance(attend_tree, triton.runtime.JITFunction)
# Products of float32: in three tf32 parts, as exact as float32 sums; AMD has the plain product.
PRECISION = "ieee" if INTERPRETED or torch.version.hip else "tf32x3"


def unit(dtype: torch.dtype) -> tl.dtype:
    """The dtype of the operands of a matrix product for tensors of `dtype`."""
    if INTERPRETED:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[
        dtype
    ]
