"""Acceptance rules as the CPU kernel takes them: exact, LANTERN and LANTERN++ with either
residual."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from decoders.api import AcceptRule, DecoderError
from decoders.execution.cpu.checks import require
from decoders.verify.admitted import KINDS, Bound, admitted_by


class Rule(ctypes.Structure):
    """`Rule` of acceptance.h."""

    _fields_ = [
        ("table", ctypes.c_void_p),
        ("row", ctypes.c_long),
        ("kind", ctypes.c_int),
        ("value", ctypes.c_float),
        ("k", ctypes.c_long),
        ("released", ctypes.c_long),
    ]


@dataclass(frozen=True)
class NativeRule:
    """What the rule admits, and whether it goes on with the authors' residual (METHODS 4)."""

    bound: Bound
    released: bool = False

    def structure(self, vocab: int) -> Rule:
        """Refers to the table, which must live as long. Raises DecoderError where it is not one of
        `vocab` codes' neighbours."""
        bound, table = self.bound, self.bound.table
        if table is not None:
            columns = table.shape[-1]
            require("the neighbour table", table, (vocab, columns), torch.int32)
            if bound.k > columns or not table.is_contiguous():
                raise DecoderError(
                    f"the CPU kernel expected a contiguous table of {bound.k} neighbours a code, "
                    f"found {columns} columns, strides {table.stride()}"
                )
        value = bound.value - 1 if bound.kind == "lambda" else bound.value
        made = Rule(None, 0, KINDS[bound.kind], value, bound.k, 0)
        if table is not None:
            made.table, made.row = table.data_ptr(), table.stride(0)
            made.released = table.shape[1] if self.released else 0
        return made


EXACT = NativeRule(Bound(None, 0, "exact", 0.0))


def rule_of(rule: AcceptRule) -> NativeRule | None:
    """None for a rule that the kernel does not compute."""
    bound = admitted_by(rule)
    if bound is None:
        return None
    return NativeRule(bound, getattr(rule, "residual", "paper") == "released")
