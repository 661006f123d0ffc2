"""What judges a tree's children on a GPU: a kernel, for the rules that it computes."""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import AcceptRule
from decoders.kernels.relaxed import admitted_by, fused_test_children
from decoders.kernels.runtime import missing
from decoders.verify.children import Judge, Verdicts


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
