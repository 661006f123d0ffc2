"""Memory of a run whose steps are recorded (CUDA graphs): what is held at the same time.

A recorded step keeps its caches from its first call to its last one, beside those of all other
decoders that are still to come (`bench.run.schedule.held`). All recordings share one pool: what
steps compute in passing is there once, as large as the largest step needs it; what they return is
there for each. The pool does not shrink. Pictures are made beside all of this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.plan.costs import (
    BYTES,
    CONTEXT,
    Load,
    Shape,
    cache_bytes,
    logit_bytes,
    picture_bytes,
    returned_bytes,
)

if TYPE_CHECKING:
    from bench.plan.plan import Call, Plan


@dataclass(frozen=True)
class Moment:
    """A call, and all bytes that are taken then. states: recorded steps that are held; caches:
    their bytes; pool: bytes of what they share. Zeros where nothing is recorded."""

    call: Call
    peak: float
    states: int = 0
    caches: float = 0.0
    pool: float = 0.0


def fullest(plan: Plan) -> dict[str, Moment]:
    """The moment of each protocol that needs most memory; nothing where the model's shape is not
    known."""
    if plan.shape is None:
        return {}
    found: dict[str, Moment] = {}
    for moment in recorded(plan, plan.shape) if records(plan) else alone(plan):
        best = found.get(moment.call.protocol)
        if best is None or moment.peak > best.peak:
            found[moment.call.protocol] = moment
    return found


def records(plan: Plan) -> bool:
    """Whether the backend records steps."""
    return plan.config.backend.execution == "graph"


def alone(plan: Plan) -> list[Moment]:
    """Every call by itself: nothing is kept from one to the next."""
    return [Moment(call, plan.memory(call.load) or 0.0) for call in plan.calls]


def recorded(plan: Plan, shape: Shape) -> list[Moment]:
    """Every batch of the run in its order, with what is held then."""
    from bench.run import schedule
    from decoders.api import Sampling

    config, size = plan.config, BYTES[plan.config.backend.dtype]
    calls = {call.decoder: call for call in plan.calls}
    every = schedule.cells(config, Sampling())  # who is decoded again under another seed
    parts = schedule.parts(
        schedule.latency_batches(config, every),
        schedule.quality_batches(config, every),
        config.latency.parts,
    )
    pool, found = 0.0, []
    for batch, kept in schedule.held(parts):
        loads = [replace(calls[b.cell.entry.name].load, batch=len(b.indices)) for b in kept]
        load = replace(calls[batch.cell.entry.name].load, batch=len(batch.indices))
        caches = sum(cache_bytes(shape, one, size) for one in loads)
        pool = max(pool, pool_bytes(shape, load, loads, size))
        pictures = picture_bytes(shape, plan.vq, load.batch) if plan.vq else 0.0
        protocol = "latency" if batch.protocol == "latency" else "quality"
        call = replace(calls[batch.cell.entry.name], protocol=protocol, load=load)
        peak = plan.weights + caches + pool + pictures + CONTEXT
        found.append(Moment(call, peak, len(loads), caches, pool))
    return found


def pool_bytes(shape: Shape, load: Load, held: list[Load], size: int) -> float:
    """What all held steps return, and what the step of `load`, one of them, computes in passing."""
    passing = logit_bytes(shape, load, size) - returned_bytes(shape, load)
    return passing + sum(returned_bytes(shape, one) for one in held)
