"""The plan of a study as data: its parts, how each decoder is called, and the memory that takes.

A step that is recorded (a CUDA graph) keeps its caches from its first call to its last one, with
those of all other decoders that are still to come (`bench.config.schedule.held`). All share one
pool: what steps compute in passing is there once, as large as the largest step needs it; what
they return is there for each. The pool does not shrink. Pictures are made on top of all of this.
Notation of METHODS 2, as in `decoders.models.sizes`: R = G x B rows (G = 2 with guidance), S slots
of a cache, N nodes of a draft tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.config import schedule
from bench.config.schema import StudyConfig
from bench.plan.parts import Need
from decoders.api import Sampling
from decoders.models.sizes import BYTES, Shape, VQShape

CONTEXT = 0.5e9  # bytes of the CUDA context, kernels and allocator slack


@dataclass(frozen=True)
class Load:
    """One call of a decoder. nodes, depth: of its draft tree, 0 for AR; session: session nodes."""

    batch: int
    guidance_rows: int
    nodes: int = 0
    depth: int = 0
    session: int = 0

    @property
    def rows(self) -> int:
        return self.guidance_rows * self.batch


@dataclass(frozen=True)
class Call:
    """How an entry is called in a protocol, latency or quality."""

    decoder: str
    protocol: str
    load: Load


@dataclass(frozen=True)
class Moment:
    """A call, and all bytes that are taken then. states: recorded steps that are held; caches:
    their bytes; pool: bytes of what they share. Zeros where nothing is recorded."""

    call: Call
    peak: float
    states: int = 0
    caches: float = 0.0
    pool: float = 0.0


@dataclass(frozen=True)
class Plan:
    """parts: of the model and the metrics; others: what is no weights, or is not named. notes: what
    is not known, and files that are not where they are expected."""

    config: StudyConfig
    shape: Shape | None
    vq: VQShape | None
    parts: list[Need]
    calls: list[Call]
    notes: list[str]
    others: Sequence[Need] = ()

    @property
    def download(self) -> float:
        return sum(part.download or 0.0 for part in self.parts)

    @property
    def weights(self) -> float:
        """Bytes of all weights in memory."""
        return sum(part.loaded for part in self.parts)

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return BYTES[self.config.backend.dtype]

    def memory(self, load: Load) -> float | None:
        """Peak bytes of a call by itself, None where the model's shape is not known."""
        if self.shape is None:
            return None
        return peak_bytes(self.shape, self.vq, self.weights, load, self.size)

    def fullest(self) -> dict[str, Moment]:
        """The moment of each protocol that needs most memory; nothing where the model's shape is
        not known."""
        if self.shape is None:
            return {}
        found: dict[str, Moment] = {}
        alone = (Moment(call, self.memory(call.load) or 0.0) for call in self.calls)
        records = self.config.backend.execution == "graph"
        for moment in self._recorded(self.shape) if records else alone:
            best = found.get(moment.call.protocol)
            if best is None or moment.peak > best.peak:
                found[moment.call.protocol] = moment
        return found

    def _recorded(self, shape: Shape) -> Iterator[Moment]:
        """Every batch of the run in its order, with what is held then."""
        config, pool = self.config, 0.0
        calls = {call.decoder: call for call in self.calls}
        every = schedule.cells(config, Sampling())  # who is decoded again under another seed
        parts = schedule.parts(
            schedule.latency_batches(config, every),
            schedule.quality_batches(config, every),
            config.latency.parts,
        )
        for batch, kept in schedule.held(parts):
            loads = [replace(calls[b.cell.entry.name].load, batch=b.size) for b in kept]
            load = replace(calls[batch.cell.entry.name].load, batch=batch.size)
            caches = sum(cache_bytes(shape, one, self.size) for one in loads)
            returned = sum(returned_bytes(shape, one) for one in loads)
            passing = logit_bytes(shape, load, self.size) - returned_bytes(shape, load)
            pool = max(pool, passing + returned)
            pictures = picture_bytes(shape, self.vq, load.batch) if self.vq else 0.0
            protocol = "latency" if batch.timed else "quality"
            call = replace(calls[batch.cell.entry.name], protocol=protocol, load=load)
            peak = self.weights + caches + pool + pictures + CONTEXT
            yield Moment(call, peak, len(loads), caches, pool)


def cache_bytes(shape: Shape, load: Load, size: int) -> float:
    """Keys and values: n 2 R S D / G x size, S = P + L + N + 1; and the drafter's, one layer of
    S = P + L + 2 depth + session + 1."""
    slots = shape.prefix + shape.length + load.nodes + 1
    target = shape.layers * 2 * load.rows * slots * shape.kv_width * size
    if not load.nodes:
        return target
    slots = shape.prefix + shape.length + load.depth + load.session + 1
    return target + 2 * load.rows * slots * shape.kv_width * size


def logit_bytes(shape: Shape, load: Load, size: int) -> float:
    """R (N + 1) V in the model's dtype, and four float32 arrays of B (N + 1) V: guided logits, p, q
    and one in the making (filters and residuals)."""
    places = load.nodes + 1
    return places * shape.vocab * (load.rows * size + 4 * 4 * load.batch)


def returned_bytes(shape: Shape, load: Load) -> float:
    """Of these, what a step returns: p and q, float32 [B, N + 1, V]. AR returns no law."""
    return 2 * 4.0 * load.batch * (load.nodes + 1) * shape.vocab if load.nodes else 0.0


def picture_bytes(shape: Shape, vq: VQShape, batch: int) -> float:
    """Three float32 feature maps of the tokenizer's narrowest level at full resolution."""
    return 3 * 4 * batch * shape.side**2 * vq.channels


def peak_bytes(shape: Shape, vq: VQShape | None, weights: float, load: Load, size: int) -> float:
    """Weights + the larger of decoding (caches, logits) and making pictures (they follow each
    other) + the context."""
    decoding = cache_bytes(shape, load, size) + logit_bytes(shape, load, size)
    pictures = picture_bytes(shape, vq, load.batch) if vq else 0.0
    return weights + max(decoding, pictures) + CONTEXT
