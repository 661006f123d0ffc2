"""`python -m bench profile`: where a decoding step's time goes, by phase, by part and by operator.

Why: a decoder that is slower than its matrix products is so for reasons that no total shows. Every
decoder of a study decodes an image to warm up, one that its own stopwatch times, and one of which a
few steps in the middle are recorded by torch.profiler. Recording slows a step down, so its figures
are shares and counts; the milliseconds to believe are those of the image that was not recorded.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch.profiler import ProfilerActivity, profile

from bench.config.compose import compose_study
from bench.config.hydra_edge import own_settings
from bench.config.schedule import Cell, cells
from bench.config.schema import StudyConfig
from bench.console import complain, progress, say
from bench.cost.profile.annotate import Window, annotated
from bench.cost.profile.read import Profiled, read
from bench.cost.profile.write import save, terminal
from bench.data.errors import BenchError, ConfigError
from bench.data.files import ready_folder
from bench.measure.clock import Clock
from bench.measure.device import Provenance
from bench.measure.memory import MemoryMeter
from bench.run.outcome import Failure, Outcome, attempt, decode
from bench.run.session import codes_only, frozen_heap, opened
from decoders.api import Decoder, ImageModel
from decoders.compose import build_decoder
from decoders.kinds import Count, Within, require

FOLDER = "profile"
BIG = 8_000_000  # bytes of a trace above which it is compressed; viewers read both


@dataclass(frozen=True)
class ProfileSettings:
    """`profile.*`."""

    steps: Annotated[int, Within(1, 10**6)] = 16  # recorded steps per image
    top: Count = 12  # operators shown per decoder (the file has all)
    batch: Annotated[int, Within(1, 2**20)] = 1  # images decoded at once

    def __post_init__(self) -> None:
        require(self, "profile.", ConfigError)


def cmd_profile(words: Sequence[str]) -> int:
    """Where a step's time goes: torch profiler trace, table by phase and by operator.
    Of every decoder of a study. Writes tables and Chrome traces to run_dir/profile.
    Settings: study decoders run_dir ...
        profile.*  bench/cost/profile/record.py ProfileSettings
    Example: profile decoders=[ar,lantern_pp] profile.steps=16

    1 where a decoder failed.
    """
    settings, rest = own_settings(ProfileSettings, "profile", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / FOLDER
    ready_folder(folder)
    found, made = record(config, settings, folder)
    say(terminal(config, found, settings.top))
    for path in save(config, made, found, folder):
        say(f"saved: {path}")
    failed = [one for one in found if one.error]
    for one in failed:
        complain(f"{one.decoder} failed: {one.error}")
    return 1 if failed else 0


def record(
    config: StudyConfig, settings: ProfileSettings, folder: Path
) -> tuple[list[Profiled], Provenance]:
    """The profiles of a study's decoders; the traces are written to `folder`."""
    own = opened(config, settings.batch, (settings.batch,))
    texts = [prompt.text for prompt in own.prompts]
    every = cells(config, own.model.sampling)
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    with frozen_heap(), progress(len(every), "profile", unit="decoder") as bar:
        for cell in every:
            bar.set_postfix_str(cell.entry.name)
            found.append(profile_cell(cell, own.model, texts, config.seed, settings.steps, folder))
            bar.update()
    return found, own.made


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
        execution = decoder.execution
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
