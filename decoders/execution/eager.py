"""Eager execution, and how a loop's pieces are run one after the other.

A loop's step is a chain of *pieces*: functions of the run's state, each given what the one before
returned. Pieces have static shapes and never wait for the device, so the same ones run as they are
(here), through torch.compile (`compiled.py`), captured and replayed (`cuda_graphs.py`), or with
layers and matrices of a kernel (`cpu`). The state of B images is an object of any kind; its tensors
are what a piece reads and changes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar

from decoders.api import Decoder, Execution, Loop


class Eager(Execution):
    """Operator by operator."""

    name: ClassVar[str] = "eager"

    def begin(self, loop: Loop, state: Any) -> Any:
        state.path = {phase: "eager" for phase, _ in loop.pieces()}
        return state

    def step(self, loop: Loop, state: Any, carries: list[Any] | None = None) -> tuple[Any, ...]:
        carry: tuple[Any, ...] = ()
        for phase, piece in loop.pieces():
            carry = piece(state, *carry)
            if carries is not None:
                carries.append(carry)
            state.watch.lap(phase)
        return carry


def release(decoder: Decoder, sizes: Container[int] = ()) -> bool:
    """Drops what an execution keeps for a decoder's runs of other batch sizes than these; returns
    whether there was any. What it keeps for other shapes goes when `sizes` is empty."""
    prepared = decoder.prepared
    dropped = [size for size in prepared if not sizes or (type(size) is int and size not in sizes)]
    for size in dropped:
        del prepared[size]
    return bool(dropped)
