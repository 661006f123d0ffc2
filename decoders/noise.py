"""An image's randomness: a function of (seed, prompt, position, purpose, round) alone.

Every decoder reads the same numbers, so a result does not depend on batch size, sharding, order or
device, and AR and speculative runs of one prompt share their noise. The numbers are made by a
counter generator (`decoders.philox`), whose key is a hash of seed and prompt.

A purpose is a range of slots: `ACCEPT_SLOT + j` tests the j-th child. Decoders that decide once at
a position read round 0, a table. A uniform that decided something is never used again, so a decoder
that comes back to a position reads a later round. A loop of steps counts them in `Noise.round`:

* Node by node, a position's uniforms are used by exactly one visited decision. Drafts past a
  rejected position are drawn again with the same numbers. That is sound: nothing decided before
  depended on them. It stays sound only if a drafter's distribution at a position does not depend on
  drafts that were rejected there or behind it in earlier steps: it may read the committed codes and
  the draft's own path, and nothing else (the gate compares it at one prefix after different
  rejected drafts).
* A verifier whose decision depends on positions that it leaves open says `resamples_noise`. The
  loop then writes the numbers of the round over the table, so that drafts and tests of a step are
  all new.
* A proposer that decides a position again in every step (the couplings of Jacobi decoding) asks for
  the round: ``noise.at(positions, COUPLE_SLOT, 1, noise.round[:, None])``.

Gumbel rows have the distribution of -log(-log u), independent of all uniforms.

On one core, the table of 1,024 codes costs 0.7 ms per image, 64 uniforms of a later round 0.2 ms,
and 64 Gumbel rows of 1,024 codes 2 ms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError
from decoders.philox import gumbels, uniforms, words

MAX_CHILDREN = 16
OVERRUN = 64  # positions past the image's end that a tree may reach
TARGET_SLOT = 0  # the code sampled from the target or from the residual
ACCEPT_SLOT = 1  # + j: acceptance test of the j-th child
DRAFT_SLOT = 1 + MAX_CHILDREN  # + j: the drafter's j-th draw
SLOTS = 1 + 2 * MAX_CHILDREN  # slots of the table; those from here on are made when asked for
COUPLE_SLOT = (
    SLOTS  # + j: the coupling that replaces the j-th draft of a position (decoders.md (c))
)
PAIR_SLOT = COUPLE_SLOT + MAX_CHILDREN  # whether the node that decides a position is recorded
PLUGIN_SLOT = 64  # + any number below NODE_SLOT: a plug-in's own purposes
NODE_SLOT = 2**12  # times one more than a slot of the table: that purpose, node by node
BELOW_ONE = 1.0 - 2.0**-23
BLOCK = 128  # codes whose sums are made together on a GPU
PART = 2**15, 2**20  # blocks made at once on the CPU and elsewhere: what caches and memory hold


@dataclass(frozen=True)
class Noise:
    """The noise of B images.

    uniform [B, L + OVERRUN, SLOTS] float32 in [0, 1): round 0 of the slots below SLOTS (see `renew`
    for later ones). key [B, 2] int64: two 32-bit words an image; None for a table given by hand,
    which has no other numbers. round [B] int64: steps that each image has taken, 0 in its first;
    None outside of a loop of steps. renewed: whether the loop writes every round over the table.
    """

    uniform: Tensor
    key: Tensor | None = None
    round: Tensor | None = None
    renewed: bool = False

    @staticmethod
    def for_prompts(seed: int, prompts: list[str], length: int) -> Noise:
        """One row per prompt. `length` is L."""
        if not prompts:
            raise DecoderError("noise for no prompts: expected at least one")
        return Noise.of_keys(torch.stack([image_key(seed, p) for p in prompts]), length)

    @staticmethod
    def of_keys(key: Tensor, length: int) -> Noise:
        """One row per key; key [B, 2] int64 in [0, 2**32), `length` is L."""
        position = torch.arange(length + OVERRUN, device=key.device).expand(len(key), -1)
        return Noise(_drawn(key, position, 0, (0, SLOTS), 0, uniforms), key)

    def to(self, device: torch.device) -> Noise:
        return Noise(self.uniform.to(device), None if self.key is None else self.key.to(device))

    def rows(self, images: Sequence[int] | slice) -> Noise:
        """That of some of the images, outside of a loop."""
        return Noise(self.uniform[images], None if self.key is None else self.key[images])

    def stepping(self, steps: Tensor, renewed: bool) -> Noise:
        """The noise of a loop that counts its steps in `steps`, [B] int64, in place. Its numbers
        are copied: `renew` and a captured step write others over them."""
        key = None if self.key is None else self.key.clone()
        return replace(self, uniform=self.uniform.clone(), key=key, round=steps, renewed=renewed)

    def renew(self, position: Tensor) -> None:
        """Writes the numbers of this round over the table at position [B, n], in all slots but
        TARGET_SLOT: a position's last code is drawn once, with the number that AR draws it with.

        Raises DecoderError for a table given by hand.
        """
        assert self.round is not None, "only the noise of a loop's steps has rounds"
        index = position.clamp_max(self.uniform.shape[1] - 1)  # [B, n]
        span = ACCEPT_SLOT, SLOTS - ACCEPT_SLOT
        drawn = _drawn(self._key(), index, self.round[:, None], span, 0, uniforms)
        index = index[..., None].expand(-1, -1, span[1])  # [B, n, slots]
        self.uniform[..., ACCEPT_SLOT:].scatter_(1, index, drawn)

    def at(self, position: Tensor, slot: int, count: int = 1, round: int | Tensor = 0) -> Tensor:
        """position [B, ...] -> [B, ..., count] uniforms of slots slot..slot+count-1.

        round: a number, or int64 that broadcasts to position's shape (a captured step needs a
        tensor). Round 0 of the table's slots is read there, up to the table's last position. Raises
        DecoderError where a table given by hand has no such number.
        """
        if slot + count > SLOTS or not (isinstance(round, int) and round == 0):
            return _drawn(self._key(), position, round, (slot, count), 0, uniforms)
        index = position.clamp_max(self.uniform.shape[1] - 1)
        if index.ndim != 2:
            index = index.reshape(len(index), -1)  # [B, n]
        index = index[..., None].expand(-1, -1, count)  # [B, n, count]
        picked = self.uniform.narrow(2, slot, count).gather(1, index)
        return picked if position.ndim == 2 else picked.view(*position.shape, count)

    def of_nodes(self, position: Tensor, slot: int, nodes: int, count: int) -> Tensor:
        """Numbers of `nodes` nodes that share a position: position [B] -> [B, nodes or 1, count].

        Judged node by node, only one of a level's nodes is visited, so all share one row. A
        verifier that looks ahead judges all of them, so each has a row of its own, of this round.
        """
        if nodes == 1 or not self.renewed:
            return self.at(position, slot, count)[:, None]
        assert self.round is not None, "only the noise of a loop's steps is renewed"
        drawn = self.at(position, NODE_SLOT * (1 + slot), nodes * count, self.round)
        return drawn.unflatten(-1, (nodes, count))

    def gumbel(
        self, position: Tensor, vocab: int, slot: int = TARGET_SLOT, round: int | Tensor = 0
    ) -> Tensor:
        """position [B, ...] -> [B, ..., V] float32, independent standard Gumbel numbers: argmax(log
        p + them) has the distribution p. A slot's rows are independent of other slots' and of all
        uniforms.

        Needs float64 (CPU, CUDA). Raises DecoderError for a table given by hand.
        """
        return _drawn(self._key(), position, round, (0, vocab), 1 + slot, gumbels)

    def _key(self) -> Tensor:
        if self.key is None:
            raise DecoderError(
                f"this noise is a table given by hand: it has slots 0..{SLOTS - 1} of round 0, and "
                "no Gumbel rows; make it with Noise.for_prompts or Noise.of_keys"
            )
        return self.key


def image_key(seed: int, prompt: str) -> Tensor:
    """[2] int64: two 32-bit words of SHA-256 of seed and prompt."""
    digest = hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()
    return torch.tensor([int.from_bytes(digest[i : i + 4], "big") for i in (0, 4)])


def _drawn(
    key: Tensor,
    position: Tensor,
    round: int | Tensor,
    span: tuple[int, int],
    domain: int,
    numbers: Callable[[Tensor], Tensor],
) -> Tensor:
    """Numbers made of the words span[0], ..., span[0] + span[1] - 1 of every position: [B, ...,
    span[1]].

    domain: 0 for uniforms, 1 + slot for the Gumbel rows of a slot.
    """
    first, count = span
    begin = first % 4
    blocks = torch.arange(first // 4, (first + count + 3) // 4, device=key.device)
    if not isinstance(round, Tensor):
        round = torch.full((), round, device=key.device)
    flat = position.reshape(len(key), -1)  # [B, n]
    turn = round.expand(position.shape).reshape(flat.shape)  # [B, n]
    most = PART[int(key.device.type != "cpu")]
    size = max(1, most // (len(key) * len(blocks)))  # positions of a part
    parts = [
        numbers(words(key, here, now, blocks, domain)[..., begin : begin + count])
        for here, now in zip(flat.split(size, 1), turn.split(size, 1), strict=True)
    ]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)  # [B, n, count]
    return whole.view(*position.shape, count)


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Inverse-CDF sample: p [..., V] float32 (need not sum to one), u [...] in [0, 1) -> [...]
    int64.

    Never returns a code of probability zero, unless all are. Where sums run in parallel they may
    differ by a rounding between codes of probability zero, so there these are left out.
    """
    return inverse_cdf(p, u.clamp_max(BELOW_ONE)[..., None]).squeeze(-1)


def inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """The first code at which the running sum of p exceeds u times the whole sum.

    p [..., V] float32; u [..., 1], at most BELOW_ONE, whose other dims broadcast to p's -> [..., 1]
    int64.
    """
    size = p.shape[-1]
    if p.device.type != "cpu":
        cdf = sums_of_blocks(p)
        return first_above(p, cdf, u * cdf.narrow(-1, size - 1, 1))[..., None]
    cdf = p.cumsum(-1)
    threshold = u * cdf.narrow(-1, size - 1, 1)
    return torch.searchsorted(cdf, threshold, right=True).clamp_max_(size - 1)


def sums_of_blocks(p: Tensor) -> Tensor:
    """`p.cumsum(-1)`, summed within blocks of codes first: many short scans fill a GPU, and PyTorch
    2.11 does not compile a long one next to a reduction."""
    size = p.shape[-1]
    blocks = F.pad(p, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))  # [..., V / BLOCK, BLOCK]
    within = blocks.cumsum(-1)
    before = F.pad(within[..., -1].cumsum(-1), (1, -1))  # [..., V / BLOCK]
    return (within + before[..., None]).flatten(-2)[..., :size]


def first_above(p: Tensor, cdf: Tensor, threshold: Tensor) -> Tensor:
    """The first code of positive probability whose sum exceeds the threshold [..., 1] -> [...]; the
    last one of positive probability where rounding leaves none, V - 1 where all are zero."""
    codes = torch.arange(p.shape[-1], device=p.device)
    possible = p > 0
    hit = torch.where(possible & (cdf > threshold), codes, p.shape[-1]).amin(-1)
    last = torch.where(possible, codes, -1).amax(-1)
    last = torch.where(last < 0, p.shape[-1] - 1, last)
    return torch.where(hit < p.shape[-1], hit, last)
