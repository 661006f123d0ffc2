"""A step of compiled graphs, called again and again with the tensors of its first call.

Shapes are static, and most of a run's state stays in the same tensors from step to step. So what an
image's first step handed to its graphs is right for the later ones too, but for two kinds of
tensors that are new in every step: what one graph hands to the next, and what a step binds anew to
the run, as a session may do with its last code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decoders.api import Piece
from decoders.execution.eager import chain
from decoders.execution.state import Slot, get, numbers, put, signature_of, tensor_slots

Source = tuple[int, int]  # (graph, output) that a tensor is of
Outputs = Sequence[Sequence[Any]]  # of each graph
Build = Callable[[Outputs], Any]
Bound = dict[str, tuple[Slot, Tensor]]  # by path a tensor, and where it is bound


class Steps:
    """The steps of one run. The first one goes through the pieces; where it can be repeated
    (`FirstStep`), the later ones call its graphs."""

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
            step = FirstStep([name for name, _ in self.pieces], graphs, carry, before, after)
            self.replayed = Replayed(step) if step.repeats else None
        for piece, graph in zip(pieces, graphs, strict=True):
            piece.recorded = False
            if graph is not None:
                graph.forget()
        run.watch.restart()
        return carry


def bound(run: Any) -> Bound:
    """Path -> (where it is bound, tensor), for the tensors of a run."""
    return {path: (slot, tensor) for path, slot, tensor in tensor_slots(run)}


@dataclass(frozen=True)
class FirstStep:
    """What an image's first step has shown, each of its pieces being one graph."""

    phases: Sequence[str]
    graphs: Sequence[Any]  # with their `inputs` and `outputs`
    carry: Any  # what the last piece returned
    before: Bound
    after: Bound

    @property
    def sources(self) -> dict[int, Source]:
        """Tensor id -> the graph whose output it is."""
        return {
            id(x): (k, j)
            for k, graph in enumerate(self.graphs)
            for j, x in enumerate(graph.outputs)
            if isinstance(x, Tensor)
        }

    @property
    def changed(self) -> list[tuple[Slot, Tensor, Tensor]]:
        """Slots of the run, and the tensors that were bound to them before and after."""
        pairs = [(slot, self.before[path][1], new) for path, (slot, new) in self.after.items()]
        return [(slot, old, new) for slot, old, new in pairs if new is not old]

    @property
    def repeats(self) -> bool:
        """Whether its graphs alone can repeat it. Not where it bound something else than their
        outputs, or with another signature, or in the place of a tensor that is bound twice: which
        of the two a graph has read cannot be seen."""
        sources = self.sources
        times = Counter(id(tensor) for _, tensor in self.before.values())
        return all(
            id(new) in sources and signature_of(new) == signature_of(old) and times[id(old)] == 1
            for _, old, new in self.changed
        )


class Replayed:
    """The graphs of a step one after the other, as they were called last."""

    def __init__(self, step: FirstStep) -> None:
        sources = step.sources
        self.changed = [(slot, sources[id(new)]) for slot, _, new in step.changed]
        before = {id(old): slot for slot, old, _ in step.changed}
        earlier = dict[int, Source]()  # outputs of the graphs before
        self.calls: list[tuple[str, Callable[..., Sequence[Any]], list[Any], Any, Any]] = []
        for k, (phase, graph) in enumerate(zip(step.phases, step.graphs, strict=True)):
            inputs = [*graph.inputs]
            handed = [(i, *earlier[id(x)]) for i, x in enumerate(inputs) if id(x) in earlier]
            anew = [(i, before[id(x)]) for i, x in enumerate(inputs) if id(x) in before]
            self.calls.append((phase, graph.compiled, inputs, handed, anew))
            earlier |= {key: source for key, source in sources.items() if source[0] == k}
        self.carry, self.build = step.carry, builder(step.carry, sources)

    def __call__(self, run: Any) -> tuple[Any, ...]:
        outputs: list[Sequence[Any]] = []
        for phase, call, inputs, handed, anew in self.calls:
            for i, k, j in handed:
                inputs[i] = outputs[k][j]
            for i, (owner, name) in anew:
                inputs[i] = get(owner, name)
            outputs.append(call(*inputs))
            run.watch.lap(phase)
        for (owner, name), (k, j) in self.changed:
            put(owner, name, outputs[k][j])
        carry: tuple[Any, ...] = self.carry if self.build is None else self.build(outputs)
        return carry


def builder(value: Any, sources: Mapping[int, Source]) -> Build | None:
    """What makes `value` anew from the outputs of graphs; None where it is the same in every step,
    as it holds none of them. sources: by a tensor's id which output it is."""
    if id(value) in sources:
        k, j = sources[id(value)]
        return lambda outputs: outputs[k][j]
    if isinstance(value, tuple | list):
        members: dict[Any, Any] = dict(enumerate(value))
    elif isinstance(value, Tensor) or not hasattr(value, "__dict__"):
        return None
    else:
        members = vars(value)
    builds = {name: builder(one, sources) for name, one in members.items()}
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
