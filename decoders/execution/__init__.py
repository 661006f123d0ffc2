"""How a decoding step is executed: eagerly, compiled, as a captured CUDA graph, or with the CPU
kernel. Same step, same codes; a loop knows nothing of it but `decoders.api.Execution`."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from decoders.api import DecoderError, Execution, ImageModel
from decoders.cache_folder import compiled_folder
from decoders.execution.eager import Eager


def with_execution(model: ImageModel, mode: str, sizes: Container[int] | None = None) -> ImageModel:
    """The model as `execution(mode, sizes)` runs it, prepared. Raises DecoderError as that does."""
    how = execution(mode, sizes)
    how.prepare(model)
    return replace(model, execution=how)


def execution(mode: str, sizes: Container[int] | None = None) -> Execution:
    """`eager`, `compile`, `graph` or `cpu`. sizes: of batches that are compiled, under `cpu` what
    has no kernel; at others steps run operator by operator. None: under `graph` all, under `cpu`
    none. Raises DecoderError on another name."""
    compiled_folder()
    if mode == "eager":
        return Eager()
    if mode == "compile":
        from decoders.execution.compiled import Compiled

        return Compiled()
    if mode == "graph":
        from decoders.execution.cuda_graphs import Graphed

        return Graphed() if sizes is None else Graphed(sizes=sizes)
    if mode == "cpu":
        from decoders.execution.cpu.execution import Cpu

        return Cpu(() if sizes is None else sizes)
    raise DecoderError(f"execution is 'eager', 'compile', 'graph' or 'cpu', found {mode!r}")
