"""All children of all nodes through the CPU kernel: `decoders.verify.children.test_children` in one
call, for the rules of `decoders.execution.cpu.rules.rule_of`.

Nodes are independent; a node's children are tested in order (METHODS 3, 4). Prefix sums in double,
as PyTorch sums them on a CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.rules import NativeRule
from decoders.verify.admitted import check
from decoders.verify.children import Verdicts


def native_judge(rule: NativeRule) -> Callable[..., Verdicts]:
    """The judge (p, q, codes, valid) -> Verdicts of a rule."""
    return partial(native_test_children, rule=rule)


def native_test_children(
    p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor, rule: NativeRule
) -> Verdicts:
    """p [..., V] float32; q the same or None (deterministic children); codes [..., K] int64, valid
    [..., K] bool. Raises DecoderError for shapes that do not fit."""
    check(p, q, codes, valid, rule.bound)
    vocab, children = p.shape[-1], codes.shape[-1]
    nodes, threads = p.numel() // vocab, torch.get_num_threads()
    residual = p.clone(memory_format=torch.contiguous_format)
    left = torch.empty(threads, vocab)
    used = None if q is None else q.clone(memory_format=torch.contiguous_format)
    verdicts = torch.empty(4, *codes.shape)
    codes, valid = codes.contiguous(), valid.contiguous()
    run(
        "judge",
        library().lantern_judge,
        ctypes.c_void_p(residual.data_ptr()),
        ctypes.c_void_p(None if used is None else used.data_ptr()),
        ctypes.c_void_p(left.data_ptr()),
        ctypes.c_void_p(codes.data_ptr()),
        ctypes.c_void_p(valid.data_ptr()),
        ctypes.byref(rule.structure(vocab)),
        ctypes.c_long(nodes),
        ctypes.c_long(vocab),
        ctypes.c_long(children),
        ctypes.c_void_p(verdicts.data_ptr()),
        ctypes.c_int(threads),
    )
    accept, strict, moved, declared = verdicts.unbind(0)
    return Verdicts(accept, strict, moved, declared, residual)
