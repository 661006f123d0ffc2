"""`python -m bench profile`: where a decoding step's time goes, by phase, by part and by operator.

Why: a decoder that is slower than its matrix products is so for reasons that no total shows. Every
decoder of a study decodes an image to warm up, one that its own stopwatch times, and one of which a
few steps in the middle are recorded by torch.profiler. Recording slows a step down, so its figures
are shares and counts; the milliseconds to believe are those of the image that was not recorded.
"""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from torch.profiler import ProfilerActivity, profile

from bench.config.compose import compose_study
from bench.config.hydra_edge import own_settings
from bench.config.schedule import Cell, cells
from bench.config.schema import StudyConfig
from bench.console import complain, progress, say
from bench.data.errors import BenchError, ConfigError, Failure, attempt
from bench.data.files import ready_folder, write_text
from bench.measure.clock import Clock, now
from bench.measure.device import Provenance
from bench.measure.memory import MemoryMeter
from bench.profile.annotate import Window, annotated
from bench.profile.read import Profiled, read
from bench.report.table import Column, csv_text, figures, filled, percent, terminal
from bench.run.outcome import decode
from bench.run.session import codes_only, frozen_heap, opened
from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.kinds import Count, Within, require

FOLDER = "profile"
BIG = 8_000_000  # bytes of a trace above which it is compressed; viewers read both
PHASES = (
    Column("phase", "phase"),
    Column("ms", "ms a step", figures(3)),
    Column("share", "share", percent),
    Column("recorded_ms", "recorded, ms a step", figures(3)),
)
PARTS = (
    Column("phase", "phase"),
    Column("part", "part"),
    Column("calls", "calls a step", figures(1)),
    Column("own_ms", "own ms a step", figures(3)),
    Column("share", "share of the recorded step", percent),
)
OPERATORS = (
    Column("operator", "operator"),
    Column("calls", "calls a step", figures(1)),
    Column("self_ms", "self ms a step", figures(4)),
    Column("share", "share", percent),
    Column("device_ms", "kernels, ms a step", figures(4)),
)
LEGEND = (
    "ms a step: of an image that was not recorded, by the decoder's own stopwatch. Recorded: the "
    "same under the profiler, which takes a few microseconds an operator and some tenths of a "
    "millisecond to begin; shares of parts and operators are of the recorded step. Operators a "
    "step: called from Python (all, with those that operators call). Outside matrix products: "
    "what of the recorded step is not self time of matrix products; beside it, the same against "
    "the step that was not recorded, an upper bound of the products and so a lower one of the "
    "rest."
)


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
        profile.*  bench/profile/record.py ProfileSettings
    Example: profile decoders=[ar,lantern_pp] profile.steps=16

    1 where a decoder failed.
    """
    settings, rest = own_settings(ProfileSettings, "profile", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / FOLDER
    ready_folder(folder)
    own = opened(config, settings.batch, (settings.batch,))
    texts = [prompt.text for prompt in own.prompts]
    every = cells(config, own.model.sampling)
    found: dict[str, Profiled | Failure] = {}
    with frozen_heap(), progress(len(every), "profile", unit="decoder") as bar:
        for cell in every:
            bar.set_postfix_str(cell.entry.name)
            work = partial(_profiled, cell, own.model, texts, config.seed, settings.steps, folder)
            found[cell.entry.name] = attempt(work)
            bar.update()
    say(shown(config, found, settings.top))
    for path in save(config, own.made, found, folder):
        say(f"saved: {path}")
    failed = {name: one.error for name, one in found.items() if isinstance(one, Failure)}
    for name, error in failed.items():
        complain(f"{name} failed: {error}")
    return 1 if failed else 0


def _profiled(
    cell: Cell, model: ImageModel, texts: list[str], seed: int, steps: int, folder: Path
) -> Profiled:
    """Warm-up, an image (or batch) by the stopwatch, the same under the profiler."""
    name = cell.entry.name
    decoder: Any = build_decoder(model, cell.entry.spec, cell.sampling)
    clock, meter = Clock(model.device), MemoryMeter(model.device)
    image = partial(decode, codes_only(model), decoder, texts, seed, clock=clock, meter=meter)
    kinds = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
    device = model.device.type
    activities = [ProfilerActivity.CPU, *([kinds[device]] if device in kinds else [])]
    with profile(activities=activities):
        pass  # a process's first recording takes milliseconds to begin
    image()
    plain = image()
    trace = plain.generation.trace
    total = max(1, int(trace.target_calls.max()))
    execution = decoder.execution
    count = 1 if execution is None else min(steps, total)
    first = 0 if execution is None else (total - count) // 2
    profiler = profile(activities=activities)
    window = Window(profiler, first, count)
    with annotated(decoder, window):
        image()
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
        reading=read(profiler, recorded, device),
        execution="" if execution is None else execution.name,
        trace=export(profiler, folder / f"{name}.trace.json"),
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


def shown(config: StudyConfig, found: Mapping[str, Profiled | Failure], top: int) -> str:
    """All tables of every decoder, the `top` operators of each."""
    backend = config.backend
    parts = [
        f"{config.model.name}, backend {backend.name} ({backend.device}, {backend.dtype}), "
        f"{backend.threads} threads"
    ]
    for name, one in found.items():
        if isinstance(one, Failure):
            parts.append(f"{name}: failed: {one.error}")
            continue
        parts.append("\n".join(headline(one)))
        parts.append(terminal(filled(PHASES, _phase_lines(one))))
        if len(one.reading.parts) > 1:
            parts.append(terminal(filled(PARTS, one.reading.parts)))
        most = one.reading.operators[:top]
        if not one.reading.on_device:
            most = [replace(operator, device_ms=math.nan) for operator in most]
        parts.append(terminal(filled(OPERATORS, most)))
    return "\n\n".join([*parts, LEGEND])


def headline(one: Profiled) -> list[str]:
    """What a decoder's profile comes to, in sentences."""
    how, reading = f", {one.execution}" if one.execution else "", one.reading
    line = summary(one)
    lines = [
        f"{one.decoder}{how}: {one.step_ms:.2f} ms a step, {reading.step_ms:.2f} recorded "
        f"({one.steps} steps)",
        f"  operators a step: {reading.outermost:.0f} ({reading.calls:.0f})",
    ]
    if one.named:
        lines.append(
            f"  outside matrix products: {line['outside_products']:.0%} of the recorded step "
            f"({line['outside_products_unrecorded']:.0%} of the one that was not); Python "
            f"between operators: {line['between_operators']:.0%}"
        )
    elif reading.native_ms > 0:
        share = reading.native_ms / reading.step_ms
        lines.append(
            f"  in the CPU kernel: {reading.native_ms:.3f} ms, {share:.0%} of the recorded "
            "step (`bench steps` times its matrix products alone); Python between "
            f"operators: {line['between_operators']:.0%}"
        )
    else:
        lines.append("  matrix products have no names inside such a step: their share is unknown")
    if reading.on_device:
        lines.append(
            f"  on the device: {reading.kernel_ms:.3f} ms of kernels and {reading.launches:.1f} "
            "launches a step"
        )
    return lines


