"""What a profile adds up to, a step: phases and parts by wall-clock, operators by self time.

A name's own time is what its interval holds beyond the named intervals inside it. The rest of a
step, in which no operator runs, is Python and the dispatcher between operators. Matrix products are
the operators of `PRODUCTS`, by self time: attention's two products are among them, its softmax is
not, unless one kernel does it all.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.profile.annotate import PREFIX, STEP
from decoders.execution.cpu.library import NAMES

PRODUCTS = re.compile(
    r"aten::(mm|bmm|addmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|_addmm_activation|"
    r"_scaled_mm|_scaled_dot_product_\w+|_flash_attention_forward|_efficient_attention_forward|"
    r"_cudnn_attention_forward|"
    r"mkldnn_linear)$|mkldnn(_prepacked)?::_?linear\w*$"
)
LAUNCHES = re.compile(r"(cuda|cu|hip)(LaunchKernel\w*|GraphLaunch|LaunchCooperativeKernel\w*)$")
OUTSIDE, REST = "outside phases", "rest"
US = 1e-3  # milliseconds


@dataclass(frozen=True)
class Part:
    """A part of a phase, a line of parts.csv: calls and its own milliseconds, a step; share: of the
    recorded step."""

    phase: str
    part: str
    calls: float
    own_ms: float
    share: float


@dataclass(frozen=True)
class Operator:
    """An operator (or compiled region), a line of operators.csv: a step's calls, self milliseconds
    on the host (share: of the recorded step) and, where there is one, of its kernels on the
    device."""

    operator: str
    calls: float
    self_ms: float
    share: float
    device_ms: float
    matrix_product: bool


@dataclass(frozen=True)
class Reading:
    """step_ms: wall-clock of a recorded step; outermost: operators called from Python, a step;
    launches and kernels: on a GPU, a step, else 0 and NaN."""

    step_ms: float
    parts: list[Part]
    operators: list[Operator]
    outermost: float
    launches: float
    kernel_ms: float

    @property
    def on_device(self) -> bool:
        """Whether the work is done by kernels of another device than the host."""
        return math.isfinite(self.kernel_ms)

    @property
    def products_ms(self) -> float:
        """Self time of matrix products: of their kernels where there is a device."""
        found = [op for op in self.operators if op.matrix_product]
        return sum(op.device_ms if self.on_device else op.self_ms for op in found)

    @property
    def native_ms(self) -> float:
        """Self time of calls of the CPU kernel, in which products have no names of their own."""
        return sum(op.self_ms for op in self.operators if op.operator.startswith(NAMES))

    @property
    def operators_ms(self) -> float:
        """Self time of all operators: what is left of the step is Python between them."""
        return sum(op.self_ms for op in self.operators)

    @property
    def calls(self) -> float:
        """Operators a step, those that others call included."""
        return sum(op.calls for op in self.operators if "::" in op.operator)

    def phase_ms(self) -> dict[str, float]:
        """Recorded milliseconds of each phase, its parts included."""
        found: dict[str, float] = defaultdict(float)
        for part in self.parts:
            found[part.phase] += part.own_ms
        return dict(found)


@dataclass(frozen=True)
class Profiled:
    """What is known of a decoder. step_ms: of the image that was not recorded, and phase_ms the
    part of it that the decoder's stopwatch charged to each phase, milliseconds a step; execution:
    of the backend (eager, compile, graph), "" for a loop without one."""

    decoder: str
    steps: int
    step_ms: float
    phase_ms: dict[str, float]
    reading: Reading
    execution: str
    trace: Path

    @property
    def named(self) -> bool:
        """Whether matrix products can be told from the rest: inside a compiled step most have no
        operator of their own, inside a recorded one or the CPU kernel none."""
        eager = self.execution in ("", "eager")
        return eager and self.reading.products_ms > 0 and self.reading.native_ms == 0


def read(profiler: Any, steps: int, device: str) -> Reading:
    """Reads a profile of `steps` steps. device: the type of the model's device."""
    events = [event for event in profiler.events() if _on_host(event)]
    roots = [event for event in events if event.name == PREFIX + STEP]
    own: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    outermost = 0
    for root in roots:
        for key, us in _walk(root, OUTSIDE, ""):
            own[key] += us
            calls[key] += 1
        outermost += sum(1 for _ in _inside(root, "::"))
    step_ms = US * sum(root.time_range.elapsed_us() for root in roots) / steps
    milliseconds = {key: US * us / steps for key, us in own.items()}
    parts = [
        Part(phase, part or REST, calls[phase, part] / steps, ms, ms / step_ms)
        for (phase, part), ms in milliseconds.items()
    ]
    operators, launches, kernels = _operators(profiler, steps, step_ms)
    return Reading(
        step_ms=step_ms,
        parts=parts,
        operators=operators,
        outermost=outermost / steps,
        launches=launches,
        kernel_ms=kernels if device != "cpu" else math.nan,
    )


def _on_host(event: Any) -> bool:
    return "CPU" in str(event.device_type)


def _walk(event: Any, phase: str, part: str) -> Iterator[tuple[tuple[str, str], float]]:
    """((phase, part), own microseconds) of a named interval and of those inside it. The first name
    below a step is a phase, further ones are parts."""
    inside = list(_inside(event, PREFIX))
    own = event.time_range.elapsed_us() - sum(e.time_range.elapsed_us() for e in inside)
    yield (phase, part), own
    for child in inside:
        name = child.name.removeprefix(PREFIX)
        yield from _walk(child, *((name, "") if phase == OUTSIDE else (phase, name)))


def _inside(event: Any, mark: str) -> Iterator[Any]:
    """The outermost intervals inside an event whose names hold the mark: PREFIX of named intervals,
    '::' of operators, some of which lie inside a compiled region."""
    for child in event.cpu_children:
        if mark in child.name:
            yield child
        else:
            yield from _inside(child, mark)


def _operators(profiler: Any, steps: int, step_ms: float) -> tuple[list[Operator], float, float]:
    """Operators by self time, largest first; launches a step; milliseconds of kernels a step."""
    found, launches, kernels = [], 0, 0.0
    for entry in profiler.key_averages():
        if LAUNCHES.search(entry.key):
            launches += entry.count
        annotated = entry.key.startswith(PREFIX) or getattr(entry, "is_user_annotation", False)
        if annotated and not entry.key.startswith(NAMES):
            continue
        if not _on_host(entry):
            kernels += US * entry.self_device_time_total
            continue
        ms, device_ms = (
            US * total / steps
            for total in (entry.self_cpu_time_total, entry.self_device_time_total)
        )
        product = bool(PRODUCTS.search(entry.key))
        found.append(Operator(entry.key, entry.count / steps, ms, ms / step_ms, device_ms, product))
    found.sort(key=lambda op: -max(op.self_ms, op.device_ms))
    return found, launches / steps, kernels / steps
