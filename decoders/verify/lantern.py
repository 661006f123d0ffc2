"""LANTERN (2410.03355) and LANTERN++ (2502.06352): p_A, its acceptance test and its residuals
(METHODS 4).

A(x) is the longest prefix of B_k(x) whose neighbour mass stays within a bound; p_A moves that mass
onto x. The rules differ in the bound alone: delta, so TV(p, p_A) <= delta; or (lambda - 1) p(x), so
p_A(x) <= lambda p(x).

``residual`` says what is gone on with after a rejection: "paper", or the authors' code, which
departs from the rule (METHODS 4, points 1 and 2) and has two variants for drawn children (static
trees). LlamaGen's and Anole's, "released", takes x's neighbours out of the drafter's q. Lumina's,
"released_lumina", takes them out of the target's p.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from decoders.api import Acceptance, AcceptRule, DecoderError, ImageModel
from decoders.distribution import normalised, pick, ratio, setting, without
from decoders.kinds import Within

Residual = Literal["paper", "released", "released_lumina"]
Metric = Literal["tokenizer", "raw"]
ROWS = 2048  # codes a chunk, which bounds the memory of the distance matrix


def neighbour_table(codebook: Tensor, k: int) -> Tensor:
    """Computes B_k(x): of a codebook [V, C] float the codes nearest to each, itself excluded,
    nearest first, lowest index on ties (METHODS 2); [V, min(k + 1, V - 1)] int32. Only k + 1
    columns are kept: 65 MB at V = 16384 and k = 1000, where the released table of all V - 1
    neighbours takes 512 MiB. The extra column serves the released residuals."""
    size = codebook.shape[0]
    if not 1 <= k <= size - 1:
        raise DecoderError(
            f"acceptance.k must be in 1..{size - 1} (the codebook has {size} codes, a "
            f"code is not its own neighbour), found {k}; {'raise' if k < 1 else 'lower'} it"
        )
    table = codebook.float()
    columns = min(k + 1, size - 1)
    parts = []
    for first in range(0, size, ROWS):
        distance = torch.cdist(
            table[first : first + ROWS], table, compute_mode="donot_use_mm_for_euclid_dist"
        )  # [rows, V]
        itself = torch.arange(first, first + len(distance), device=table.device)
        distance.scatter_(1, itself[:, None], float("inf"))
        if columns * 4 < size:
            near = distance.topk(columns, largest=False, sorted=True)
            parts.append(near.indices.int())
        else:
            parts.append(distance.argsort(dim=1, stable=True)[:, :columns].int())
    return torch.cat(parts)


@dataclass(eq=False, repr=False)
class RelaxedRule(AcceptRule):
    """Everything but the bound: a concrete rule defines `bound_of` and its own settings. metric:
    how distance is measured, the tokenizer's own way, or on the raw rows that the released tables
    were built from."""

    model: InitVar[ImageModel]
    k: int = 1000
    residual: Residual = "paper"
    metric: Metric = "tokenizer"

    def __post_init__(self, model: ImageModel) -> None:
        raw = self.metric == "raw"
        space = model.tokenizer.raw_codebook if raw else model.codebook
        if space is None:
            raise DecoderError(
                "metric=raw: this tokenizer has no raw codebook; use metric=tokenizer"
            )
        self.beyond_support |= self.residual != "paper"  # uniform where nothing is left
        self.table = neighbour_table(space, self.k).to(model.device)

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        """Returns how much neighbour mass the rule may move onto x, [...] float32."""
        raise NotImplementedError("a relaxed rule defines its bound")

    def relax(self, p: Tensor, x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Finds A(x): p [..., V] that broadcasts over x [...], bound [...] -> x's row of the table
        [..., columns], which of its first k are admitted, their mass [...] = TV(p, p_A), p(x)."""
        near = self.table[x].long()  # [..., columns]
        masses = p.expand(*x.shape, -1).gather(-1, near[..., : self.k])  # [..., k]
        admitted = masses.cumsum(-1) <= bound[..., None]  # monotone, so a prefix
        return near, admitted, (masses * admitted).sum(-1), pick(p, x)

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        bound = self.bound_of(p, x)
        near, admitted, mass, p_x = self.relax(p, x, bound)
        if self.residual == "paper":
            near, otherwise = near[..., : self.k], p
            moved = p.scatter(-1, near, torch.where(admitted, 0.0, p.gather(-1, near)))
            relaxed = moved.scatter(-1, x.unsqueeze(-1), (p_x + mass).unsqueeze(-1))  # p_A
            left = without(relaxed, x) if q is None else relaxed - q
        else:  # the authors' code: k + 1 neighbours are zeroed if any was admitted

            def zeroed(probs: Tensor) -> Tensor:
                moved = probs.scatter(-1, near, 0.0)
                return torch.where(admitted.any(-1, keepdim=True), moved, probs)

            otherwise = torch.full_like(p, 1.0 / p.shape[-1])
            if q is None:
                left = zeroed(without(p, x))
            else:
                left = p - zeroed(q) if self.residual == "released" else zeroed(p) - q
        residual = normalised(left.clamp_min(0.0), otherwise)
        accept, strict = ratio(p_x + mass, q, x), ratio(p_x, q, x)
        return Acceptance(accept, strict, residual, mass, bound.clamp_max(1.0))

    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        """Accepts iff p_A(x) is the largest entry of p_A; the bonus stays the argmax of p."""
        bound = self.bound_of(p, x)
        _, _, mass, p_x = self.relax(p, x, bound)
        peak, best = p.max(-1)
        hit = (p_x + mass >= peak).float()
        strict = (best == x).float()
        return Acceptance(torch.maximum(hit, strict), strict, p, mass, bound.clamp_max(1.0))


@dataclass(eq=False, repr=False)
class Lantern(RelaxedRule):
    """k nearest neighbours (1,000 as released), bound delta in [0, 1]. delta 0 moves only codes of
    probability zero."""

    beyond_support = True  # neighbours may carry a code that the target rules out
    delta: float = 0.2

    def __post_init__(self, model: ImageModel) -> None:
        if not 0 <= self.delta <= 1:
            raise DecoderError(
                f"acceptance.delta is a total-variation bound in [0, 1], found {self.delta}; "
                "the released code reads delta > 1 as lambda: use acceptance=lantern_pp"
            )
        self.bound = setting(self.delta, model)
        super().__post_init__(model)

    def __str__(self) -> str:
        return f"lantern(k={self.k}, delta={self.delta:g}, residual={self.residual})"

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        return self.bound.to(p.dtype).expand(x.shape)


@dataclass(eq=False, repr=False)
class LanternPP(RelaxedRule):
    """k nearest neighbours, lambda >= 1 (`lam` in YAML, as lambda is a Python keyword). The authors
    ran (10, 2) and (10, 10)."""

    k: int = 10
    lam: Annotated[float, Within(1)] = 2.0  # 1 is the exact rule

    def __post_init__(self, model: ImageModel) -> None:
        self.more = setting(self.lam - 1, model)
        super().__post_init__(model)

    def __str__(self) -> str:
        return f"lantern_pp(k={self.k}, lambda={self.lam:g}, residual={self.residual})"

    def bound_of(self, p: Tensor, x: Tensor) -> Tensor:
        return self.more * pick(p, x)
