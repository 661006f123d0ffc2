"""Execution on a CPU: layers and matrices are operators of the project's C++ kernel, where
Inductor's own code is slow, and every other piece of a step is compiled."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, Execution, ImageModel, Target, TextFeatures
from decoders.execution.compiled import Compiled
from decoders.execution.cpu.layers import KernelLinear, layered, reason, swap_layers, swap_matrices
from decoders.execution.cpu.library import missing

logger = logging.getLogger(__name__)


@dataclass
class Kernel(Compiled):
    """The execution. At batch sizes that are not compiled a step is the same operators, one by one.
    nets: by its identity a net, and what runs in its place."""

    nets: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def uncompiled(self) -> Execution | None:
        return replace(self, sizes=()) if self.sizes else None

    def original(self, target: Target) -> Target:
        every = (net for net, twin in self.nets.values() if twin is target and net is not twin)
        return next(every, target)

    def prepare(self, model: ImageModel) -> ImageModel:
        """Raises DecoderError where the kernel cannot be built."""
        if why := missing():
            raise DecoderError(
                f"backend.execution=compile on a processor: {why}; or set backend.execution=eager"
            )
        return replace(model, target=self.swapped(model.target, model.name))

    def fit(self, loop: Any) -> None:
        model, drafter = loop.model, loop.drafter
        target = self.swapped(model.target, f"a target of {model.name}")
        if target is not model.target:
            loop.model = replace(model, target=target)
        if drafter is not None and isinstance(drafter.net, nn.Module) and reason(target) is None:
            drafter.net = self.swapped(drafter.net, f"drafter {drafter}", model.dtype)

    def swapped(self, net: Any, name: str, dtype: torch.dtype | None = None) -> Any:
        """A net with modules of the kernel, made once: a copy that shares the weights, so that the
        net itself still runs without the kernel. The net itself, with a warning, for a target that
        the kernel cannot run. name: for the warning; dtype: of a drafter's matrices."""
        if id(net) not in self.nets:
            body = layered(net) if dtype is not None else net
            why = None if body is None else reason(body)
            if why is not None:
                logger.warning("the CPU kernel does not run %s: %s; PyTorch does", name, why)
            twin = net
            if why is None or dtype is not None:
                parts = [part for part in net.modules() if isinstance(part, KernelLinear)]
                shared = [*net.parameters(), *net.buffers(), *parts]
                twin = copy.deepcopy(net, {id(each): each for each in shared})
            if body is not None and why is None:
                swap_layers(layered(twin))
            if dtype is not None:
                swap_matrices(twin, dtype)
            self.nets[id(net)] = net, twin
            self.nets[id(twin)] = twin, twin
        return self.nets[id(net)][1]

    def prefill(self, target: Target, text: TextFeatures, copies: int, cache: Any) -> Tensor:
        """It is the target's layers, which are one operator: nothing is left to compile."""
        return target.prefill(text, copies, cache)
