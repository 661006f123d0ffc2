"""Steps as CUDA graphs: the whole step is compiled, recorded once and replayed with one launch.

The compiler fuses what any rule, tree or drafter does between two matrix products, so that nobody
writes a kernel for it. A piece that it cannot compile, and every piece where there is no working
compiler, is recorded operator by operator; a warning says so.

A recorded step reads and writes fixed addresses. So the state of the first image of a (loop, batch
size) stays. Later images are prefilled into its caches; the rest of their state is copied into it
before their first step. What a piece binds anew is copied back to where the next step reads it
(`state.rebind`). Recording is done on the first image before its first timed step; its state, but
for the caches, is copied before (`state.snapshot`) and put back after every step that a recording
takes, so that each of them is the image's first. All graphs of a study share one memory pool (only
one of them runs at a time) and one stream, whose libraries' workspaces then exist before the first
recording, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Execution, Loop, Piece, Target, TextFeatures
from decoders.execution.compiled import Compiled, compiles
from decoders.execution.state import fill, rebind, snapshot, step_in_place, tensors

WARM_UP = 2  # steps before the recording: libraries allocate their workspaces in the first ones


@dataclass
class RecordedStep:
    """A step that was recorded on `run`; `carry` is what its last piece returned, rewritten by
    every replay."""

    replay: Callable[[], None]
    run: Any
    carry: tuple[Any, ...]


@dataclass(frozen=True)
class Pool:
    """Memory that graphs share, and the stream they are recorded on. `anchor` is a graph of the
    pool that is never dropped: a pool whose graphs are all gone cannot be recorded into again while
    anything in it is alive."""

    handle: Any
    stream: Any
    anchor: Any


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, after which the stream that was current is so again, also where the
    recording breaks: then torch leaves its own stream current."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        torch.cuda.set_stream(before)


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
class Graphed(Execution):
    """One graph a step. Times of the phases are not known: all is charged to `step`."""

    name: str = "graph"
    replays: int = 0
    compiler: Compiled = field(default_factory=Compiled)
    _pool: Pool | None = field(default=None, repr=False)

    def recorded_run(self, loop: Loop, shape: Any) -> Any:
        return loop.prepared[shape].run if shape in loop.prepared else None

    def prefill(self, target: Target, text: TextFeatures, copies: int, cache: Any) -> Tensor:
        """Compiled, and not recorded: it runs once per image."""
        if self._compiles(text.mask.device):
            return self.compiler.prefill(target, text, copies, cache)
        return target.prefill(text, copies, cache)

    def begin(self, loop: Loop, run: Any) -> Any:
        run.path = {phase: "eager" for phase, _ in loop.pieces()}
        if run.shape not in loop.prepared:
            loop.prepared[run.shape] = self._record(loop, run)
            return run
        recorded = loop.prepared[run.shape]
        recorded.run.watch, recorded.run.pairs = run.watch, run.pairs
        fill(recorded.run, tensors(run))
        run.watch.lap("prefill")
        return recorded.run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        recorded = loop.prepared[run.shape]
        recorded.replay()
        self.replays += 1
        run.watch.lap("step")
        return recorded.carry

    def _record(self, loop: Loop, run: Any) -> RecordedStep:
        before, device = snapshot(run), run.record.codes.device
        step_in_place(loop.pieces(), run)  # chooses and allocates what a trace must find
        fill(run, before)
        pieces = self._compile_pieces(loop, run) if self._compiles(device) else loop.pieces()
        fill(run, before)
        replay, carry = self._capture(
            lambda: step_in_place(pieces, run), lambda: fill(run, before), device
        )
        fill(run, before)
        run.watch.restart()
        return RecordedStep(replay, run, carry)

    def _compiles(self, device: torch.device) -> bool:
        """Whether pieces are compiled: on a GPU with a working compiler."""
        return device.type == "cuda" and compiles(device)

    def _compile_pieces(self, loop: Loop, run: Any) -> list[Piece]:
        """The pieces, compiled by running them; one that cannot be compiled stays as it is."""
        pieces: list[Piece] = []
        before, carry = tensors(run), ()
        for phase, plain in loop.pieces():
            run.path[phase] = "compiled"
            piece, carry = self.compiler.compile_piece(phase, plain, run, carry)
            pieces.append((phase, piece or plain))
        rebind(run, before)
        return pieces

    def _capture(
        self, step: Callable[[], tuple[Any, ...]], undo: Callable[[], None], device: torch.device
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Records `step`, which `undo` takes back: (what replays it, what it returned: rewritten by
        every replay)."""
        if device.type != "cuda":
            raise DecoderError(
                f"a CUDA graph was asked for on {device}: use backend=cuda_graph on a CUDA device, "
                "or backend=cpu"
            )
        if self._pool is None:
            self._pool = pool(device)
        stream = self._pool.stream
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
                undo()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, pool=self._pool.handle, stream=stream):
            carry = step()
        return graph.replay, carry
