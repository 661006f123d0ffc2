"""Execution on a CPU: every piece of a step is compiled, with layers and matrices as operators of
the project's C++ kernel, where Inductor's own code is slow."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Any

import torch

from decoders.api import DecoderError, Execution, ImageModel, Loop
from decoders.execution.compiled import Compiled
from decoders.execution.cpu.layers import pack, pack_matrices, reason
from decoders.execution.cpu.library import missing
from decoders.execution.eager import Eager

logger = logging.getLogger(__name__)


class Cpu(Execution):
    """The execution. compiled_sizes: batch sizes at which pieces are compiled. At others, which are
    not timed, they run operator by operator: compiling would not pay."""

    name = "cpu"

    def __init__(self, compiled_sizes: Container[int] = ()) -> None:
        self.compiled_sizes, self.compiler, self.eager = compiled_sizes, Compiled(), Eager()

    def uncompiled(self) -> Cpu | None:
        """The same operators of the kernel, one by one."""
        return Cpu() if self.compiled_sizes else None

    def prepare(self, model: ImageModel) -> None:
        """Packs the target. A model that the kernel cannot run keeps PyTorch's operators, with a
        warning. Raises DecoderError where the kernel cannot be built."""
        why = missing()
        if why is not None:
            raise DecoderError(f"backend.layers=native: {why}; or use backend.layers=torch")
        self.offer(model.target, model.name)

    def offer(self, net: Any, name: str) -> None:
        """Packs a net, where the kernel can run it: its layers and matrix are operators then."""
        if net.packed is not None:
            return
        why = reason(net)
        if why is None:
            net.packed = pack(net)
        else:
            logger.warning("the CPU kernel does not run %s: %s; PyTorch does", name, why)

    def fit(self, loop: Any) -> None:
        """Packs the proposer's net."""
        target, drafter = loop.model.target, loop.drafter
        net = None if drafter is None else drafter.net
        if target.packed is not None and isinstance(net, torch.nn.Module):
            body = getattr(net, "body", net)
            if hasattr(body, "packed"):
                self.offer(body, f"drafter {drafter}")
            pack_matrices(net, loop.model.dtype)

    def begin(self, loop: Loop, state: Any) -> Any:
        return self._of(state).begin(loop, state)

    def step(self, loop: Loop, state: Any) -> tuple[Any, ...]:
        return self._of(state).step(loop, state)

    def _of(self, state: Any) -> Execution:
        return self.compiler if state.shape in self.compiled_sizes else self.eager
