"""How a decoding step is executed: eagerly, compiled, as a captured CUDA graph, or with the CPU
kernel. Same step, same codes; a loop knows nothing of it but `decoders.api.Execution`."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from decoders.api import DecoderError, Execution, ImageModel
from decoders.execution.eager import Eager
from decoders.places import compiled_folder


def with_execution(model: ImageModel, mode: str, compiled: Container[int] = ()) -> ImageModel:
    """The model as `execution(mode, compiled)` runs it, prepared. Raises DecoderError as that
    does."""
    how = execution(mode, compiled)
    how.prepare(model)
    return replace(model, execution=how)


def execution(mode: str, compiled: Container[int] = ()) -> Execution:
    """`eager`, `compile`, `graph` or `cpu`; compiled: under `cpu` the batch sizes at which pieces
    without a kernel's call are compiled. Raises DecoderError on another name."""
    compiled_folder()
    if mode == "eager":
        return Eager()
    if mode == "compile":
        from decoders.execution.compiled import Compiled

        return Compiled()
    if mode == "graph":
        from decoders.execution.cuda_graphs import Graphed

        return Graphed()
    if mode == "cpu":
        from decoders.execution.cpu.execution import Cpu

        return Cpu(compiled)
    raise DecoderError(f"execution is 'eager', 'compile', 'graph' or 'cpu', found {mode!r}")
