"""What the built-in rules admit, for a kernel that computes them in place of their tensor code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import AcceptRule, DecoderError
from decoders.capability import Capability, knows

KINDS = {"exact": 0, "delta": 1, "lambda": 2}


@dataclass(frozen=True)
class Bound:
    """What a rule admits: table [V, >= k] int32, kind "exact", "delta" or "lambda", and the value
    of delta or lambda."""

    table: Tensor | None
    k: int
    kind: str
    value: float


def admitted_by(rule: AcceptRule) -> Bound | None:
    """What a rule admits, whatever its residual; None for a rule that no kernel computes (a
    subclass may have changed it)."""
    one: Any = rule
    if knows(rule, Capability.EXACT):
        return Bound(None, 0, "exact", 0.0)
    if knows(rule, Capability.LANTERN):
        return Bound(one.table, one.k, "delta", one.delta)
    if knows(rule, Capability.LANTERN_PP):
        return Bound(one.table, one.k, "lambda", one.lam)
    return None


def check(p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor, bound: Bound) -> None:
    """Raises DecoderError where shapes or dtypes are not those of a judge."""
    vocab, shape = p.shape[-1], p.shape[:-1]
    expected = {
        "p": (p, p.shape, torch.float32),
        "q": (q, p.shape, torch.float32),
        "codes": (codes, (*shape, codes.shape[-1]), torch.int64),
        "valid": (valid, codes.shape, torch.bool),
    }
    for name, (tensor, size, dtype) in expected.items():
        if tensor is not None and (tensor.shape != size or tensor.dtype != dtype):
            raise DecoderError(
                f"fused acceptance: {name} must be {tuple(size)} {dtype}, found "
                f"{tuple(tensor.shape)} {tensor.dtype}"
            )
    if bound.kind not in KINDS:
        raise DecoderError(f"bound kind is one of {', '.join(KINDS)}, found {bound.kind!r}")
    if (bound.kind == "exact") != (bound.k == 0):
        raise DecoderError(f"k = 0 is the exact rule, found k = {bound.k} with {bound.kind!r}")
    table = bound.table
    if bound.k and (
        table is None
        or table.ndim != 2
        or table.dtype != torch.int32
        or len(table) != vocab
        or table.shape[1] < bound.k
        or table.stride(1) != 1
    ):
        found = None if table is None else (tuple(table.shape), table.dtype)
        raise DecoderError(
            f"the neighbour table must be [{vocab}, >= {bound.k}] int32 with dense rows, found "
            f"{found}; decoders.verify.neighbours.neighbour_table makes it"
        )
