"""Profiles as tables in the terminal and as CSV files next to the traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.cost.profile.read import Profiled, Reading
from bench.measure.clock import now
from bench.measure.device import Provenance
from bench.records.rows import write_text
from bench.report.table import Column, csv_text, figures, filled, percent
from bench.report.table import terminal as terminal_table

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


def terminal(config: StudyConfig, found: Sequence[Profiled], top: int) -> str:
    """All tables of every decoder, the `top` operators of each."""
    backend = config.backend
    parts = [
        f"{config.model.name}, backend {backend.name} ({backend.device}, {backend.dtype}), "
        f"{backend.threads} threads"
    ]
    for one in found:
        if one.reading is None:
            parts.append(f"{one.decoder}: failed: {one.error}")
            continue
        parts.append("\n".join(headline(one, one.reading)))
        parts.append(terminal_table(filled(PHASES, _phase_lines(one, one.reading))))
        if len(one.reading.parts) > 1:
            parts.append(terminal_table(filled(PARTS, one.reading.parts)))
        shown = one.reading.operators[:top]
        if not one.reading.on_device:
            shown = [replace(operator, device_ms=math.nan) for operator in shown]
        parts.append(terminal_table(filled(OPERATORS, shown)))
    return "\n\n".join([*parts, LEGEND])


def headline(one: Profiled, reading: Reading) -> list[str]:
    """What a decoder's profile comes to, in sentences."""
    how = f", {one.execution}" if one.execution else ""
    figures = summary(one, reading)
    lines = [
        f"{one.decoder}{how}: {one.step_ms:.2f} ms a step, {reading.step_ms:.2f} recorded "
        f"({one.steps} steps)",
        f"  operators a step: {reading.outermost:.0f} ({reading.calls:.0f})",
    ]
    if named(one, reading):
        lines.append(
            f"  outside matrix products: {figures['outside_products']:.0%} of the recorded step "
            f"({figures['outside_products_unrecorded']:.0%} of the one that was not); Python "
            f"between operators: {figures['between_operators']:.0%}"
        )
    elif reading.native_ms > 0:
        share = reading.native_ms / reading.step_ms
        lines.append(
            f"  in the CPU kernel: {reading.native_ms:.3f} ms, {share:.0%} of the recorded "
            "step (`bench steps` times its matrix products alone); Python between "
            f"operators: {figures['between_operators']:.0%}"
        )
    else:
        lines.append("  matrix products have no names inside such a step: their share is unknown")
    if reading.on_device:
        lines.append(
            f"  on the device: {reading.kernel_ms:.3f} ms of kernels and {reading.launches:.1f} "
            "launches a step"
        )
    return lines


def named(one: Profiled, reading: Reading) -> bool:
    """Whether matrix products can be told from the rest: inside a compiled step most have no
    operator of their own, inside a recorded one or the CPU kernel none."""
    eager = one.execution in ("", "eager")
    return eager and reading.products_ms > 0 and reading.native_ms == 0


def summary(one: Profiled, reading: Reading) -> dict[str, Any]:
    """One line of summary.csv."""
    step, products = reading.step_ms, reading.products_ms
    known = named(one, reading)
    return {
        "decoder": one.decoder, "status": "ok", "error": "", "execution": one.execution,
        "steps": one.steps, "step_ms": one.step_ms, "recorded_step_ms": step,
        "operators": reading.outermost, "operators_with_inner": reading.calls,
        "products_ms": products if known else math.nan, "cpu_kernel_ms": reading.native_ms,
        "outside_products": 1 - products / step if known else math.nan,
        "outside_products_unrecorded": (
            max(0.0, 1 - products / one.step_ms) if known else math.nan
        ),
        "between_operators": max(0.0, 1 - reading.operators_ms / step),
        "launches": reading.launches, "kernel_ms": reading.kernel_ms,
        "trace": "" if one.trace is None else one.trace.name,
    }  # fmt: skip


def save(
    config: StudyConfig, made: Provenance, found: Sequence[Profiled], folder: Path
) -> list[Path]:
    """summary.csv, phases.csv, parts.csv and operators.csv; returns them and the traces."""
    ok = [(one, one.reading) for one in found if one.reading is not None]
    blank: dict[str, Any] = dict.fromkeys(summary(*ok[0]), math.nan) if ok else {}
    lines = [
        summary(one, one.reading)
        if one.reading is not None
        else {**blank, "decoder": one.decoder, "status": "failed", "error": one.error}
        for one in found
    ]
    backend = config.backend
    common = {
        "model": config.model.name, "backend": backend.name, "device": backend.device,
        "dtype": backend.dtype, "threads": made.threads, "cpu": made.cpu, "gpu": made.gpu,
        "torch": made.versions["torch"], "git_commit": made.git_commit,
        "git_dirty": made.git_dirty, "made_at": now(),
    }  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "summary": lines,
        "phases": [line for one, reading in ok for line in _phase_lines(one, reading)],
        "parts": [{"decoder": o.decoder, **vars(part)} for o, r in ok for part in r.parts],
        "operators": [{"decoder": o.decoder, **vars(op)} for o, r in ok for op in r.operators],
    }
    out = [
        write_text(folder / f"{name}.csv", csv_text([{**line, **common} for line in rows]))
        for name, rows in tables.items()
        if rows
    ]
    return out + [one.trace for one in found if one.trace is not None]


def _phase_lines(one: Profiled, reading: Reading) -> list[dict[str, Any]]:
    """A phase of the stopwatch, of the profile, or of both."""
    recorded = reading.phase_ms()
    names = dict.fromkeys([*one.phase_ms, *recorded])
    return [
        {"decoder": one.decoder, "phase": name, "ms": one.phase_ms.get(name, math.nan),
         "share": one.phase_ms.get(name, math.nan) / one.step_ms,
         "recorded_ms": recorded.get(name, math.nan)}
        for name in names
    ]  # fmt: skip
