"""Rules that are defined by the mass they accept, with the best correction and its exact bound
(decoders.md, lemma R).

A draft x ~ q is accepted with probability a(x). After a rejection the code comes from norm((p - q
a)+). The committed code's distribution is then sum_x (q(x) a(x) - p(x))+ away from p, and no
correction does better. So that sum is what such a rule declares, and it is exact for one draft. A
concrete rule defines q a alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import Acceptance, AcceptRule
from decoders.checks import require_floats
from decoders.distribution import normalised, pick, ratio
from decoders.verify.exact import greedy_acceptance


def scaled(p: Tensor, q: Tensor | None, omega: Tensor | float) -> Tensor:
    """q a of a(x) = min(1, omega p(x) / q(x)), [..., V]."""
    mass = p * omega
    return mass.clamp_max(1.0) if q is None else torch.minimum(q, mass)


class Corrected(AcceptRule):
    """Everything but the mass. At temperature 0 these rules are exact: p is a single code."""

    bounds_output = True  # see `decoders.api.AcceptRule`

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        """q a [..., V] of every code, at most q; q None: a(x) of a drafter that says x alone."""
        raise NotImplementedError("a rule says which mass it accepts")

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        mass = self.mass(p, q)  # [..., V]
        require_floats(self, "mass", "q a [..., V]", mass, p.shape)
        taken = pick(mass, x)
        accept = ratio(taken, q, x)
        if q is None:
            mass = torch.zeros_like(p).scatter(-1, x.unsqueeze(-1), taken.unsqueeze(-1))
        away = (mass - p).clamp_min(0.0).sum(-1)
        left = normalised((p - mass).clamp_min(0.0), p)
        return Acceptance(accept, ratio(pick(p, x), q, x), left, away, away)

    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        return greedy_acceptance(p, x)


class Passing(Corrected):
    """A rule that accepts a draft with probability 0 or 1, whatever q it was drawn from."""

    def passes(self, p: Tensor) -> Tensor:
        """Which codes pass, [..., V] bool."""
        raise NotImplementedError("a rule says which codes pass")

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return torch.where(self.passes(p), 1.0 if q is None else q, 0.0)
