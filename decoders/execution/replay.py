"""A step of compiled graphs, called again and again with the tensors of its first call.

The state of a run stays in the same tensors from step to step, and shapes are static. So what an
image's first step handed to its graphs is right for the later ones too, but for what one graph
hands to the next: those tensors are new in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from decoders.api import Piece
from decoders.execution.state import numbers, tensors

Source = tuple[int, int]  # (graph, output) that a tensor is of
Outputs = Sequence[Sequence[Any]]  # of each graph
Build = Callable[[Outputs], Any]


def chain(pieces: Sequence[Piece], run: Any) -> tuple[Any, ...]:
    """Runs the pieces one after the other, charging their time to their phases."""
    carry: tuple[Any, ...] = ()
    for phase, piece in pieces:
        carry = piece(run, *carry)
        run.watch.lap(phase)
    return carry


class Steps:
    """The steps of one run. The first one goes through the pieces; where each of them was one
    graph, and none bound another tensor or number to the run, the later ones call the graphs."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.replayed: Replayed | None = None
        self.first = all(hasattr(piece, "used") for _, piece in pieces)
        for _, piece in pieces:
            if hasattr(piece, "used"):
                piece.recorded = self.first  # type: ignore[attr-defined]

    def __call__(self, run: Any) -> tuple[Any, ...]:
        if self.replayed is not None:
            return self.replayed(run)
        if not self.first:
            return chain(self.pieces, run)
        self.first, before = False, (tensors(run), numbers(run))
        carry = chain(self.pieces, run)
        pieces: list[Any] = [piece for _, piece in self.pieces]
        graphs = [piece.used for piece in pieces]
        after = tensors(run), numbers(run)
        same = after[1] == before[1] and after[0].keys() == before[0].keys()
        same = same and all(tensor is before[0][path] for path, tensor in after[0].items())
        if same and None not in graphs:
            self.replayed = Replayed([phase for phase, _ in self.pieces], graphs, carry)
        for piece, graph in zip(pieces, graphs, strict=True):
            piece.recorded = False
            if graph is not None:
                graph.forget()
        run.watch.restart()
        return carry


class Replayed:
    """Graphs one after the other, as they were called last; carry: what the last piece returned
    then."""

    def __init__(self, phases: Sequence[str], graphs: Sequence[Any], carry: Any) -> None:
        made: dict[int, Source] = {}
        self.calls: list[tuple[str, Callable[..., Sequence[Any]], list[Any], list[Any]]] = []
        for k, (phase, graph) in enumerate(zip(phases, graphs, strict=True)):
            given = [*graph.inputs]
            handed = [(i, *made[id(x)]) for i, x in enumerate(given) if id(x) in made]
            self.calls.append((phase, graph.compiled, given, handed))
            made |= {id(x): (k, j) for j, x in enumerate(graph.outputs) if isinstance(x, Tensor)}
        self.carry, self.build = carry, builder(carry, made)

    def __call__(self, run: Any) -> tuple[Any, ...]:
        outputs: list[Sequence[Any]] = []
        for phase, call, given, handed in self.calls:
            for i, k, j in handed:
                given[i] = outputs[k][j]
            outputs.append(call(*given))
            run.watch.lap(phase)
        carry: tuple[Any, ...] = self.carry if self.build is None else self.build(outputs)
        return carry


def builder(value: Any, made: Mapping[int, Source]) -> Build | None:
    """What makes `value` anew from the outputs of graphs; None where it is the same in every step,
    as it holds none of them. made: by a tensor's id which output it is."""
    if id(value) in made:
        k, j = made[id(value)]
        return lambda outputs: outputs[k][j]
    if isinstance(value, tuple | list):
        members: dict[Any, Any] = dict(enumerate(value))
    elif isinstance(value, Tensor) or not hasattr(value, "__dict__"):
        return None
    else:
        members = vars(value)
    builds = {name: builder(one, made) for name, one in members.items()}
    changing = [(name, build) for name, build in builds.items() if build is not None]
    if not changing:
        return None
    kind, sequence = type(value), isinstance(value, tuple | list)

    def build(outputs: Outputs) -> Any:
        other = dict(members)
        for name, part in changing:
            other[name] = part(outputs)
        if sequence:
            return kind(other.values())
        new = object.__new__(kind)
        vars(new).update(other)
        return new

    return build
