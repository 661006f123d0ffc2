"""How a decoding step is executed: operator by operator, compiled, or as a captured CUDA graph. The
step and its codes are the same; a loop knows nothing of it but `decoders.api.Execution`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from decoders.api import DecoderError, Execution, ImageModel
from decoders.cache_folder import compiled_folder
from decoders.execution.eager import Eager


def with_execution(
    model: ImageModel,
    mode: str,
    sizes: Collection[int] = (),
    uncompiled_sizes: Collection[int] = (),
) -> ImageModel:
    """The model as `execution` runs it so on its device. The given one stays as it was:
    what is replaced in its nets is replaced in copies that share the weights. Raises DecoderError
    as `execution` and `Execution.prepare` do."""
    how = execution(mode, sizes, model.device, uncompiled_sizes)
    return replace(how.prepare(model), execution=how)


def execution(
    mode: str,
    sizes: Collection[int],
    device: torch.device,
    uncompiled_sizes: Collection[int] = (),
) -> Execution:
    """`eager`; `compile`, which on a CPU is the C++ kernel with all else compiled; or `graph`.
    sizes: of the batches at which steps are compiled or captured; at others they run operator by
    operator, those of the kernel included. uncompiled_sizes: at which `graph` captures them without
    a compiler, unless `sizes` has them too. Raises DecoderError on another name, and for CUDA
    graphs on another device."""
    compiled_folder()
    if mode == "eager":
        return Eager()
    if mode == "compile" and device.type == "cpu":
        from decoders.execution.cpu.execution import Kernel

        return Kernel(sizes)
    if mode == "compile":
        from decoders.execution.compiled import Compiled

        return Compiled(sizes)
    if mode != "graph":
        raise DecoderError(f"execution is 'eager', 'compile' or 'graph', found {mode!r}")
    if device.type != "cuda":
        raise DecoderError(
            f"a CUDA graph was asked for on {device}: use backend=cuda_graph on a CUDA device, or "
            "backend=cpu"
        )
    from decoders.execution.cuda_graphs import Graphed

    return Graphed(sizes, uncompiled_sizes=uncompiled_sizes)
