"""What a loop asks of an execution, and eager execution.

A loop's step is a chain of *pieces*: functions of the run's state, each given what the one before
returned. Pieces have static shapes and never wait for the device, so the same ones run as they are
(here), through torch.compile (`compiled.py`), recorded once and replayed (`graphs.py`), or with
calls of a kernel in the place of some (`cpu`). The state of B images is an object of any kind; its
tensors are what a piece reads and changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from decoders.api import ImageModel
from decoders.execution.state import rebind, tensors

Piece = tuple[str, Callable[..., tuple[Any, ...]]]  # (phase that its time is charged to, function)


class Loop(Protocol):
    prepared: dict[Any, Any]  # what an execution keeps for this loop, by the run's shape
    static: bool  # whether all steps of a run have the same shapes, so that they can be compiled

    def pieces(self) -> Sequence[Piece]:
        """The chain of one step: the first is called with the run alone, each later one with the
        run and what the one before returned."""
        ...


class Execution(Protocol):
    name: str

    def uncompiled(self) -> Execution | None:
        """The same without a compiler, to compare with; None where it compiles nothing, or where
        another way of adding up makes other codes."""
        ...

    def prepare(self, model: ImageModel) -> None:
        """Called once a model is loaded, its weights final. Raises DecoderError where the execution
        cannot run here."""
        ...

    def fit(self, loop: Any) -> bool:
        """Called once when a loop is built: an execution may give its parts faster functions.
        Returns whether caches may grow within an image: shapes then change between steps."""
        ...

    def begin(self, loop: Loop, run: Any) -> Any:
        """The run to go on with: the given one, or one whose tensors stay where a recorded step
        expects them."""
        ...

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        """One step; returns what the last piece returned. Charges laps to `run.watch`."""
        ...


def kept_run(loop: Loop, shape: Any) -> Any:
    """The run that an execution keeps for a loop's runs of a shape, as a recorded step goes on in
    its tensors: what is prefilled there need not be copied there. None where it keeps none."""
    return getattr(loop.prepared.get(shape), "run", None)


def chain(pieces: Sequence[Piece], run: Any) -> tuple[Any, ...]:
    """Runs the pieces one after the other, charging their time to their phases."""
    carry: tuple[Any, ...] = ()
    for phase, piece in pieces:
        carry = piece(run, *carry)
        run.watch.lap(phase)
    return carry


def once(pieces: Sequence[Piece], run: Any) -> tuple[Any, ...]:
    """A step that leaves every tensor of the state where it was."""
    before = tensors(run)
    carry: tuple[Any, ...] = ()
    for _, piece in pieces:
        carry = piece(run, *carry)
    rebind(run, before)
    return carry


class Eager:
    """Operator by operator."""

    name = "eager"

    def uncompiled(self) -> None:
        return None

    def prepare(self, model: ImageModel) -> None:
        """Nothing to do."""

    def fit(self, loop: Any) -> bool:
        return True

    def begin(self, loop: Loop, run: Any) -> Any:
        run.path = {phase: "eager" for phase, _ in loop.pieces()}
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        return chain(loop.pieces(), run)
