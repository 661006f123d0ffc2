"""An image's randomness: a function of (seed, prompt, position, purpose, round) alone.

Every decoder reads the same numbers, so a result does not depend on batch size, sharding, order or
device, and AR and speculative runs of one prompt share their noise. The numbers come from a counter
(`philox`), whose key is a hash of seed and prompt.

A purpose is a range of slots: `ACCEPT_SLOT + j` tests the j-th child. Decoders that decide once at
a position read round 0, a table. A uniform that decided something is never used again, so a decoder
that comes back to a position reads a later round. A loop of steps counts them in `Noise.round`:

* Node by node, a position's uniforms are used by exactly one visited decision. Drafts past a
  rejected position are drawn again with the same numbers: nothing decided before depended on them.
  That stays sound only if a drafter's distribution at a position reads the committed codes and the
  draft's own path, and nothing else (the gate compares it after different rejected drafts).
* A verifier whose decision depends on positions that it leaves open says `resamples_noise`. The
  loop then writes the numbers of the round over the table: drafts and tests of a step are new.
* A proposer that decides a position again in every step (the couplings of Jacobi decoding) asks for
  the round: ``noise.at(positions, COUPLE_SLOT, 1, noise.round[:, None])``.

On one core, the table of 1,024 codes costs 0.7 ms per image, 64 uniforms of a later round 0.2 ms,
and 64 Gumbel rows of 1,024 codes 2 ms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError

MAX_CHILDREN = 16
OVERRUN = 64  # positions past the image's end that a tree may reach
TARGET_SLOT = 0  # the code sampled from the target or from the residual
ACCEPT_SLOT = 1  # + j: acceptance test of the j-th child
DRAFT_SLOT = 1 + MAX_CHILDREN  # + j: the drafter's j-th draw
SLOTS = 1 + 2 * MAX_CHILDREN  # slots of the table; those from here on are made when asked for
COUPLE_SLOT = SLOTS  # + j: the coupling in place of a position's j-th draft (decoders.md (c))
PAIR_SLOT = COUPLE_SLOT + MAX_CHILDREN  # whether the node that decides a position is recorded
PLUGIN_SLOT = 64  # + any number below NODE_SLOT: a plug-in's own purposes
NODE_SLOT = 2**12  # times one more than a slot of the table: that purpose, node by node
BELOW_ONE = 1.0 - 2.0**-23
SCAN_CODES = 128  # codes whose sums are made together on a GPU
COUNTERS_AT_ONCE = 2**15, 2**20  # on the CPU and elsewhere: what caches and memory hold


@dataclass(frozen=True)
class Noise:
    """The noise of B images. uniform [B, L + OVERRUN, SLOTS] float32 in [0, 1): round 0 of the
    slots below SLOTS. key [B, 2] int64 of 32 bits each; None for a table given by hand, which has
    no other numbers. round [B] int64: steps that each image has taken, from 0; None outside of a
    loop of steps. renewed: whether the loop writes every round over the table."""

    uniform: Tensor
    key: Tensor | None = None
    round: Tensor | None = None
    renewed: bool = False

    @staticmethod
    def for_prompts(seed: int, prompts: list[str], length: int) -> Noise:
        """Makes one row per prompt, whose key is of SHA-256 of seed and prompt; `length` is L."""
        if not prompts:
            raise DecoderError("noise for no prompts: expected at least one")
        hashes = [hashlib.sha256(f"{seed}\n{prompt}".encode()).digest() for prompt in prompts]
        keys = [[int.from_bytes(h[i : i + 4], "big") for i in (0, 4)] for h in hashes]
        return Noise.of_keys(torch.tensor(keys), length)

    @staticmethod
    def of_keys(key: Tensor, length: int) -> Noise:
        """Makes one row per key; key [B, 2] int64 in [0, 2**32), `length` is L."""
        position = torch.arange(length + OVERRUN, device=key.device).expand(len(key), -1)
        return Noise(_numbers(key, position, 0, 0, SLOTS), key)

    def to(self, device: torch.device) -> Noise:
        return Noise(self.uniform.to(device), None if self.key is None else self.key.to(device))

    def rows(self, images: Sequence[int] | slice) -> Noise:
        """Selects the noise of some of the images, outside of a loop."""
        return Noise(self.uniform[images], None if self.key is None else self.key[images])

    def stepping(self, steps: Tensor, renewed: bool) -> Noise:
        """Returns the noise of a loop that counts its steps in `steps`, [B] int64, in place. Its
        numbers are copied: `renew` and a captured step write others over them."""
        key = None if self.key is None else self.key.clone()
        return replace(self, uniform=self.uniform.clone(), key=key, round=steps, renewed=renewed)

    def renew(self, position: Tensor) -> None:
        """Writes the numbers of this round over the table at position [B, n], in all slots but
        TARGET_SLOT: a position's last code is drawn once, with the number that AR draws it with.
        Raises DecoderError for a table given by hand."""
        assert self.round is not None, "only the noise of a loop's steps has rounds"
        index = position.clamp_max(self.uniform.shape[1] - 1)  # [B, n]
        count = SLOTS - ACCEPT_SLOT
        drawn = _numbers(self._key(), index, self.round[:, None], ACCEPT_SLOT, count)
        index = index[..., None].expand(-1, -1, count)  # [B, n, slots]
        self.uniform[..., ACCEPT_SLOT:].scatter_(1, index, drawn)

    def at(self, position: Tensor, slot: int, count: int = 1, round: int | Tensor = 0) -> Tensor:
        """Reads uniforms of slots slot..slot+count-1: position [B, ...] -> [B, ..., count]. round:
        a number, or int64 that broadcasts to position's shape (a captured step needs a tensor).
        Round 0 of the table's slots is read there, up to the table's last position. Raises
        DecoderError where a table given by hand has no such number."""
        if slot + count > SLOTS or not (isinstance(round, int) and round == 0):
            return _numbers(self._key(), position, round, slot, count)
        index = position.clamp_max(self.uniform.shape[1] - 1)
        if index.ndim != 2:
            index = index.reshape(len(index), -1)  # [B, n]
        index = index[..., None].expand(-1, -1, count)  # [B, n, count]
        picked = self.uniform.narrow(2, slot, count).gather(1, index)
        return picked if position.ndim == 2 else picked.view(*position.shape, count)

    def of_nodes(self, position: Tensor, slot: int, nodes: int, count: int) -> Tensor:
        """Reads uniforms of `nodes` nodes that share position [B] -> [B, nodes or 1, count]. Judged
        node by node, only one of a level's nodes is visited, so all share one row. A verifier that
        looks ahead judges all of them, so each has a row of its own, of this round."""
        if nodes == 1 or not self.renewed:
            return self.at(position, slot, count)[:, None]
        assert self.round is not None, "only the noise of a loop's steps is renewed"
        drawn = self.at(position, NODE_SLOT * (1 + slot), nodes * count, self.round)
        return drawn.unflatten(-1, (nodes, count))

    def gumbel(
        self, position: Tensor, vocab: int, slot: int = TARGET_SLOT, round: int | Tensor = 0
    ) -> Tensor:
        """Makes rows of independent standard Gumbel numbers, -log(-log u): position [B, ...] -> [B,
        ..., V] float32. argmax(log p + row) has the distribution p. A slot's rows are independent
        of other slots' and of all uniforms. Needs float64. Raises DecoderError for a table given by
        hand."""
        return _numbers(self._key(), position, round, 0, vocab, domain=1 + slot)

    def _key(self) -> Tensor:
        if self.key is None:
            raise DecoderError(
                f"this noise is a table given by hand: it has slots 0..{SLOTS - 1} of round 0, and "
                "no Gumbel rows; make it with Noise.for_prompts or Noise.of_keys"
            )
        return self.key


# ---- numbers of a counter -----------------------------------------------------------------------


def _numbers(
    key: Tensor, position: Tensor, round: int | Tensor, first: int, count: int, domain: int = 0
) -> Tensor:
    """Makes the numbers first, ..., first + count - 1 of every position, [B, ..., count] float32.
    domain: 0 for uniforms in [0, 1), 1 + slot for the Gumbel rows of a slot."""
    blocks = torch.arange(first // 4, (first + count + 3) // 4, device=key.device)  # [m]
    if not isinstance(round, Tensor):
        round = torch.full((), round, device=key.device)
    flat = position.reshape(len(key), -1)  # [B, n]
    turn = round.expand(position.shape).reshape(flat.shape)  # [B, n]
    most = COUNTERS_AT_ONCE[int(key.device.type != "cpu")]
    size = max(1, most // (len(key) * len(blocks)))  # positions of a part
    parts = []
    for here, now in zip(flat.split(size, 1), turn.split(size, 1), strict=True):
        bits = random_bits(key, here, now, blocks, domain)
        bits = bits[..., first % 4 : first % 4 + count]  # [B, n, count]
        if domain == 0:
            parts.append((bits >> 8).float() * 2.0**-24)  # 24 bits: exact
        else:
            u = (bits.double() + 0.5) * 2.0**-32
            parts.append(-logarithm(-logarithm(u)).float())
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)  # [B, n, count]
    return whole.view(*position.shape, count)


def random_bits(key: Tensor, position: Tensor, turn: Tensor, blocks: Tensor, domain: int) -> Tensor:
    """Computes 32-bit numbers of the counters (block, position, domain, turn), 4 per block: key [B,
    2], position and turn [B, n], blocks [m], all int64 below 2**32 -> [B, n, 4 m] int64. On the CPU
    it computes with numpy's arrays, which take half of the time for a few numbers."""
    counter_and_key: list[Any] = [
        (blocks & LOW_32_BITS)[
            None, None
        ],  # [1, 1, m]; masked, or Inductor takes an arange for int32
        position[..., None],  # [B, n, 1]
        torch.full_like(blocks[:1], domain)[None, None],  # [1, 1, 1]
        turn[..., None],
        key[:, None, :1],  # [B, 1, 1]
        key[:, None, 1:],
    ]
    arrays = position.device.type == "cpu" and not torch.compiler.is_compiling()
    a, b, c, d, first, second = [t.numpy() for t in counter_and_key] if arrays else counter_and_key
    output = philox((a, b, c, d), (first, second))
    whole = [torch.from_numpy(bits) for bits in output] if arrays else [*output]
    return torch.stack(whole, -1).flatten(2)  # [B, n, m, 4] -> [B, n, 4 m]


