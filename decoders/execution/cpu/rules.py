"""Acceptance rules in the CPU kernel: exact, LANTERN and LANTERN++ with either residual.

`native_test_children` tests all children of all nodes in one call, as
`decoders.verify.children.test_children` does. Nodes are independent; a node's children are tested
in order (METHODS 3, 4). Prefix sums in double, as PyTorch sums them on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import AcceptRule, DecoderError
from decoders.capability import Capability, knows
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.structures import Rule, require
from decoders.verify.children import Verdicts

KINDS = {"exact": 0, "delta": 1, "lambda": 2}


@dataclass(frozen=True)
class NativeRule:
    """What a rule admits: k codes of table [V, >= k] int32, kind "exact", "delta" or "lambda", the
    value of delta or lambda; and whether it goes on with the authors' residual (METHODS 4)."""

    kind: str = "exact"
    value: float = 0.0
    k: int = 0
    table: Tensor | None = None
    released: bool = False

    def structure(self, vocab: int) -> Rule:
        """Raises DecoderError where the table is not one of `vocab` codes' neighbours."""
        value = self.value - 1 if self.kind == "lambda" else self.value
        made = Rule(kind=KINDS[self.kind], value=value, k=self.k)
        if self.table is not None:
            columns = self.table.shape[-1]
            require("the neighbour table", self.table, (vocab, columns), torch.int32)
            if self.k > columns or not self.table.is_contiguous():
                raise DecoderError(
                    f"the CPU kernel expected a contiguous table of {self.k} neighbours a code, "
                    f"found {columns} columns, strides {self.table.stride()}"
                )
            made.set(table=self.table, row=columns, released=columns if self.released else 0)
        return made


EXACT = NativeRule()


def rule_of(rule: AcceptRule) -> NativeRule | None:
    """None for a rule that the kernel does not compute (a subclass may have changed it)."""
    one: Any = rule
    if knows(rule, Capability.EXACT):
        return EXACT
    if knows(rule, Capability.LANTERN):
        return NativeRule("delta", one.delta, one.k, one.table, one.residual == "released")
    if knows(rule, Capability.LANTERN_PP):
        return NativeRule("lambda", one.lam, one.k, one.table, one.residual == "released")
    return None


def native_test_children(
    rule: NativeRule, p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor
) -> Verdicts:
    """p [..., V] float32; q the same or None (deterministic children); codes [..., K] int64, valid
    [..., K] bool. Raises DecoderError for shapes that do not fit."""
    vocab, children = p.shape[-1], codes.shape[-1]
    nodes, threads = p.numel() // vocab, torch.get_num_threads()
    residual = require("p", p, p.shape, torch.float32).clone()
    used = None if q is None else require("q", q, p.shape, torch.float32).clone()
    codes = require("codes", codes, (*p.shape[:-1], children), torch.int64)
    valid = require("valid", valid, codes.shape, torch.bool)
    verdicts = torch.empty(4, *codes.shape)
    run(
        "judge", library().lantern_judge, residual, used, torch.empty(threads, vocab), codes, valid,
        rule.structure(vocab), nodes, vocab, children, verdicts, threads,
    )  # fmt: skip
    accept, strict, moved, declared = verdicts.unbind(0)
    return Verdicts(accept, strict, moved, declared, residual)
