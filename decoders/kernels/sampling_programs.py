"""The device program of `decoders.kernels.sampling`; import it through that module.

One program per row holds all of the row's codes. The k-th largest logit is found bit by bit: of
ordered numbers, the largest that k of them reach. That takes 32 sums and no sort.
"""

# Triton reads a program's annotations itself; parameters here are pointers, numbers or constexpr.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def ordered(x):
    """float32 -> uint32 in the same order; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    low = tl.full((), 0x7FFFFFFF, tl.uint32)
    return tl.where(bits > low, ~bits, bits | (low + 1))


@triton.jit
def threshold(keys, here, k):
    """The k-th largest of the keys that are `here`."""
    found = tl.full((), 0, tl.uint32)
    bit = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        reach = tl.sum(((keys >= (found | bit)) & here).to(tl.int32), 0)
        found = tl.where(reach >= k, found | bit, found)
        bit = bit >> 1
    return found


@triton.jit
def nucleus(p, here, top_p):
    """p without the codes that the likelier ones leave no room for; among equals the first stay."""
    keys = ordered(p)
    last = tl.full((), 0, tl.uint32)  # the largest key above which there is top_p
    bit = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        above = tl.sum(tl.where(keys > (last | bit), p, 0.0), 0)
        last = tl.where(above >= top_p, last | bit, last)
        bit = bit >> 1
    kept = here & (keys > last) & (p > 0)
    least = tl.min(tl.where(kept, p, 2.0), 0)
    equal = kept & (p == least)
    ahead = tl.sum(tl.where(kept & (p > least), p, 0.0), 0)
    rank = (tl.cumsum(equal.to(tl.int32), 0) - 1).to(tl.float32)
    kept = kept & ((p > least) | (ahead + rank * least < top_p))
    p = tl.where(kept, p, 0.0)
    return p / tl.sum(p, 0)


@triton.jit
def sample_rows(
    logits, uniform, p_out, codes, vocab, draws, groups, uniform_b, uniform_n,
    temperature, top_k, top_p, below_one,
    NUCLEUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). logits and p_out [rows, V]; codes [rows, draws]; uniform by image (`groups` rows
    each) and row."""
    row = tl.program_id(0).to(tl.int64)
    y = tl.arange(0, BLOCK)
    here = y < vocab
    x = tl.load(logits + row * vocab + y, mask=here, other=float("-inf")) / temperature
    kept = here
    if top_k > 0:
        keys = ordered(x)
        kept = here & ((keys >= threshold(keys, here, top_k)) | (x != x))  # NaN stays: it is told
    x = tl.where(kept, x, float("-inf"))
    mass = tl.where(kept, tl.exp(x - tl.max(x, 0)), 0.0)
    p = mass / tl.sum(mass, 0)
    if NUCLEUS:
        p = nucleus(p, here, top_p)
    tl.store(p_out + row * vocab + y, p, mask=here)
    uniform += (row // groups) * uniform_b + (row % groups) * uniform_n
    for j in range(draws):
        cdf = tl.cumsum(p, 0)
        u = tl.minimum(tl.load(uniform + j), below_one)
        total = tl.sum(tl.where(y == vocab - 1, cdf, 0.0), 0)
        hit = tl.min(tl.where((p > 0) & (cdf > u * total), y, BLOCK), 0)
        final = tl.max(tl.where(p > 0, y, -1), 0)
        final = tl.where(final < 0, vocab - 1, final)
        code = tl.where(hit < BLOCK, hit, final)
        tl.store(codes + row * draws + j, code.to(tl.int64))
        p = tl.where(y == code, 0.0, p)
        left = tl.sum(p, 0)
        p = tl.where(left > 0, p / tl.maximum(left, 1e-30), 0.0)