def summary(one: Profiled) -> dict[str, Any]:
    """One line of summary.csv."""
    reading, step = one.reading, one.reading.step_ms
    products = reading.products_ms if one.named else math.nan
    return {
        "decoder": one.decoder, "status": "ok", "error": "", "execution": one.execution,
        "steps": one.steps, "step_ms": one.step_ms, "recorded_step_ms": step,
        "operators": reading.outermost, "operators_with_inner": reading.calls,
        "products_ms": products, "cpu_kernel_ms": reading.native_ms,
        "outside_products": 1 - products / step,
        "outside_products_unrecorded": max(1 - products / one.step_ms, 0.0),  # NaN stays
        "between_operators": max(1 - reading.operators_ms / step, 0.0),
        "launches": reading.launches, "kernel_ms": reading.kernel_ms,
        "trace": one.trace.name,
    }  # fmt: skip


def save(
    config: StudyConfig, made: Provenance, found: Mapping[str, Profiled | Failure], folder: Path
) -> list[Path]:
    """summary.csv, phases.csv, parts.csv and operators.csv; returns them and the traces."""
    ok = [one for one in found.values() if isinstance(one, Profiled)]
    blank: dict[str, Any] = dict.fromkeys(summary(ok[0]), math.nan) if ok else {}
    backend = config.backend
    common = {
        "model": config.model.name, "backend": backend.name, "device": backend.device,
        "dtype": backend.dtype, "threads": made.threads, "cpu": made.cpu, "gpu": made.gpu,
        "torch": made.versions["torch"], "git_commit": made.git_commit,
        "git_dirty": made.git_dirty, "made_at": now(),
    }  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "summary": [
            {**blank, "decoder": name, "status": "failed", "error": one.error}
            if isinstance(one, Failure)
            else summary(one)
            for name, one in found.items()
        ],
        "phases": [line for one in ok for line in _phase_lines(one)],
        "parts": [{"decoder": o.decoder, **vars(part)} for o in ok for part in o.reading.parts],
        "operators": [{"decoder": o.decoder, **vars(op)} for o in ok for op in o.reading.operators],
    }
    out = [
        write_text(folder / f"{name}.csv", csv_text([{**line, **common} for line in rows]))
        for name, rows in tables.items()
        if rows
    ]
    return out + [one.trace for one in ok]


def _phase_lines(one: Profiled) -> list[dict[str, Any]]:
    """A phase of the stopwatch, of the profile, or of both."""
    recorded = one.reading.phase_ms()
    return [
        {"decoder": one.decoder, "phase": name, "ms": one.phase_ms.get(name, math.nan),
         "share": one.phase_ms.get(name, math.nan) / one.step_ms,
         "recorded_ms": recorded.get(name, math.nan)}
        for name in dict.fromkeys([*one.phase_ms, *recorded])
    ]  # fmt: skip
