"""A model as an execution runs it: eagerly, compiled, as a CUDA graph, or with the CPU kernel.

Apart from the executions (`decoders.execution`), which do not know each other.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import partial

from decoders.api import AcceptRule, DecoderError, Execution, ImageModel
from decoders.execution.eager import Eager
from decoders.places import keep_compiled
from decoders.verify.children import Judge, test_children


def executed(model: ImageModel, mode: str, compiled: Container[int] = ()) -> ImageModel:
    """The model as `execution(mode, compiled)` runs it, prepared. Raises DecoderError as that
    does."""
    how = execution(mode, compiled)
    how.prepare(model)
    return replace(model, execution=how)


def execution(mode: str, compiled: Container[int] = ()) -> Execution:
    """`eager`, `compile`, `graph` or `cpu`; compiled: under `cpu` the batch sizes at which pieces
    without a kernel's call are compiled. Raises DecoderError on another name."""
    keep_compiled()
    if mode == "eager":
        return Eager()
    if mode == "compile":
        from decoders.execution.compiled import Compiled

        return Compiled()
    if mode == "graph":
        from decoders.execution.cuda_graphs import Graphed

        return Graphed()
    if mode == "cpu":
        from decoders.execution.cpu.replacing import Cpu

        return Cpu(compiled)
    raise DecoderError(f"execution is 'eager', 'compile', 'graph' or 'cpu', found {mode!r}")


def judge_of(rule: AcceptRule, mode: str = "eager") -> Judge:
    """What judges by a rule under `execution(mode)`; all return the same."""
    if mode == "cpu":
        from decoders.execution.cpu.rules import native_test_children, rule_of

        found = rule_of(rule)
        if found is not None:
            return partial(native_test_children, found)
    return partial(test_children, rule)
