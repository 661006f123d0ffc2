"""The device program of `decoders.kernels.relaxed`; import it through that module.

One program per (row, node) tests the node's children one after the other. The distribution at hand
lives in a buffer and a scale, so that a rejection costs one pass over the codes: it reads the old
buffer, writes the residual to the other and adds it up. Codes that were admitted to A(x) are marked
by their sign: p_A is zero there, and a negative entry has no positive part left after - q. Should
nothing at all be left, the marks are taken off again and the old distribution stays.
"""

# Triton reads a program's annotations itself; parameters here are pointers, numbers or constexpr.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def admit(p, near, p_scale, limit, k, NEAR: tl.constexpr):
    """A(x): the longest prefix of the k codes at `near` whose mass stays within `limit`.

    Marks them in p by their sign and returns their mass.
    """
    ahead = tl.full((), 0.0, tl.float32)
    mass = tl.full((), 0.0, tl.float32)
    end = tl.full((), 0, tl.int32) + k  # the first that does not fit
    for start in range(0, k, NEAR):
        c = start + tl.arange(0, NEAR)
        inside = c < k
        y = tl.load(near + c, mask=inside, other=0)
        raw = tl.load(p + y, mask=inside, other=0.0)
        own = raw * p_scale
        over = inside & (ahead + tl.cumsum(own, 0) > limit)
        end = tl.minimum(end, tl.min(tl.where(over, c, k), 0))
        taken = inside & (c < end)
        mass += tl.sum(tl.where(taken, own, 0.0), 0)
        tl.store(p + y, -raw, mask=taken)
        ahead += tl.sum(own, 0)
    return mass


@triton.jit
def reject(p, to, q, x, at_x, p_scale, q_scale, vocab, HAS_Q: tl.constexpr, BLOCK: tl.constexpr):
    """(p_A - q)+ from p to `to`, and q without x in place -> what is left of the two.

    p's admitted codes are negative; at_x is p_A(x). Without q the residual is p_A without x.
    """
    left = tl.zeros([BLOCK], tl.float32)
    q_left = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        y = start + tl.arange(0, BLOCK)
        inside = y < vocab
        here = tl.load(p + y, mask=inside, other=0.0) * p_scale
        if HAS_Q:
            raw = tl.load(q + y, mask=inside, other=0.0)
            here = tl.where(y == x, at_x, here) - raw * q_scale
            q_left += tl.where(y == x, 0.0, raw)
            tl.store(q + y, tl.zeros([BLOCK], tl.float32), mask=y == x)
        else:
            here = tl.where(y == x, 0.0, here)
        here = tl.where(inside, tl.maximum(here, 0.0), 0.0)
        tl.store(to + y, here, mask=inside)
        left += here
    return tl.sum(left, 0), tl.sum(q_left, 0)


@triton.jit
def unmark(p, vocab, BLOCK: tl.constexpr):
    """Takes the signs off."""
    for start in range(0, vocab, BLOCK):
        y = start + tl.arange(0, BLOCK)
        tl.store(p + y, tl.abs(tl.load(p + y, mask=y < vocab, other=0.0)), mask=y < vocab)