PHILOX_ROUNDS = 10
LOW_32_BITS = 2**32 - 1
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85  # added to the key after every round


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Computes four random 32-bit numbers of a counter of four and a key of two: Philox4x32-10
    (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). All are int64 tensors
    or numpy arrays whose shapes broadcast; products, shifts and xors have the same bits on every
    device."""
    a, b, c, d = counter
    for i in range(PHILOX_ROUNDS):
        first, second = key[0] + i * INCREMENTS[0], key[1] + i * INCREMENTS[1]
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # the bits of the unsigned products
        a = ((right >> 32) ^ b ^ first) & LOW_32_BITS
        c = ((left >> 32) ^ d ^ second) & LOW_32_BITS
        b, d = right, left  # what lies above 32 bits is cut when it matters
    return a, b & LOW_32_BITS, c, d & LOW_32_BITS


SQRT_HALF_BITS = (
    0x3FE6A09E667F3BCD  # bits of sqrt(1/2) in float64: mantissas are taken from there on
)
FRACTION_BITS = 2**52 - 1
LN2 = float.fromhex("0x1.62e42fefa39p-1")  # 45 bits: times an exponent it is exact


def logarithm(x: Tensor) -> Tensor:
    """Computes ln x of positive normal float64, to 1e-11 of its value, alike on every device.

    The libraries' logarithms differ in the last bit. This one is made of sums, products and
    quotients, each rounded in one way by IEEE 754. No product is added to anything unless it is
    exact, so that a fused multiply-add changes nothing. With x = 2**e m and s = (1 - m) / (1 + m):
    ln m = -2 artanh s, and 2 artanh s is the continued fraction 2s / (1 - t / (3 - t / (5/4 - t /
    (28/9 - t / (81/64 - ...))))), t = s**2 <= 0.0295.
    """
    bits = x.view(torch.int64) - SQRT_HALF_BITS
    m = (bits & FRACTION_BITS).add_(SQRT_HALF_BITS).view(torch.float64)  # in [sqrt(1/2), sqrt(2))
    s = (1 - m).div_(m.add_(1))
    t = (s * s).neg_()
    d = (t * 0.25).add_(81 / 64)
    for constant in (28 / 9, 5 / 4, 3, 1):
        d = (t / d).add_(constant)
    return (bits >> 52).double().mul_(LN2).sub_(s.add_(s).div_(d))


# ---- sampling -----------------------------------------------------------------------------------


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Samples by the inverse CDF: p [..., V] float32 (need not sum to one), u [...] in [0, 1) ->
    [...] int64. Never returns a code of probability zero, unless all are. Where sums run in
    parallel they may differ by a rounding between codes of probability zero, so there these are
    left out."""
    return inverse_cdf(p, u.clamp_max(BELOW_ONE)[..., None]).squeeze(-1)


def inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """Finds the first code at which the running sum of p exceeds u times the whole sum. p [..., V]
    float32; u [..., 1], at most BELOW_ONE, whose other dims broadcast to p's -> [..., 1] int64."""
    size = p.shape[-1]
    if p.device.type != "cpu":
        cdf = sums_of_blocks(p)
        return first_above(p, cdf, u * cdf.narrow(-1, size - 1, 1))[..., None]
    cdf = p.cumsum(-1)
    threshold = u * cdf.narrow(-1, size - 1, 1)
    return torch.searchsorted(cdf, threshold, right=True).clamp_max_(size - 1)


def sums_of_blocks(p: Tensor) -> Tensor:
    """Computes `p.cumsum(-1)`, within blocks of codes first: many short scans fill a GPU, and
    PyTorch 2.11 does not compile a long one next to a reduction."""
    size = p.shape[-1]
    blocks = F.pad(p, (0, -size % SCAN_CODES)).unflatten(-1, (-1, SCAN_CODES))  # [..., n, 128]
    within = blocks.cumsum(-1)
    before = F.pad(within[..., -1].cumsum(-1), (1, -1))  # [..., n]
    return (within + before[..., None]).flatten(-2)[..., :size]


def first_above(p: Tensor, cdf: Tensor, threshold: Tensor) -> Tensor:
    """Finds the first code of positive probability whose sum exceeds the threshold [..., 1] ->
    [...]; the last such code where rounding leaves none, V - 1 where all are zero."""
    codes = torch.arange(p.shape[-1], device=p.device)
    possible = p > 0
    hit = torch.where(possible & (cdf > threshold), codes, p.shape[-1]).amin(-1)
    last = torch.where(possible, codes, -1).amax(-1)
    last = torch.where(last < 0, p.shape[-1] - 1, last)
    return torch.where(hit < p.shape[-1], hit, last)
