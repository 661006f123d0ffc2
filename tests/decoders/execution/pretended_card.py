"""A CUDA card that is not there, for tests of what is captured: tensors in the processor's memory
that say that they are on a card, and graphs that keep the rules of CUDA graphs.

* A capture runs nothing that lasts: what it wrote is put back, what it made is overwritten.
* A replay runs the captured operators on the captured memory, and no Python of the step.
* Memory that only the capture used belongs to other graphs between replays: it is overwritten.
* What waits for the device breaks a capture.
* A capture that broke leaves its stream current.

There is no compiler, no second stream and no time: only a card shows races, and what is fused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from decoders.execution.compiled import compiles

CUDA = torch.device("cuda", 0)
WAITING = (
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2",
    "unique_dim",
)  # fmt: skip
TO_HOST = (Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.item)


class Graph:
    """What `torch.cuda.CUDAGraph` is on the pretended card: a list of operators."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.held: dict[int, Any] = {}  # storages that the operators read or write, by address
        self.aliases: list[Tensor] = []  # of the operators' tensors
        self.mine: Counter[int] = Counter()  # aliases on each
        self.new: set[int] = set()  # those allocated while capturing
        self.before: dict[int, Any] = {}  # what those of others held before they were written
        self.broken = False

    def note(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator and keeps it."""
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        inputs = {x.untyped_storage()._cdata for x in given}
        if func._schema.is_mutable:
            for x in given:
                storage = x.untyped_storage()
                if storage._cdata not in self.new and storage._cdata not in self.before:
                    self.before[storage._cdata] = storage.clone()
        aliased = tree_map(self._alias, (args, kwargs))
        out = func(*args, **kwargs)
        fresh = []
        for place, x in enumerate(tree_flatten(out)[0]):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in inputs:
                self.new.add(x.untyped_storage()._cdata)
                fresh.append((place, self._alias(x)))
        if "empty" not in func._schema.name:  # that only allocates, which replays do not
            self.calls.append((func, *aliased, fresh))
        return out

    def _alias(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        storage = x.untyped_storage()
        self.held.setdefault(storage._cdata, storage)
        self.mine[storage._cdata] += 1
        self.aliases.append(x.detach())
        return self.aliases[-1]

    def end(self) -> None:
        """Nothing has been run."""
        for where, storage in self.before.items():
            self.held[where].copy_(storage)
        self.before.clear()
        for where in self.new:
            self.held[where].fill_(0xFF)

    def _used(self, where: int) -> bool:
        """Whether anything but this object holds the storage."""
        uses = self.mine[where] + 1  # and the one in `held`
        return torch._C._storage_Use_Count(where) > uses

    def replay(self) -> None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            for where in self.held.keys() - self.new:
                assert self._used(where), "a replay reads memory that was freed"
            for func, args, kwargs, fresh in self.calls:
                out = tree_flatten(func(*args, **kwargs))[0]
                for place, x in fresh:
                    x.copy_(out[place])
            for where in self.new:
                if not self._used(where):
                    self.held[where].fill_(0xFF)


class Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def synchronize(self) -> None: ...


class Event:
    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Card:
    """The device: its streams, and the graph that is being captured."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.graph: Graph | None = None

    def waits(self, what: str) -> None:
        """The host waits for the device."""
        if self.graph is not None:
            self.graph.broken = True
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def synchronize(self, *_: Any) -> None:
        if self.graph is not None:  # the debug mode does not see this one
            self.waits("synchronize")

    @contextmanager
    def capturing(self, graph: Graph, **options: Any) -> Iterator[None]:
        before, self.stream = self.stream, options.get("stream") or Stream()
        self.graph = graph
        try:
            yield
        finally:
            self.graph = None
            if graph.broken:
                raise RuntimeError("operation failed due to a previous error during capture")
            self.stream = before
        graph.end()

    @contextmanager
    def streaming(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


def on_host(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x


class Saying(TorchFunctionMode):
    """Tensors say that they are on the card."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return CUDA
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func in TO_HOST or (func is Tensor.to and torch.device("cpu") in _devices(args)):
            self.card.waits(func.__name__)
            return func(args[0].clone(), *args[1:], **kwargs)
        names = {k: torch.device(v) if k == "device" and v else v for k, v in kwargs.items()}
        if func is Tensor.to:
            args = tuple(torch.device(x) if isinstance(x, str) else x for x in args)
        return func(*(on_host(x) for x in args), **{k: on_host(v) for k, v in names.items()})


def _devices(args: Any) -> list[torch.device]:
    return [torch.device(x) for x in args if isinstance(x, str | torch.device)]


def must_wait(func: Any, args: Any) -> bool:
    """Whether the host must read an operator's result before it can go on."""
    name = func._schema.name.partition("::")[2]
    masks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
    return name in WAITING or masks


class Watching(TorchDispatchMode):
    """Captures operators, and sees those that wait."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if must_wait(func, args):
            self.card.waits(func._schema.name)
        if self.card.graph is not None:
            return self.card.graph.note(func, args, kwargs)
        return func(*args, **kwargs)


def no_compiler(*_: Any, **__: Any) -> Callable[..., Any]:
    raise RuntimeError("a pretended card has no compiler")


@contextmanager
def pretended() -> Iterator[Card]:
    """A card for what runs inside."""
    card = Card()
    answers = {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "Event": Event,
        "graph": card.capturing,
        "stream": card.streaming,
        "current_stream": lambda *_: card.stream,
        "set_stream": lambda stream: setattr(card, "stream", stream),
        "synchronize": card.synchronize,
        "graph_pool_handle": object,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", answer))
        stack.enter_context(mock.patch("torch.compile", no_compiler))
        compiles.cache_clear()
        stack.callback(compiles.cache_clear)
        stack.enter_context(Saying(card))
        stack.enter_context(Watching(card))
        yield card
