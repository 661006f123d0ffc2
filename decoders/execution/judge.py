"""What judges a tree's children: a kernel for the rules that it computes, the tensor code for all
others."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from decoders.api import AcceptRule
from decoders.execution.eager import Judge, execution
from decoders.kernels.relaxed import admitted_by, fused_test_children
from decoders.kernels.runtime import missing
from decoders.verify.children import Verdicts, test_children


def judge_of(rule: AcceptRule, device: torch.device, mode: str = "eager") -> Judge:
    """The judge of a rule under `execution(mode)`; all return the same."""
    return execution(mode).judge(rule, device) or partial(test_children, rule)


def fused(rule: AcceptRule, device: torch.device) -> Judge | None:
    """The GPU kernel; None if this rule and device have none."""
    bound = admitted_by(rule)
    released = getattr(rule, "residual", "paper") == "released"
    if bound is None or released or device.type != "cuda" or missing(device) is not None:
        return None
    one = (bound.table, bound.k, bound.kind, bound.value)

    def judge(p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor) -> Verdicts:
        return fused_test_children(p, q, codes, valid, *one)

    return judge
