"""Relaxed acceptance as one kernel: all children of all nodes, their residuals and a sample.

Per node and child, in order (METHODS 3, 4): the k neighbours of x from p, the longest prefix whose
mass stays within the bound, p_A(x) = p(x) + mass, accept with min(1, p_A(x) / q(x)), go on with
norm((p_A - q)+) against the drafter's distribution without x; then an inverse-CDF sample of the
last residual. The tensor code does this in some twenty launches a child
(`decoders.verify.children.test_children` with `residual="paper"`, `decoders.noise.sample`), which
this equals up to the rounding of sums; here it is one launch for the tree.

All float32. Nothing waits for the device; with a `Space` passed in nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import AcceptRule, DecoderError, Test
from decoders.capability import computed
from decoders.kernels.runtime import programs
from decoders.noise import BELOW_ONE
from decoders.verify.children import Verdicts

KINDS = {"exact": 0, "delta": 1, "lambda": 2}
MOST_CODES = 65536


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
    if computed(rule, "exact"):
        return Bound(None, 0, "exact", 0.0)
    if computed(rule, "lantern"):
        return Bound(one.table, one.k, "delta", one.delta)
    if computed(rule, "lantern_pp"):
        return Bound(one.table, one.k, "lambda", one.lam)
    return None


def bound_of(rule: AcceptRule) -> Bound:
    """The rule as the kernel takes it.

    Raises DecoderError for a rule it does not compute: another one, or ``residual="released"``.
    """
    found = admitted_by(rule)
    if found is None or getattr(rule, "residual", "paper") != "paper":
        raise DecoderError(
            "the fused acceptance computes exact, lantern and lantern_pp with residual=paper, "
            f"found {rule}; use the tensor code (decoders.verify.children.test_children)"
        )
    return found


@dataclass(frozen=True)
class Space:
    """Where a call works and leaves its results; the next call with it overwrites them.

    buffers [3, M, V] float32 (2 without q); verdicts [4, M, K] float32; samples [M] int64.
    """

    buffers: Tensor
    verdicts: Tensor
    samples: Tensor


def space(nodes: int, vocab: int, children: int, drawn: bool, device: torch.device) -> Space:
    """For M = nodes (all rows' together); drawn: whether there is a q."""
    return Space(
        torch.empty(3 if drawn else 2, nodes, vocab, device=device),
        torch.empty(4, nodes, children, device=device),
        torch.empty(nodes, dtype=torch.long, device=device),
    )


def fused_test_children(
    p: Tensor,
    q: Tensor | None,
    codes: Tensor,
    valid: Tensor,
    table: Tensor | None,
    k: int,
    bound_kind: str,
    bound_value: float,
    *,
    work: Space | None = None,
) -> Verdicts:
    """`decoders.verify.children.test_children` for one of the rules of `bound_of`.

    p [..., V] float32; q the same or None (deterministic children); codes [..., K] int64, valid
    [..., K] bool; table [V, >= k] int32 (None for "exact"). The verdicts are views of `work`.
    """
    verdicts, _ = judge(p, q, codes, valid, None, Bound(table, k, bound_kind, bound_value), work)
    return verdicts


def relaxed_test(
    p: Tensor, q: Tensor | None, x: Tensor, u: Tensor, bound: Bound, work: Space | None = None
) -> tuple[Test, Tensor]:
    """One draft a node: p, q [..., V], x [...] int64, u [...] float32 in [0, 1) -> its test and a
    sample [...] int64 of the residual."""
    valid = torch.ones_like(x, dtype=torch.bool)
    found, code = judge(p, q, x[..., None], valid[..., None], u, bound, work)
    columns = (found.accept, found.strict, found.moved, found.bound)
    accept, strict, moved, declared = (column[..., 0] for column in columns)
    assert code is not None  # u was given
    return Test(accept, strict, found.residual, moved, declared), code


def judge(
    p: Tensor,
    q: Tensor | None,
    codes: Tensor,
    valid: Tensor,
    u: Tensor | None,
    bound: Bound,
    work: Space | None = None,
) -> tuple[Verdicts, Tensor | None]:
    """The verdicts on all children, and with u [...] a sample of every node's residual, [...].

    Raises DecoderError where Triton cannot run and for shapes that do not fit.
    """
    device = programs("relaxed_programs", p.device)
    check(p, q, codes, valid, u, bound)
    shape, vocab, children = p.shape[:-1], p.shape[-1], codes.shape[-1]
    nodes = shape.numel()
    drawn = q is not None
    if work is None:
        work = space(nodes, vocab, children, drawn, p.device)
    _check_space(work, nodes, vocab, children, drawn)
    value = bound.value - 1 if bound.kind == "lambda" else bound.value
    near = codes if bound.table is None else bound.table  # never read where there is no table
    device.judge[(nodes,)](
        p.contiguous(),
        p if q is None else q.contiguous(),
        codes.contiguous(),
        valid.contiguous(),
        near,
        p if u is None else u.contiguous(),
        work.buffers,
        work.verdicts,
        work.samples,
        nodes,
        vocab,
        children,
        bound.k,
        near.stride(0),
        float(value),
        BELOW_ONE,
        KIND=KINDS[bound.kind],
        HAS_Q=drawn,
        SAMPLE=u is not None,
        NEAR=_power(bound.k, 32, 1024),
        BLOCK=_power(vocab, 128, 4096),
        num_warps=8 if vocab > 2048 else 4,
    )
    accept, strict, moved, declared = work.verdicts.view(4, *shape, children).unbind(0)
    verdicts = Verdicts(accept, strict, moved, declared, work.buffers[0].view(p.shape))
    return verdicts, None if u is None else work.samples.view(shape)


def _check_space(work: Space, nodes: int, vocab: int, children: int, drawn: bool) -> None:
    needed = ((3 if drawn else 2, nodes, vocab), (4, nodes, children))
    found = (tuple(work.buffers.shape), tuple(work.verdicts.shape))
    if found != needed:
        raise DecoderError(
            f"work space of {found} (buffers, verdicts), expected {needed}: make it with `space`"
        )


def _power(count: int, least: int, most: int) -> int:
    """The power of two that holds `count`, within limits that are powers of two."""
    return min(most, max(least, 1 << (count - 1).bit_length() if count else 1))


def check(
    p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor, u: Tensor | None, bound: Bound
) -> None:
    """Raises DecoderError where shapes or dtypes are not those of `judge`."""
    vocab, shape = p.shape[-1], p.shape[:-1]
    if p.device.type != "cpu" and vocab > MOST_CODES:
        raise DecoderError(f"the fused acceptance takes up to {MOST_CODES} codes, found {vocab}")
    expected = {
        "p": (p, p.shape, torch.float32),
        "q": (q, p.shape, torch.float32),
        "codes": (codes, (*shape, codes.shape[-1]), torch.int64),
        "valid": (valid, codes.shape, torch.bool),
        "u": (u, shape, torch.float32),
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
