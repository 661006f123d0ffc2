"""Steps as CUDA graphs: the whole step is compiled, captured once and replayed with one launch.

The compiler fuses what any rule, tree or drafter does between two matrix products, so that nobody
writes a kernel for it. A piece that it cannot compile, and every piece where there is no working
compiler, is captured operator by operator; a warning says so.

A captured step reads and writes fixed addresses. So the state of the first image of a (loop, batch
size) stays. Later images are prefilled into its caches; the rest of their state is copied into it
before their first step. What a piece binds anew is copied back to where the next step reads it
(`state.rebind`). A step is captured on the first image before its first timed step; its state, but
for the caches, is copied before (`state.snapshot`) and put back after every step that a capture
takes, so that each of them is the image's first. The prefill is captured likewise, once for all
decoders of a batch size.

Only one graph of a study runs at a time. So all share one memory pool, one cache of the target for
each number of rows, and one stream, whose libraries' workspaces then exist before the first
capture, once.

Other batches, up to the size of a study's quality batches, are captured without a compiler. A
capture costs four steps, so it pays within the first image, and their codes are those of eager
steps: which of them the memory holds changes no image. Each has a pool of its own, whose memory is
free when its step is dropped or could not be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Loop, Piece, Target, TextFeatures
from decoders.cache import round_up
from decoders.execution.compiled import Compiled, compiles
from decoders.execution.eager import Eager
from decoders.execution.gpu import capturing, fastest_attention, products
from decoders.execution.state import fill, rebind, signature_of, snapshot, step_in_place, tensors
from decoders.models.nets.attention import attending

WARM_UP_STEPS = 2  # steps before the capture: libraries allocate their workspaces in the first ones


@dataclass
class CapturedStep:
    """A step that was captured on `state`; `carries` are what its pieces returned, rewritten by
    every replay: as long as they are held, their memory belongs to no other graph."""

    replay: Callable[[], None]
    state: Any
    carries: list[Any]


@dataclass
class CapturedPrefill:
    """A prefill that was captured: it reads the captions in `text`, fills a cache of the prefix
    alone, and writes `hidden` [R, P, D]."""

    replay: Callable[[], None]
    text: TextFeatures
    cache: Any
    hidden: Tensor


@dataclass(frozen=True)
class Pool:
    """Memory that graphs share, and the stream they are captured on. `anchor` is a graph of the
    pool that is never dropped: a pool whose graphs are all gone cannot be captured into again while
    anything in it is alive."""

    handle: Any
    stream: Any
    anchor: Any


def pool(device: torch.device) -> Pool:
    """A new pool on a CUDA device."""
    handle, stream, graph = (
        torch.cuda.graph_pool_handle(),
        torch.cuda.Stream(device),
        torch.cuda.CUDAGraph(),
    )
    stream.wait_stream(torch.cuda.current_stream(device))
    with capturing(graph, pool=handle, stream=stream):
        memory = torch.zeros(1, device=device)
    return Pool(handle, stream, (graph, memory))


@dataclass
class Graphed(Compiled):
    """One graph a step: in batches of `sizes` of compiled pieces, in those of `uncompiled_sizes` of
    pieces as they are. Times of the phases are not known: all is charged to `step`."""

    name: ClassVar[str] = "graph"
    uncompiled_sizes: Collection[int] = ()
    replays: int = 0
    attention: tuple[str, int] = ("", 0)  # see `fastest_attention`
    # By target, batch size and shape of the captions; by target and rows.
    _prefills: dict[Any, CapturedPrefill] = field(default_factory=dict, repr=False)
    _caches: dict[Any, Any] = field(default_factory=dict, repr=False)
    _loops: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    _pool: Pool | None = field(default=None, repr=False)
    _broken: list[Any] = field(default_factory=list, repr=False)
    # Of the last run that began, its loop and size; by loop, sizes that are captured no more.
    _last: tuple[int, int] = field(default=(0, 0), repr=False)
    _given_up: WeakKeyDictionary[Any, set[int]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    def prepare(self, model: ImageModel) -> ImageModel:
        """Chooses the attention."""
        rows = model.sampling.guidance_rows
        self.attention = fastest_attention(model.target, rows, model.device)
        return model

    def fit(self, loop: Any) -> None:
        """Remembers a loop for the size of the cache that all share."""
        self._loops.add(loop)

    def new_cache(self, target: Target, rows: int, capacity: int) -> Any:
        """A part of the cache that all loops of a target share at this number of rows, as large as
        the largest of them needs. One that no captured step reads any more is dropped."""
        states = [each.state for loop in self._loops for each in loop.prepared.values()]
        used = {state.cache.data.untyped_storage().data_ptr() for state in states}
        live = self._caches.items()
        self._caches = {k: c for k, c in live if c.data.untyped_storage().data_ptr() in used}
        shared = self._caches.get((id(target), rows))
        if shared is None or shared.capacity < capacity:
            slots = [loop.slots for loop in self._loops if loop.model.target is target]
            shared = target.new_cache(rows, max(capacity, *slots, 0))
            self._caches[id(target), rows] = shared
        return shared.narrowed(capacity).clear()

    def captured_state(self, loop: Loop, shape: Any) -> Any:
        return loop.prepared[shape].state if shape in loop.prepared else None

    def prefill(self, target: Target, text: TextFeatures, copies: int, cache: Any) -> Tensor:
        """Captured with a cache for the prefix alone, so that decoders with caches of any size
        share it."""
        if text.batch not in self.sizes:
            return target.prefill(text, copies, cache)
        key = id(target), copies, signature_of(text)
        captured = self._prefills.get(key)
        if captured is None:
            with attending(*self.attention):
                captured = self._prefills[key] = self._capture_prefill(target, text, copies)
        fill(captured.text, tensors(text))
        captured.replay()
        cache.begin_as(captured.cache)
        return captured.hidden.clone()

    def _capture_prefill(self, target: Target, text: TextFeatures, copies: int) -> CapturedPrefill:
        text, device = text.clone(), text.mask.device
        small = target.new_cache(text.batch * copies, round_up(target.prefix))
        piece: Any = target.prefill
        if self._compiles(device):
            piece = self.compile_prefill(target, text, copies, small)
        replay, (hidden,) = self._capture(
            lambda: [piece(text, copies, small)], lambda: None, device
        )
        return CapturedPrefill(replay, text, small, hidden)

    def begin(self, loop: Loop, state: Any) -> Any:
        self._last, timed = (id(loop), state.shape), state.shape in self.sizes
        if not timed and not self._captures_uncompiled(loop, state.shape):
            return Eager.begin(self, loop, state)
        if state.shape not in loop.prepared:
            capture = self._capture_timed if timed else self._capture_uncompiled
            loop.prepared[state.shape] = capture(loop, state)
            return state
        captured = loop.prepared[state.shape]
        captured.state.watch, captured.state.pairs = state.watch, state.pairs
        fill(captured.state, tensors(state))
        state.watch.lap("prefill")
        return captured.state

    def step(self, loop: Loop, state: Any, carries: list[Any] | None = None) -> tuple[Any, ...]:
        captured = loop.prepared.get(state.shape)
        if captured is None:
            return Eager.step(self, loop, state, carries)
        captured.replay()
        self.replays += 1
        state.watch.lap("step")
        if carries is not None:
            carries += captured.carries
        carry: tuple[Any, ...] = captured.carries[-1]
        return carry

    def stop_capturing(self, loop: Loop) -> bool:
        last, size = self._last
        if last != id(loop) or size in self.sizes or not self._captures_uncompiled(loop, size):
            return False
        self._given_up.setdefault(loop, set()).add(size)
        loop.prepared.pop(size, None)
        return True

    def _captures_uncompiled(self, loop: Loop, size: int) -> bool:
        return size in self.uncompiled_sizes and size not in self._given_up.get(loop, ())

    def _capture_timed(self, loop: Loop, state: Any) -> CapturedStep:
        state.path = {phase: "eager" for phase, _ in loop.pieces()}
        with attending(*self.attention):
            captured = self._capture_step(loop, state, self._compiles(state.trace.codes.device))
        if name := self.attention[0]:
            state.path["attention"] = name
        if "compiled" in state.path.values():
            state.path["products"] = products(state.trace.codes.device)
        return captured

    def _capture_uncompiled(self, loop: Loop, state: Any) -> CapturedStep:
        """Raises DecoderError where that is not possible, as for want of memory."""
        try:
            captured = self._capture_step(loop, state, compiled=False, own_pool=True)
        except RuntimeError as error:  # of CUDA, which else would count as the loss of the card
            why = str(error).strip().partition("\n")[0]
            raise DecoderError(
                f"a step of {state.shape} images cannot be captured: {why}"
            ) from error
        state.path = {phase: "captured" for phase, _ in loop.pieces()}
        return captured

    def _capture_step(
        self, loop: Loop, state: Any, compiled: bool, own_pool: bool = False
    ) -> CapturedStep:
        before, device = snapshot(state), state.trace.codes.device
        step_in_place(loop.pieces(), state)  # chooses and allocates what a trace must find
        fill(state, before)
        pieces = self._compile_pieces(loop, state) if compiled else loop.pieces()
        fill(state, before)
        replay, carries = self._capture(
            lambda: step_in_place(pieces, state), lambda: fill(state, before), device, own_pool
        )
        fill(state, before)
        state.watch.restart()
        return CapturedStep(replay, state, carries)

    def _compiles(self, device: torch.device) -> bool:
        """Whether pieces are compiled: on a GPU with a working compiler."""
        return device.type == "cuda" and compiles(device)

    def _compile_pieces(self, loop: Loop, state: Any) -> list[Piece]:
        """The pieces, compiled by running them; one that cannot be compiled stays as it is."""
        pieces: list[Piece] = []
        before, carry = tensors(state), ()
        for phase, plain in loop.pieces():
            state.path[phase] = "compiled"
            piece, carry = self.compile_piece(phase, plain, state, carry)
            pieces.append((phase, piece or plain))
        rebind(state, before)
        return pieces

    def _capture(
        self,
        step: Callable[[], list[Any]],
        undo: Callable[[], None],
        device: torch.device,
        own_pool: bool = False,
    ) -> tuple[Callable[[], None], list[Any]]:
        """Captures `step`, which `undo` takes back: (what replays it, what it returned: rewritten
        by every replay). own_pool: into memory that no other graph shares. A capture that fails
        leaves its pool capturing, on older PyTorch: the next one has another pool, and the broken
        one is kept alive; not so where memory was full, which ends a capture as it should."""
        if self._pool is None:
            self._pool = pool(device)
        stream = self._pool.stream
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                step()
                undo()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        shared: dict[str, Any] = {} if own_pool else {"pool": self._pool.handle}
        try:
            with capturing(graph, stream=stream, **shared):
                returned = step()
        except BaseException as error:
            if not (own_pool and isinstance(error, torch.OutOfMemoryError)):
                self._broken.append((self._pool, graph))
                self._pool = None
            raise
        return graph.replay, returned
