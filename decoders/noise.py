"""An image's randomness: uniforms that are a function of (seed, prompt, position, purpose) alone.

Every decoder reads the same table, so a result does not depend on batch size, sharding or order,
and AR and speculative runs of one prompt share their noise. A position's uniforms are used by
exactly one visited decision: drafts past a rejected position are drawn again with the same
numbers, which is sound because nothing that was decided before depended on them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import DecoderError

MAX_CHILDREN = 16
OVERRUN = 64  # positions past the image's end that a tree may reach
TARGET_SLOT = 0  # the code sampled from the target or from the residual
ACCEPT_SLOT = 1  # + j: acceptance test of the j-th child
DRAFT_SLOT = 1 + MAX_CHILDREN  # + j: the drafter's j-th draw
SLOTS = 1 + 2 * MAX_CHILDREN
BELOW_ONE = 1.0 - 2.0**-23


@dataclass(frozen=True)
class Noise:
    """uniform [B, L + OVERRUN, SLOTS] float32 in [0, 1)."""

    uniform: Tensor

    @staticmethod
    def for_prompts(seed: int, prompts: list[str], length: int) -> Noise:
        """One row a prompt. `length` is L."""
        rows = [_table(seed, prompt, length) for prompt in prompts]
        if not rows:
            raise DecoderError("noise for no prompts: expected at least one")
        return Noise(torch.stack(rows))

    def to(self, device: torch.device) -> Noise:
        return Noise(self.uniform.to(device))

    def at(self, position: Tensor, slot: int, count: int = 1) -> Tensor:
        """position [B, ...] -> [B, ..., count] uniforms of slots slot..slot+count-1."""
        batch, last = position.shape[0], self.uniform.shape[1] - 1
        flat = position.clamp_max(last).reshape(batch, -1)  # [B, n]
        index = flat[..., None].expand(-1, -1, count)  # [B, n, count]
        picked = self.uniform[:, :, slot : slot + count].gather(1, index)
        return picked.view(*position.shape, count)


def _table(seed: int, prompt: str, length: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.rand(length + OVERRUN, SLOTS, generator=generator)


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Inverse-CDF sample: p [..., V] float32 (need not sum to one), u [...] in [0, 1) -> [...]
    int64.

    Never returns a code of probability zero, unless all are. Where sums run in parallel they may
    differ by a rounding between codes of probability zero, so there these are left out.
    """
    cdf = p.cumsum(-1)
    threshold = u.clamp_max(BELOW_ONE)[..., None] * cdf[..., -1:]
    if p.device.type != "cpu":
        return first_above(p, cdf, threshold)
    return torch.searchsorted(cdf, threshold, right=True).squeeze(-1).clamp_max_(p.shape[-1] - 1)


def first_above(p: Tensor, cdf: Tensor, threshold: Tensor) -> Tensor:
    """The first code of positive probability whose sum exceeds the threshold [..., 1] -> [...]; the
    last one of positive probability where rounding leaves none, V - 1 where all are zero."""
    codes = torch.arange(p.shape[-1], device=p.device)
    possible = p > 0
    hit = torch.where(possible & (cdf > threshold), codes, p.shape[-1]).amin(-1)
    last = torch.where(possible, codes, -1).amax(-1)
    last = torch.where(last < 0, p.shape[-1] - 1, last)
    return torch.where(hit < p.shape[-1], hit, last)
