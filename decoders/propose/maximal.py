"""Speculative coupled decoding, maximal coupling (SCD-MC, 2510.24211, decoders.md (c)).

A draft is not redrawn but coupled to the new law: x' = x with probability min(1, p(x) / q(x)), else
x' ~ norm((p - q)+). So x' has the law p, and equals x as often as it can: 1 - TV(p, q). What is
declared is p, at *every* place of the window. The released code leaves the old q on drafts that
were kept: biased, as the test on p has selected them (lemma J).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.distribution import pick
from decoders.noise import COUPLE_SLOT, sample
from decoders.propose.window import Codes, Left, Window, certain, fresh_uniforms
from decoders.verify.exact import ratio, residual


@dataclass(eq=False, repr=False)
class Maximal(Window):
    """released: with the old q on drafts that were kept."""

    couples = True
    window: Codes = 32
    released: bool = False

    def __str__(self) -> str:
        return (
            f"{self.called('released' * self.released)}(window={self.depth + 1}, init={self.init})"
        )

    def draw(self, law: Tensor, left: Left, noise: Any, places: Tensor) -> Tensor:
        return sample(coupling(law, left), fresh_uniforms(noise, places, COUPLE_SLOT)[..., 0])

    def declared(self, law: Tensor, left: Left, codes: Tensor) -> Tensor:
        if not self.released:
            return law
        kept = left.drafted & (codes == left.codes)
        return torch.where(kept[..., None], left.q, law)


def coupling(law: Tensor, left: Left) -> Tensor:
    """The law of the new draft given the old one, [B, W, V]; where there was none, `law`."""
    return torch.where(left.drafted[..., None], coupled(law, left.q, left.codes), law)


def coupled(law: Tensor, q: Tensor, codes: Tensor) -> Tensor:
    """The law of what a draft from q [..., V] becomes, so that it has the law `law` [..., V] and
    stays as often as it can; codes [...]."""
    keep = ratio(pick(law, codes), q, codes)[..., None]  # [..., 1]
    return (1 - keep) * residual(law, q, codes) + keep * certain(codes, law)
