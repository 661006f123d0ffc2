"""What judges a tree's children: the tensor code of any rule, or a kernel that computes the rule on
this device (`decoders.kernels.relaxed` on GPUs, `decoders.kernels.cpu.judge`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from decoders.api import AcceptRule
from decoders.kernels.cpu.judge import native_test_children
from decoders.kernels.cpu.rules import rule_of
from decoders.kernels.relaxed import fused_test_children
from decoders.kernels.runtime import missing
from decoders.verification import Verdicts, test_children

Judge = Callable[[Tensor, Tensor | None, Tensor, Tensor], Verdicts]  # p, q, codes, valid


def judge_of(rule: AcceptRule, device: torch.device, native: bool) -> Judge:
    """The fastest judge of a rule, all of which return the same. native: may the CPU kernel be
    used?"""
    by_tensors = partial(test_children, rule)
    own = rule_of(rule)
    if own is None:  # a rule that no kernel computes
        return by_tensors
    if device.type == "cuda" and missing(device) is None and not own.released:
        bound = own.bound
        one = (bound.table, bound.k, bound.kind, bound.value)
        return lambda p, q, codes, valid: fused_test_children(p, q, codes, valid, *one)
    if device.type == "cpu" and native:
        return partial(native_test_children, rule=own)
    return by_tensors
