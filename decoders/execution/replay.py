"""A step of compiled graphs, called again and again with the tensors of its first call.

Shapes are static, and most of a run's state stays in the same tensors from step to step. So what an
image's first step handed to its graphs is right for the later ones too, but for two kinds of
tensors that are new in every step: what one graph hands to the next, and what a step binds anew to
the run, as a session may do with its last code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from decoders.api import Piece
from decoders.execution.state import Slot, form, get, numbers, put, slots

Source = tuple[int, int]  # (graph, output) that a tensor is of
Outputs = Sequence[Sequence[Any]]  # of each graph
Build = Callable[[Outputs], Any]
Bound = dict[str, tuple[Slot, Tensor]]  # by path a tensor, and where it is bound


def chain(pieces: Sequence[Piece], run: Any) -> tuple[Any, ...]:
    """Runs the pieces one after the other, charging their time to their phases."""
    carry: tuple[Any, ...] = ()
    for phase, piece in pieces:
        carry = piece(run, *carry)
        run.watch.lap(phase)
    return carry


class Steps:
    """The steps of one run. The first one goes through the pieces; where each of them was one
    graph, and all that it bound to the run are outputs of these, the later ones call the graphs."""

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
        self.first, before, count = False, bound(run), numbers(run)
        carry = chain(self.pieces, run)
        pieces: list[Any] = [piece for _, piece in self.pieces]
        graphs, after = [piece.used for piece in pieces], bound(run)
        if None not in graphs and after.keys() == before.keys() and numbers(run) == count:
            self.replayed = Replayed.of(
                [name for name, _ in self.pieces], graphs, carry, before, after
            )
        for piece, graph in zip(pieces, graphs, strict=True):
            piece.recorded = False
            if graph is not None:
                graph.forget()
        run.watch.restart()
        return carry


def bound(run: Any) -> Bound:
    """By path the tensors of a run, and where they are bound."""
    return {path: (slot, tensor) for path, slot, tensor in slots(run)}


class Replayed:
    """Graphs one after the other, as they were called last."""

    def __init__(
        self,
        phases: Sequence[str],
        graphs: Sequence[Any],
        carry: Any,
        changed: Sequence[tuple[Slot, Tensor, Tensor]],
        made: dict[int, Source],
    ) -> None:
        """carry: what the last piece returned; changed: slots of the run, and the tensors that
        were bound to them before and after; made: by a tensor's id which output it is."""
        self.changed = [(slot, made[id(new)]) for slot, _, new in changed]
        before, known = {id(old): slot for slot, old, _ in changed}, dict[int, Source]()
        self.calls: list[tuple[str, Callable[..., Sequence[Any]], list[Any], Any, Any]] = []
        for k, (phase, graph) in enumerate(zip(phases, graphs, strict=True)):
            given = [*graph.inputs]
            handed = [(i, *known[id(x)]) for i, x in enumerate(given) if id(x) in known]
            anew = [(i, before[id(x)]) for i, x in enumerate(given) if id(x) in before]
            self.calls.append((phase, graph.compiled, given, handed, anew))
            known |= {key: source for key, source in made.items() if source[0] == k}
        self.carry, self.build = carry, builder(carry, made)

    @classmethod
    def of(
        cls, phases: Sequence[str], graphs: Sequence[Any], carry: Any, before: Bound, after: Bound
    ) -> Replayed | None:
        """None where the step bound something else than outputs of its graphs, or in another form,
        or in the place of a tensor that is bound twice: which of the two a graph has read is not
        known."""
        made = {
            id(x): (k, j)
            for k, graph in enumerate(graphs)
            for j, x in enumerate(graph.outputs)
            if isinstance(x, Tensor)
        }
        pairs = [(slot, before[path][1], new) for path, (slot, new) in after.items()]
        changed = [(slot, old, new) for slot, old, new in pairs if new is not old]
        times = Counter(id(tensor) for _, tensor in before.values())
        for _, old, new in changed:
            if id(new) not in made or form(new) != form(old) or times[id(old)] > 1:
                return None
        return cls(phases, graphs, carry, changed, made)

    def __call__(self, run: Any) -> tuple[Any, ...]:
        outputs: list[Sequence[Any]] = []
        for phase, call, given, handed, anew in self.calls:
            for i, k, j in handed:
                given[i] = outputs[k][j]
            for i, (owner, name) in anew:
                given[i] = get(owner, name)
            outputs.append(call(*given))
            run.watch.lap(phase)
        for (owner, name), (k, j) in self.changed:
            put(owner, name, outputs[k][j])
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
