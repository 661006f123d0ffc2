"""Several processes on one training (torchrun): gradients summed, work shared, one of them writes.

With one process nothing is initialised and every function here does nothing. Gradients are summed
by hand, in one flat buffer after the last micro-batch: a drafter is one layer, so there is nothing
to overlap, and the sum is the same as that of accumulation in one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """This process's place among those of the training."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Adds the gradients of all processes, in place."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        torch.distributed.all_reduce(flat)
        for gradient, summed in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(summed.view_as(gradient))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self.size > 1:
            value = value.clone()
            torch.distributed.all_reduce(value)
        return value

    def share(self, value: float) -> float:
        """What the leading process says: clocks differ."""
        if self.size == 1:
            return value
        said = [value]
        torch.distributed.broadcast_object_list(said, src=0)
        return said[0]


def planned() -> World:
    """The world that torchrun describes in the environment, or this process alone."""
    return World(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The processes of the training, connected while the context lasts."""
    world = planned()
    if world.size == 1:
        yield world
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield world
    finally:
        torch.distributed.destroy_process_group()
