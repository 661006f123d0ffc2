"""LANTERN (2410.03355) and LANTERN++ (2502.06352): p_A, its acceptance test and its residuals
(METHODS 4).

A(x) is the longest prefix of B_k(x) whose neighbour mass stays within a bound; p_A moves that mass
onto x. The rules differ in the bound alone: delta, so TV(p, p_A) <= delta; or (lambda - 1) p(x), so
p_A(x) <= lambda p(x).

LANTERN's ablations (its table 3 and figure 5): ``metric`` says which codes are neighbours, "l2" and
"cosine" in the tokenizer's own latent space, "raw" by l2 of the rows as they are stored, which the
released tables were built from, or "random", a fixed permutation of the other codes. ``distance``
says what delta bounds: "tvd", the moved mass, or "jsd", the Jensen-Shannon divergence.

``residual`` says what is gone on with after a rejection: "paper", or the authors' code, which
departs from the rule (METHODS 4, points 1 and 2) and has two variants for drawn children (static
trees). LlamaGen's and Anole's, "released", takes x's neighbours out of the drafter's q. Lumina's,
"released_lumina", takes them out of the target's p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Acceptance, AcceptRule, DecoderError, ImageModel
from decoders.distribution import normalised, pick, ratio, setting, without
from decoders.kinds import Seed, Within

Residual = Literal["paper", "released", "released_lumina"]
Metric = Literal["l2", "cosine", "raw", "random"]
CHUNK_CODES = 2048  # codes a chunk, which bounds the memory of the distance matrix


def check_k(k: int, size: int) -> None:
    """Raises DecoderError where a codebook of `size` codes has no k neighbours."""
    if not 1 <= k <= size - 1:
        raise DecoderError(
            f"acceptance.k must be in 1..{size - 1} (the codebook has {size} codes, a "
            f"code is not its own neighbour), found {k}; {'raise' if k < 1 else 'lower'} it"
        )


def neighbour_table(codebook: Tensor, k: int) -> Tensor:
    """Computes B_k(x): of a codebook [V, C] float the codes nearest to each, itself excluded,
    nearest first, lowest index on ties (METHODS 2); [V, min(k + 1, V - 1)] int32. Only k + 1
    columns are kept: 65 MB at V = 16384 and k = 1000, where the released table of all V - 1
    neighbours takes 512 MiB. The extra column serves the released residuals."""
    size = codebook.shape[0]
    check_k(k, size)
    table = codebook.float()
    columns = min(k + 1, size - 1)
    parts = []
    for first in range(0, size, CHUNK_CODES):
        distance = torch.cdist(
            table[first : first + CHUNK_CODES], table, compute_mode="donot_use_mm_for_euclid_dist"
        )  # [rows, V]
        itself = torch.arange(first, first + len(distance), device=table.device)
        distance.scatter_(1, itself[:, None], float("inf"))
        if columns * 4 < size:
            near = distance.topk(columns, largest=False, sorted=True)
            parts.append(near.indices.int())
        else:
            parts.append(distance.argsort(dim=1, stable=True)[:, :columns].int())
    return torch.cat(parts)


def neighbours(model: ImageModel, k: int, metric: str, seed: int) -> Tensor:
    """Makes B_k of all codes by one of the metrics, as `neighbour_table`; seed: of the random one.
    The order by cosine is the order by l2 of vectors of length 1. Raises DecoderError."""
    space, raw = model.codebook.float(), model.tokenizer.raw_codebook
    if metric == "raw":
        if raw is None:
            raise DecoderError("metric=raw: this tokenizer has no raw codebook; use metric=l2")
        space = raw
    elif metric == "cosine":
        space = F.normalize(space, dim=-1)
    elif metric == "random":
        check_k(k, len(space))
        generator, size = torch.Generator().manual_seed(seed), len(space)
        rows = [torch.randperm(size - 1, generator=generator)[: k + 1] for _ in range(size)]
        near = torch.stack(rows)  # [V, columns], of the codes without x
        return (near + (near >= torch.arange(size)[:, None])).int()
    return neighbour_table(space, k)


def divergence(moved: Tensor, p_x: Tensor) -> Tensor:
    """JSD(p, p_A) in nats of moving the mass `moved` [...] onto a code of probability p_x [...]:
    with M = p_x + moved / 2, 1/2 (moved ln 2 + p_x ln(p_x / M) + (p_x + moved) ln((p_x + moved) /
    M)). It grows with the mass."""
    middle, after = p_x + moved / 2, p_x + moved
    parts = torch.xlogy(p_x, p_x / middle) + torch.xlogy(after, after / middle)
    return 0.5 * (moved * math.log(2) + torch.where(middle > 0, parts, 0.0))


@dataclass(eq=False, repr=False)
class RelaxedRule(AcceptRule):
    """Everything but the bound: a concrete rule defines `bound_of` and its own settings."""

    model: InitVar[ImageModel]
    k: int = 1000
    residual: Residual = "paper"
    metric: Metric = "l2"
    seed: Seed = 0  # of random neighbours
    usual_metrics: ClassVar[Sequence[str]] = ("l2",)  # which labels do not show

    def __post_init__(self, model: ImageModel) -> None:
        self.beyond_support |= self.residual != "paper"  # uniform where nothing is left
        self.table = neighbours(model, self.k, self.metric, self.seed).to(model.device)

    def label(self, name: str, bound: str, *others: str) -> str:
        """The rule's name and settings; of metric, seed and `others` what is not usual."""
        unusual: list[str] = [] if self.metric in self.usual_metrics else [self.metric]
        unusual += [f"seed={self.seed}"] * (self.seed != 0)
        given = f"k={self.k}", bound, f"residual={self.residual}", *unusual, *others
        return f"{name}({', '.join(given)})"

    def bound_of(self, p_x: Tensor) -> Tensor:
        """Returns the declared bound on TV(p, p_A), [...] float32; p_x [...] is p(x)."""
        raise NotImplementedError("a relaxed rule defines its bound")

    def admits(self, moved: Tensor, p_x: Tensor) -> Tensor:
        """Tells whether so much mass may be moved onto x: moved [..., k], p_x [...] -> [..., k]
        bool."""
        return moved <= self.bound_of(p_x)[..., None]

    def relax(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Finds A(x): p [..., V] that broadcasts over x [...] -> x's row of the table
        [..., columns], which of its first k are admitted, their mass [...] = TV(p, p_A), p(x)."""
        near, p_x = self.table[x].long(), pick(p, x)  # [..., columns], [...]
        masses = p.expand(*x.shape, -1).gather(-1, near[..., : self.k])  # [..., k]
        admitted = self.admits(masses.cumsum(-1), p_x)  # monotone, so a prefix
        return near, admitted, (masses * admitted).sum(-1), p_x

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        near, admitted, mass, p_x = self.relax(p, x)
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
        left = normalised(left.clamp_min(0.0), otherwise)
        accept, strict = ratio(p_x + mass, q, x), ratio(p_x, q, x)
        return Acceptance(accept, strict, left, mass, self.bound_of(p_x).clamp_max(1.0))

    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        """Accepts iff p_A(x) is the largest entry of p_A; the bonus stays the argmax of p."""
        _, _, mass, p_x = self.relax(p, x)
        peak, best = p.max(-1)
        strict = (best == x).float()
        hit = torch.maximum((p_x + mass >= peak).float(), strict)
        return Acceptance(hit, strict, p, mass, self.bound_of(p_x).clamp_max(1.0))


@dataclass(eq=False, repr=False)
class Lantern(RelaxedRule):
    """k nearest neighbours (1,000 as released), bound delta in [0, 1] on the distance, TVD or JSD
    in nats, of p and p_A. delta 0 moves only codes of probability zero."""

    beyond_support = True  # neighbours may carry a code that the target rules out
    delta: float = 0.2
    distance: Literal["tvd", "jsd"] = "tvd"

    def __post_init__(self, model: ImageModel) -> None:
        if not 0 <= self.delta <= 1:
            raise DecoderError(
                f"acceptance.delta is a bound on TVD or JSD in [0, 1], found {self.delta}; "
                "the released code reads delta > 1 as lambda: use acceptance=lantern_pp"
            )
        self.most = setting(self.delta, model)  # of the distance
        # JSD >= TV^2 / 2, by Pinsker's inequality on both of its halves.
        self.bound = setting(math.sqrt(2 * self.delta), model) if self.jsd else self.most
        super().__post_init__(model)

    def __str__(self) -> str:
        return self.label("lantern", f"delta={self.delta:g}", *["jsd"] * self.jsd)

    @property
    def jsd(self) -> bool:
        return self.distance == "jsd"

    def bound_of(self, p_x: Tensor) -> Tensor:
        return self.bound.to(p_x.dtype).expand(p_x.shape)

    def admits(self, moved: Tensor, p_x: Tensor) -> Tensor:
        if not self.jsd:
            return super().admits(moved, p_x)
        return divergence(moved, p_x[..., None].expand_as(moved)) <= self.most.to(moved.dtype)


@dataclass(eq=False, repr=False)
class LanternPP(RelaxedRule):
    """k nearest neighbours, lambda >= 1 (`lam` in YAML, as lambda is a Python keyword). The authors
    ran (10, 2) and (10, 10)."""

    k: int = 10
    lam: Annotated[float, Within(1)] = 2.0  # 1 is the exact rule
    # The authors' tables are of raw neighbours, and no label in studies of them says so.
    usual_metrics: ClassVar[Sequence[str]] = ("l2", "raw")

    def __post_init__(self, model: ImageModel) -> None:
        self.more = setting(self.lam - 1, model)
        super().__post_init__(model)

    def __str__(self) -> str:
        return self.label("lantern_pp", f"lambda={self.lam:g}")

    def bound_of(self, p_x: Tensor) -> Tensor:
        return self.more * p_x
