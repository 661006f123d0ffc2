"""Steps as CUDA graphs: the whole step is recorded once and replayed with one launch.

A recorded step reads and writes fixed addresses. So the state of the first image of a (loop, batch
size) stays, and the state of every later image is copied into it before its first step; what a
piece binds anew is copied back to where the next step reads it (`state.rebind`). Recording is done
on the first image before its first timed step, on a copy of the state that is put back. All graphs
of a study share one memory pool (only one of them runs at a time) and one stream, whose libraries'
workspaces then exist before the first recording, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from decoders.api import AcceptRule, DecoderError, ImageModel
from decoders.execution.eager import Loop
from decoders.execution.state import device_of, fill, rebind, snapshot, tensors
from decoders.verify.children import Judge

WARM_UP = 2  # steps before the recording: libraries allocate their workspaces in the first ones


@dataclass
class Recorded:
    """A step that was recorded on `run`; `carry` is what its last piece returned, rewritten by
    every replay."""

    replay: Callable[[], None]
    run: Any
    carry: tuple[Any, ...]


@dataclass(frozen=True)
class Pool:
    """Memory that graphs share, and the stream they are recorded on. `kept` is a graph of the pool
    that is never dropped: a pool whose graphs are all gone cannot be recorded into again while
    anything in it is alive."""

    handle: Any
    stream: Any
    kept: Any


def pool(device: torch.device) -> Pool:
    """A new pool on a CUDA device."""
    handle, stream, graph = (
        torch.cuda.graph_pool_handle(),
        torch.cuda.Stream(device),
        torch.cuda.CUDAGraph(),
    )
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.graph(graph, pool=handle, stream=stream):
        held = torch.zeros(1, device=device)
    return Pool(handle, stream, (graph, held))


@dataclass
class Graphed:
    """One graph a step. Times of the phases are not known: all is charged to `step`."""

    name: str = "graph"
    replays: int = 0
    _pool: Pool | None = field(default=None, repr=False)

    def prepare(self, model: ImageModel) -> None:
        """Nothing to do."""

    def judge(self, rule: AcceptRule, device: torch.device) -> Judge | None:
        return None

    def fit(self, loop: Any) -> bool:
        return False

    def begin(self, loop: Loop, run: Any) -> Any:
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

    def _record(self, loop: Loop, run: Any) -> Recorded:
        kept = snapshot(run)
        replay, carry = self._capture(lambda: self._once(loop, run), device_of(run))
        fill(run, kept)
        run.watch.restart()
        return Recorded(replay, run, carry)

    def _capture(
        self, step: Callable[[], tuple[Any, ...]], device: torch.device
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Records `step`: (what replays it, what it returned: rewritten by every replay)."""
        if device.type != "cuda":
            raise DecoderError(
                f"a CUDA graph was asked for on {device}: use backend=cuda_graph on a CUDA device, "
                "or backend=cpu_compile on the CPU"
            )
        if self._pool is None:
            self._pool = pool(device)
        stream = self._pool.stream
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool.handle, stream=stream):
            carry = step()
        return graph.replay, carry

    @staticmethod
    def _once(loop: Loop, run: Any) -> tuple[Any, ...]:
        """A step that leaves every tensor of the state where it was."""
        before = tensors(run)
        carry: tuple[Any, ...] = ()
        for _, piece in loop.pieces():
            carry = piece(run, *carry)
        rebind(run, before)
        return carry
