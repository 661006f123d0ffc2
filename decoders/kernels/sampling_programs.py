"""The device program of `decoders.kernels.sampling`; import it through that module.

One program per row holds the row's logits, and later their probabilities, as tiles [N, W] of codes.
The k-th largest logit is found bit by bit: of ordered numbers, the largest that k of them reach.
That takes up to 32 sums, and no sort. A draw finds its tile by the tiles' sums, and its code in
that tile alone.
"""

# Triton reads a program's annotations itself; parameters here are pointers, numbers or constexpr.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def whole(x):
    """The sum of all entries of x [N, W]."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def number(key):
    """The float32 at place `key`, uint32, of all in their order; what is past infinity is NaN."""
    sign = tl.full((), 0x80000000, tl.uint32)
    return tl.where(key >= sign, key ^ sign, ~key).to(tl.float32, bitcast=True)


@triton.jit
def threshold(x, k):
    """A number that the k largest of x [N, W] reach, and no smaller one. It is NaN where fewer than
    k are above -infinity."""
    found = tl.full((), 0, tl.uint32)
    bit = tl.full((), 0x80000000, tl.uint32)
    while bit > 0:
        # Counted in float32, exactly: LLVM puts booleans that are added on the stack.
        reach = whole(tl.where(x >= number(found | bit), 1.0, 0.0))
        found = tl.where(reach >= k, found | bit, found)
        bit = tl.where(reach == k, 0, bit >> 1)
    return number(found)


@triton.jit
def nucleus(p, top_p):
    """p [N, W] without the codes that the likelier ones leave no room for; among equals the first
    stay."""
    last = tl.full((), 0, tl.uint32)  # the largest number above which there is top_p
    bit = tl.full((), 0x40000000, tl.uint32)  # none is negative
    for _ in range(31):
        above = whole(tl.where(p > (last | bit).to(tl.float32, bitcast=True), p, 0.0))
        last = tl.where(above >= top_p, last | bit, last)
        bit = bit >> 1
    kept = p > last.to(tl.float32, bitcast=True)
    least = tl.min(tl.min(tl.where(kept, p, 2.0), 1), 0)
    ahead = whole(tl.where(p > least, p, 0.0))
    equal = (kept & (p == least)).to(tl.int32)
    tiles = tl.sum(equal, 1)  # [N]
    rank = tl.cumsum(equal, 1) - equal + (tl.cumsum(tiles, 0) - tiles)[:, None]
    kept = kept & ((p > least) | (ahead + rank.to(tl.float32) * least < top_p))
    p = tl.where(kept, p, 0.0)
    return p / whole(p)


@triton.jit
def first(possible, cdf, level, at, size):
    """The first place of `at` that is possible and whose sum exceeds the level; the last possible
    one where rounding leaves none, -1 where none is possible."""
    hit = tl.min(tl.where(possible & (cdf > level), at, size), 0)
    return tl.where(hit < size, hit, tl.max(tl.where(possible, at, -1), 0))


@triton.jit
def draw_codes(
    left, sums, uniform, codes, vocab, draws, below_one, N: tl.constexpr, W: tl.constexpr
):
    """`draws` different codes by the probabilities at `left`, which lose each that is drawn; sums
    [N] of their tiles. V - 1 where nothing is left."""
    n = tl.arange(0, N)
    w = tl.arange(0, W)
    for j in range(draws):
        tl.debug_barrier()  # what was stored before, all threads now see
        cdf = tl.cumsum(sums, 0)  # [N]
        total = tl.sum(tl.where(n == N - 1, cdf, 0.0), 0)
        level = tl.minimum(tl.load(uniform + j), below_one) * total
        tile = first(sums > 0, cdf, level, n, N)
        before = tl.sum(tl.where(n == tile - 1, cdf, 0.0), 0)
        place = tl.maximum(tile, 0) * W + w
        own = tl.load(left + place, mask=place < vocab, other=0.0)
        inside = first(own > 0, before + tl.cumsum(own, 0), level, w, W)
        code = tl.where(tile < 0, vocab - 1, tile * W + inside)
        tl.store(codes + j, code.to(tl.int64))
        tl.debug_barrier()  # all threads have read the tile
        tl.store(left + code, 0.0)
        sums = tl.where(n == tile, tl.sum(tl.where(w == inside, 0.0, own), 0), sums)
    tl.debug_barrier()


@triton.jit
def sample_rows(
    logits, uniform, p_out, codes, vocab, draws, groups, uniform_b, uniform_n,
    temperature, top_k, top_p, below_one,
    NUCLEUS: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Grid (rows). logits and p_out [rows, V]; codes [rows, draws]; uniform by image (`groups` rows
    each) and row. N tiles of W codes hold a row."""
    row = tl.program_id(0).to(tl.int64)
    y = tl.arange(0, N)[:, None] * W + tl.arange(0, W)[None, :]  # [N, W]
    x = tl.load(logits + row * vocab + y, mask=y < vocab, other=float("-inf")) / temperature
    if top_k > 0:
        x = tl.where(x < threshold(x, top_k), float("-inf"), x)  # NaN stays: it is reported
    mass = tl.exp(x - tl.max(tl.max(x, 1), 0))
    p = mass / whole(mass)
    if NUCLEUS:
        p = nucleus(p, top_p)
    p_out += row * vocab
    tl.store(p_out + y, p, mask=y < vocab)
    if draws > 0:
        uniform += (row // groups) * uniform_b + (row % groups) * uniform_n
        codes += row * draws
        draw_codes(p_out, tl.sum(p, 1), uniform, codes, vocab, draws, below_one, N, W)
        tl.store(p_out + y, p, mask=y < vocab)