@triton.jit
def copied(source, to, vocab, scale, BLOCK: tl.constexpr):
    """source * scale to `to` -> their sum."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        y = start + tl.arange(0, BLOCK)
        value = tl.load(source + y, mask=y < vocab, other=0.0) * scale
        tl.store(to + y, value, mask=y < vocab)
        total += value
    return tl.sum(total, 0)


@triton.jit
def drawn(p, threshold, vocab, BLOCK: tl.constexpr):
    """The first code whose cumulative probability exceeds `threshold`; never one of probability
    zero, whatever the rounding of the sums, unless all are."""
    ahead = tl.full((), 0.0, tl.float32)
    best = tl.full((), 0, tl.int32) + vocab
    final = tl.full((), -1, tl.int32)
    for start in range(0, vocab, BLOCK):
        y = start + tl.arange(0, BLOCK)
        own = tl.load(p + y, mask=y < vocab, other=0.0)
        hit = (own > 0) & (ahead + tl.cumsum(own, 0) > threshold)
        best = tl.minimum(best, tl.min(tl.where(hit, y, vocab), 0))
        final = tl.maximum(final, tl.max(tl.where(own > 0, y, -1), 0))
        ahead += tl.sum(own, 0)
    final = tl.where(final < 0, vocab - 1, final)
    return tl.where(best < vocab, best, final)


@triton.jit
def tested(
    p, q, x, table, columns, k, bound_value, p_scale, q_scale,
    KIND: tl.constexpr, HAS_Q: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """One child x against the distribution at hand -> accept, strict, the mass that was moved onto
    x, the bound on it, p_A(x). Marks A(x) in p."""
    mass = tl.full((), 0.0, tl.float32)
    bound = tl.full((), 0.0, tl.float32)
    tl.debug_barrier()  # the last pass's stores, now seen by all threads
    p_x = tl.load(p + x) * p_scale
    if KIND == 1:
        bound += bound_value
    elif KIND == 2:
        bound = bound_value * p_x
    if KIND != 0:
        mass = admit(p, table + x * columns, p_scale, bound, k, NEAR)
    accept = p_x + mass
    strict = p_x
    if HAS_Q:
        q_x = tl.load(q + x) * q_scale
        accept = tl.where(q_x > 0, accept / tl.maximum(q_x, 1e-30), 0.0)
        strict = tl.where(q_x > 0, strict / tl.maximum(q_x, 1e-30), 0.0)
    tl.debug_barrier()  # marks, seen by all threads; everyone has read q(x)
    return accept, strict, mass, bound, p_x + mass


@triton.jit
def judge(
    p, q, codes, valid, table, uniform, buffers, verdicts, samples,
    rows, vocab, children, k, columns, bound_value, below_one,
    KIND: tl.constexpr, HAS_Q: tl.constexpr, SAMPLE: tl.constexpr, NEAR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). KIND 0: exact, 1: bound_value is delta, 2: it is lambda - 1.

    buffers [2 or 3, rows, V]: the residual, a spare one, the drafter's distribution; verdicts [4,
    rows, K]: accept, strict, moved, bound.
    """
    row = tl.program_id(0).to(tl.int64)
    plane = tl.full((), 1, tl.int64) * rows * vocab
    residual = buffers + row * vocab
    own_q = residual + 2 * plane
    codes += row * children
    valid += row * children
    verdicts += row * children
    step = tl.full((), 1, tl.int64) * rows * children
    zero = tl.full((), 0.0, tl.float32)
    one = tl.full((), 1.0, tl.float32)
    copied(p + row * vocab, residual, vocab, one, BLOCK)
    if HAS_Q:
        copied(q + row * vocab, own_q, vocab, one, BLOCK)
    here = plane * 0  # which of the first two buffers holds the distribution at hand
    p_scale = one
    q_scale = one
    for j in range(children):
        accept = zero
        strict = zero
        mass = zero
        bound = zero
        if tl.load(valid + j) != 0:
            x = tl.load(codes + j)
            accept, strict, mass, bound, at_x = tested(
                residual + here, own_q, x, table, columns, k, bound_value, p_scale, q_scale,
                KIND, HAS_Q, NEAR,
            )  # fmt: skip
            left, q_left = reject(
                residual + here, residual + (plane - here), own_q, x, at_x, p_scale, q_scale,
                vocab, HAS_Q, BLOCK,
            )  # fmt: skip
            if left > 0:
                here = plane - here
                p_scale = 1.0 / tl.maximum(left, 1e-30)
            else:
                unmark(residual + here, vocab, BLOCK)
            if HAS_Q:
                q_scale = 1.0 / tl.maximum(q_left, 1e-30)
        tl.store(verdicts + j, tl.minimum(accept, 1.0))
        tl.store(verdicts + step + j, tl.minimum(strict, 1.0))
        tl.store(verdicts + 2 * step + j, mass)
        tl.store(verdicts + 3 * step + j, tl.minimum(bound, 1.0))
    tl.debug_barrier()
    total = copied(residual + here, residual, vocab, p_scale, BLOCK)
    if SAMPLE:
        tl.debug_barrier()
        u = tl.minimum(tl.load(uniform + row), below_one)
        tl.store(samples + row, drawn(residual, u * total, vocab, BLOCK).to(tl.int64))
