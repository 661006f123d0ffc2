"""One decoder under the profiler: three images, a trace, and what the trace adds up to."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.errors import BenchError
from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.profile.annotate import Window, annotated
from bench.profile.read import Reading, read
from bench.run.codes_only import codes_only
from bench.run.outcome import Failure, Outcome, attempt, decode
from bench.run.schedule import Cell
from decoders.api import Decoder, ImageModel
from decoders.compose import build_decoder

BIG = 8_000_000  # bytes of a trace above which it is compressed; viewers read both


@dataclass(frozen=True)
class Profiled:
    """What is known of a decoder. step_ms: of the image that was not recorded, and phase_ms the
    part of it that the decoder's stopwatch charged to each phase, milliseconds a step."""

    decoder: str
    error: str = ""
    steps: int = 0
    step_ms: float = 0.0
    phase_ms: dict[str, float] = field(default_factory=dict)
    reading: Reading | None = None
    execution: str = ""  # of the backend: eager, compile, graph; "" for a loop without one
    trace: Path | None = None


def profile_cell(
    cell: Cell, model: ImageModel, texts: list[str], seed: int, steps: int, folder: Path
) -> Profiled:
    """Profiles a decoder of a study; what it raises is its error."""
    name = cell.entry.name

    def work() -> Profiled:
        decoder = build_decoder(model, cell.entry.spec, cell.sampling)
        return _Images(model, texts, seed).profiled(name, decoder, steps, folder)

    found = attempt(work)
    return Profiled(name, found.error) if isinstance(found, Failure) else found


class _Images:
    """Decodes the same image (or batch) again and again."""

    def __init__(self, model: ImageModel, texts: list[str], seed: int) -> None:
        self.model, self.texts, self.seed = codes_only(model), texts, seed
        self.clock, self.meter = Clock(model.device), MemoryMeter(model.device)
        with profile(activities=self._activities()):
            pass  # a process's first recording takes milliseconds to begin

    def profiled(self, name: str, decoder: Any, steps: int, folder: Path) -> Profiled:
        """Warm-up, an image by the stopwatch, an image under the profiler."""
        self._image(decoder)
        plain = self._image(decoder)
        trace = plain.generation.trace
        total = max(1, int(trace.target_calls.max()))
        execution = getattr(decoder, "execution", None)
        count = 1 if execution is None else min(steps, total)
        first = 0 if execution is None else (total - count) // 2
        profiler = profile(activities=self._activities())
        window = Window(profiler, first, count)
        with annotated(decoder, window):
            self._image(decoder)
        if window.at <= window.last:
            raise BenchError(
                f"{name} took {window.at} steps where {total} were expected, so nothing was "
                "recorded; does it decode the same image in the same way every time?"
            )
        recorded = total if execution is None else count
        decoding = plain.seconds_total - trace.seconds.get("prefill", 0.0)
        return Profiled(
            name,
            steps=recorded,
            step_ms=1e3 * decoding / total,
            phase_ms={k: 1e3 * v / total for k, v in trace.seconds.items() if k != "prefill"},
            reading=read(profiler, recorded, self.model.device.type),
            execution="" if execution is None else execution.name,
            trace=export(profiler, folder / f"{name}.trace.json"),
        )

    def _activities(self) -> list[ProfilerActivity]:
        kinds = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
        device = kinds.get(self.model.device.type)
        return [ProfilerActivity.CPU] + ([device] if device is not None else [])

    def _image(self, decoder: Decoder) -> Outcome:
        return decode(
            self.model, decoder, self.texts, self.seed, clock=self.clock, meter=self.meter
        )


def export(profiler: Any, path: Path) -> Path:
    """Writes the Chrome trace to `path`, compressed (and named so) where it is big."""
    packed = path.with_name(path.name + ".gz")
    for old in (path, packed):
        old.unlink(missing_ok=True)
    profiler.export_chrome_trace(str(path))
    if path.stat().st_size <= BIG:
        return path
    with path.open("rb") as plain, gzip.open(packed, "wb") as file:
        shutil.copyfileobj(plain, file)
    path.unlink()
    return packed
