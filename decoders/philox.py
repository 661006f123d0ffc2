"""Random bits as a function of a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC 2011), and a logarithm that rounds alike everywhere.

Why: a generator with a state gives other numbers in another order of calls; a function of a counter
does not. Only int64 products, shifts and xors are used, whose bits are the same on every device.
The same lines run on tensors and on numpy's arrays, which cost half of the time at a few words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Words = Any  # an int64 tensor or numpy array of 32-bit words; shapes broadcast
Block = tuple[Words, Words, Words, Words]

ROUNDS = 10
LOW = 2**32 - 1
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85  # added to the key after every round


def philox(counter: Block, key: tuple[Words, Words]) -> Block:
    """Four random words of a counter of four words and a key of two."""
    a, b, c, d = counter
    for i in range(ROUNDS):
        first, second = key[0] + i * STEPS[0], key[1] + i * STEPS[1]
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # the bits of the unsigned products
        a = ((right >> 32) ^ b ^ first) & LOW
        c = ((left >> 32) ^ d ^ second) & LOW
        b, d = right, left  # what lies above 32 bits is cut when it matters
    return a, b & LOW, c, d & LOW


def words(key: Tensor, position: Tensor, turn: Tensor, blocks: Tensor, domain: int) -> Tensor:
    """Words of the counters (block, position, domain, turn), 4 a block: key [B, 2], position and
    turn [B, n], blocks [m], all int64 below 2**32 -> [B, n, 4 m] int64."""
    given: list[Words] = [
        (blocks & LOW)[None, None],  # [1, 1, m]; masked, or Inductor takes an arange for int32
        position[..., None],  # [B, n, 1]
        torch.full_like(blocks[:1], domain)[None, None],  # [1, 1, 1]
        turn[..., None],
        key[:, None, :1],  # [B, 1, 1]
        key[:, None, 1:],
    ]
    arrays = position.device.type == "cpu" and not torch.compiler.is_compiling()
    a, b, c, d, first, second = [t.numpy() for t in given] if arrays else given
    output = philox((a, b, c, d), (first, second))
    whole = [torch.from_numpy(w) for w in output] if arrays else [*output]
    return torch.stack(whole, -1).flatten(2)  # [B, n, m, 4] -> [B, n, 4 m]


# ---- distributions
# ---------------------------------------------------------------------------------------


def uniforms(drawn: Tensor) -> Tensor:
    """32-bit words -> their 24 high bits times 2**-24: float32 in [0, 1), exact."""
    return (drawn >> 8).float() * 2.0**-24


def gumbels(drawn: Tensor) -> Tensor:
    """32-bit words -> -log(-log u), u = (word + 1/2) / 2**32: float32."""
    return -logarithm(-logarithm((drawn.double() + 0.5) * 2.0**-32)).float()


SPAN = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2) in float64: mantissas are taken from there on
FRACTION = 2**52 - 1
LN2 = float.fromhex("0x1.62e42fefa39p-1")  # 45 bits: times an exponent it is exact


def logarithm(x: Tensor) -> Tensor:
    """ln x of positive normal float64, to 1e-11 of its value.

    The libraries' logarithms differ in the last bit from device to device. This one is made of
    sums, products and quotients, each rounded in one way by IEEE 754. No product is added to
    anything unless it is exact, so that a fused multiply-add changes nothing either.
    With x = 2**e m and s = (1 - m) / (1 + m): ln m = -2 artanh s, and 2 artanh s is the continued
    fraction 2s / (1 - t / (3 - t / (5/4 - t / (28/9 - t / (81/64 - ...))))), t = s**2 <= 0.0295.
    """
    bits = x.view(torch.int64) - SPAN
    m = (bits & FRACTION).add_(SPAN).view(torch.float64)  # in [sqrt(1/2), sqrt(2))
    s = (1 - m).div_(m.add_(1))
    t = (s * s).neg_()
    d = (t * 0.25).add_(81 / 64)
    for constant in (28 / 9, 5 / 4, 3, 1):
        d = (t / d).add_(constant)
    return (bits >> 52).double().mul_(LN2).sub_(s.add_(s).div_(d))
