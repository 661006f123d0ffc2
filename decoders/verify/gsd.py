"""Grouped speculative decoding (GSD, 2508.07747), decoders.md (b): drafts are judged by the mass of
their group.

C(x) holds x, and of the codes next to x in the order of p those of nearly the same probability and
nearly the same latent. Then a(x) = min(1, p(C(x)) / q(C(x))); with deterministic children q(C) = 1.
The correction is lemma R's, where the paper has norm((p - q)+) and no bound. A code with p(x) = 0
is never committed.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.distribution import setting
from decoders.kinds import Positive, Within
from decoders.verify.corrected import Corrected
from decoders.verify.lantern import CHUNK_CODES


class Gsd(Corrected):
    """group: ranks around x (G; 1 is the exact rule). theta_p, theta_d: a member's probability and
    latent differ by less."""

    def __init__(
        self,
        model: Any,
        group: Annotated[int, Within(1, 1024)] = 10,
        theta_p: Positive = 0.15,
        theta_d: Positive = 0.5,
    ) -> None:
        self.group, self.theta_p, self.theta_d = group, theta_p, theta_d
        self.alike = setting(theta_p, model)
        latents = model.codebook.float()  # [V, C]
        near = [torch.cdist(rows, latents) < theta_d for rows in latents.split(CHUNK_CODES)]
        self.near = torch.cat(near).to(model.device)  # [V, V] bool, 256 MiB at V = 16384

    def __str__(self) -> str:
        return f"gsd(G={self.group}, theta_p={self.theta_p:g}, theta_d={self.theta_d:g})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        ranked, order = p.sort(dim=-1, stable=True)  # [..., V], ascending
        drafted = torch.ones_like(p) if q is None else q.gather(-1, order)
        target, drafter, members = ranked, drafted, torch.zeros_like(p)  # p(C), q(C)
        inside = torch.ones_like(p, dtype=torch.bool)
        for step in range(1, self.group // 2 + 1):
            # Whether ranks r and r + step are alike is the same seen from either.
            alike = shifted(inside, step) & (shifted(ranked, step) - ranked < self.alike)
            alike = alike & self.near[order, shifted(order, step)]
            for offset in (step, -step):
                member = shifted(alike, min(offset, 0))
                target = target + member * shifted(ranked, offset)
                drafter = drafter if q is None else drafter + member * shifted(drafted, offset)
                members = members + member
        share = (drafted * target / drafter.clamp_min(1e-30)).minimum(drafted)
        mass = torch.where(members == 0, torch.minimum(drafted, ranked), share)
        mass = torch.where(ranked > 0, mass, 0.0)
        return torch.zeros_like(p).scatter(-1, order, mass)


def shifted(values: Tensor, offset: int) -> Tensor:
    """Shifts values [..., V] so that a rank has what stands `offset` ranks on; 0 past the ends."""
    size = values.shape[-1]
    if abs(offset) >= size:
        return torch.zeros_like(values)
    if offset > 0:
        return F.pad(values[..., offset:], (0, offset))
    return F.pad(values[..., : size + offset], (-offset, 0))
