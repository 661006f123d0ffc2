"""Speculative coupled decoding, maximal coupling (SCD-MC, 2510.24211, decoders.md (c)).

A draft is not redrawn but coupled to the new distribution: x' = x with probability min(1, p(x) /
q(x)), else x' ~ norm((p - q)+). So x' has the distribution p, and equals x as often as it can: 1 -
TV(p, q). What is declared is p, at *every* position of the window: a draft that was kept has been
selected by the test on p, so that its old q would be biased (lemma J).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.distribution import pick, ratio
from decoders.noise import COUPLE_SLOT, sample
from decoders.propose.window import Codes, OldWindow, Window, certain, step_uniforms
from decoders.verify.exact import residual


@dataclass(eq=False, repr=False)
class Maximal(Window):
    """Exact by lemma J."""

    couples = True
    window: Codes = 32

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        coupled_probs = coupled(probs, old.q, old.codes)  # [B, W, V], given the old draft
        probs = torch.where(old.drafted[..., None], coupled_probs, probs)
        return sample(probs, step_uniforms(noise, positions, COUPLE_SLOT)[..., 0])


def coupled(probs: Tensor, q: Tensor, codes: Tensor) -> Tensor:
    """The distribution [..., V] from which a draft codes [...] of q [..., V] is redrawn: the new
    draft then has the distribution probs [..., V], and equals the old one as often as it can."""
    keep = ratio(pick(probs, codes), q, codes)[..., None]  # [..., 1]
    return (1 - keep) * residual(probs, q, codes) + keep * certain(codes, probs)
