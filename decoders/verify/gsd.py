"""Grouped speculative decoding (GSD, 2508.07747), decoders.md (b): drafts are judged by the mass of
their group.

C(x) holds x, and of the codes next to x in the order of p those of nearly the same probability and
nearly the same latent. Then a(x) = min(1, p(C(x)) / q(C(x))); with deterministic children q(C) = 1.
The correction is lemma R's; ``residual: paper`` is norm((p - q)+). ``released: true`` is the
authors' code: ranks r - 7 to r + 6, the exact test at r < 7, squared distances of the language
model's input embeddings, and none in a window with a token id above 10,000.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError
from decoders.kinds import Positive, Within
from decoders.verify.corrected import Corrected, Residual
from decoders.verify.exact import residual as exact_residual
from decoders.verify.lantern import ROWS, Metric, latent_space

RELEASED_WINDOW = (-7, 6)  # ranks relative to x
RELEASED_IDS = 10_000


class Gsd(Corrected):
    """group: ranks around x (G; 1 is the exact rule). theta_p, theta_d: a member's probability and
    latent differ by less. beyond_support: may commit a code with p(x) = 0."""

    def __init__(
        self,
        model: Any,
        group: Annotated[int, Within(1, 1024)] = 10,
        theta_p: Positive = 0.15,
        theta_d: Positive = 0.5,
        residual: Residual = "lemma",
        metric: Metric = "tokenizer",
        beyond_support: bool = False,
        released: bool = False,
    ) -> None:
        self.group, self.theta_p, self.theta_d = group, theta_p, theta_d
        self.released, self.residual = released, "paper" if released else residual
        self.beyond_support = beyond_support or released
        if released:
            latents, self.far = input_embeddings(model)
            self.near = close(latents, theta_d**0.5)
            self.least = -RELEASED_WINDOW[0]  # ranks below have the exact test
            self.window = set(range(RELEASED_WINDOW[0], RELEASED_WINDOW[1] + 1)) - {0}
        else:
            space = latent_space(model.codebook, model.tokenizer.raw_codebook, metric)
            self.near = close(space, theta_d).to(model.device)
            self.far = torch.zeros_like(self.near[0])  # [V] bool
            self.least = 0
            self.window = set(range(-(group // 2), group // 2 + 1)) - {0}

    def __str__(self) -> str:
        if self.released:
            return f"gsd(theta_p={self.theta_p:g}, theta_d={self.theta_d:g}, released)"
        said = f"G={self.group}, theta_p={self.theta_p:g}, theta_d={self.theta_d:g}"
        return f"gsd({said}, residual={self.residual})"

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        ranked, order = p.sort(dim=-1, stable=True)  # [..., V], ascending
        drafted = torch.ones_like(p) if q is None else q.gather(-1, order)
        target, drafter, members = ranked, drafted, torch.zeros_like(p)  # p(C), q(C)
        far = self.far[order]  # [..., V], without distances
        anywhere = far | torch.stack([shifted(far, offset) for offset in (0, *self.window)]).any(0)
        inside = torch.ones_like(far)
        for step in range(1, max(map(abs, self.window), default=0) + 1):
            # Whether ranks r and r + step are alike is the same seen from either.
            alike = shifted(inside, step) & (shifted(ranked, step) - ranked < self.theta_p)
            near = self.near[order, shifted(order, step)]
            for offset in (step, -step):
                if offset not in self.window:
                    continue
                back = min(offset, 0)
                member = shifted(alike, back) & (shifted(near, back) | anywhere)
                target = target + member * shifted(ranked, offset)
                drafter = drafter if q is None else drafter + member * shifted(drafted, offset)
                members = members + member
        rank = torch.arange(p.shape[-1], device=p.device)
        alone = (members == 0) | (rank < self.least)
        share = (drafted * target / drafter.clamp_min(1e-30)).minimum(drafted)
        kept = torch.where(alone, torch.minimum(drafted, ranked), share)
        if not self.beyond_support:
            kept = torch.where(ranked > 0, kept, 0.0)
        return torch.zeros_like(p).scatter(-1, order, kept)

    def corrected(self, p: Tensor, q: Tensor | None, mass: Tensor, x: Tensor) -> Tensor:
        if self.residual == "paper":
            return exact_residual(p, q, x)
        return super().corrected(p, q, mass, x)


def close(latents: Tensor, distance: float) -> Tensor:
    """latents [V, C] -> [V, V] bool, pairs nearer than `distance`: 1 MB at V = 1024, 256 MiB at
    16384."""
    every = latents.float()
    return torch.cat([torch.cdist(rows, every) < distance for rows in every.split(ROWS)])


def shifted(values: Tensor, offset: int) -> Tensor:
    """values [..., V] -> at every rank what stands `offset` ranks on; 0 past the ends."""
    size = values.shape[-1]
    if abs(offset) >= size:
        return torch.zeros_like(values)
    if offset > 0:
        return F.pad(values[..., offset:], (0, offset))
    return F.pad(values[..., : size + offset], (-offset, 0))


def input_embeddings(model: Any) -> tuple[Tensor, Tensor]:
    """The target's embeddings of all codes [V, D] float32, and with which of them the authors' code
    reads no distances [V] bool. DecoderError where the target has no such table."""
    table = model.target.tok_embeddings
    if table is None:
        raise DecoderError(
            "acceptance.released: GSD's released code measures distances between the target's "
            f"input embeddings (tok_embeddings), and {type(model.target).__name__} has none; use "
            "released=false"
        )
    codes = torch.arange(model.target.vocab_size, device=table.weight.device)
    ids = model.target.token_ids(codes)
    return table.weight.detach()[ids].float(), ids > RELEASED_IDS
