"""What a loop asks of a backend, and eager execution.

A loop's step is a chain of *pieces*: functions of the run's state, each given what the one before
returned. Pieces have static shapes and never wait for the device, so the same ones run as they are
(here), through torch.compile (`compiled.py`) or recorded once and replayed (`graphs.py`). The state
of B images is an object of any kind; its tensors are what a piece reads and changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from decoders.api import DecoderError

Piece = tuple[str, Callable[..., tuple[Any, ...]]]  # (phase that its time is charged to, function)


class Loop(Protocol):
    prepared: dict[Any, Any]  # what a backend keeps for this loop, by the run's shape

    def pieces(self) -> Sequence[Piece]:
        """The chain of one step: the first is called with the run alone, each later one with the
        run and what the one before returned."""
        ...


class Execution(Protocol):
    name: str
    grows: bool  # whether caches may grow within an image: shapes then change between steps

    def begin(self, loop: Loop, run: Any) -> Any:
        """The run to go on with: the given one, or one whose tensors stay where a recorded step
        expects them."""
        ...

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        """One step; returns what the last piece returned. Charges laps to `run.watch`."""
        ...


def chain(pieces: Sequence[Piece], run: Any) -> tuple[Any, ...]:
    """Runs the pieces one after the other, charging their time to their phases."""
    carry: tuple[Any, ...] = ()
    for phase, piece in pieces:
        carry = piece(run, *carry)
        run.watch.lap(phase)
    return carry


class Eager:
    """Operator by operator."""

    name, grows = "eager", True

    def begin(self, loop: Loop, run: Any) -> Any:
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        return chain(loop.pieces(), run)


def execution(mode: str) -> Execution:
    """`eager`, `compile` or `graph`. Raises DecoderError on another name."""
    if mode == "eager":
        return Eager()
    if mode == "compile":
        from decoders.backends.compiled import Compiled

        return Compiled()
    if mode == "graph":
        from decoders.backends.graphs import Graphed

        return Graphed()
    raise DecoderError(f"execution is 'eager', 'compile' or 'graph', found {mode!r}")
