"""What a forward costs by the codes that it is over: measured, and by the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bench.records.run_data import RunData, Section
from bench.report.plots.labels import Label
from bench.report.plots.style import HUES, INK, MUTED, RC, WIDTH, Plot, finish, left_out, say
from bench.report.roofline import Bounds, bounds, forward_part
from bench.report.roofline import figure as number

PANEL = 3.1  # inches of a section's panel
READING, COMPUTING, MEASURED = HUES[0], HUES[1], INK


@dataclass(frozen=True)
class Seen:
    """Median milliseconds of the target forwards over `codes` codes, and whose; whole: of the step,
    where a backend runs it as one."""

    codes: int
    ms: float
    names: tuple[str, ...]
    whole: bool = False


def seen(run: RunData, section: Section) -> list[Seen]:
    """A section's forwards by their codes, decoders of as many codes together at their mean."""
    found: dict[tuple[int, bool], list[tuple[str, float]]] = {}
    for entry in section.decoders:
        line = run.roofline.get(entry.name)
        if line is None or entry.failed:
            continue
        part = forward_part(line)
        whole = math.isnan(number(line, f"{part}_ms"))
        ms = number(line, "step_ms" if whole else f"{part}_ms")
        if not math.isnan(ms):
            found.setdefault((int(number(line, "codes")), whole), []).append((entry.name, ms))
    return [
        Seen(codes, float(np.mean([ms for _, ms in mine])), tuple(name for name, _ in mine), whole)
        for (codes, whole), mine in sorted(found.items())
    ]


def takes_over(found: Bounds | None) -> str:
    """At which number of codes arithmetic takes over, in words."""
    if found is None:
        return "no floor is known"
    over = found.takes_over
    if over is None:
        return "arithmetic never takes over"
    if over == 1:
        return "arithmetic binds from the first code on"
    return f"arithmetic takes over at {over} codes"


def draw(run: RunData) -> Plot:
    """A panel a section: milliseconds of a target forward over its codes per row."""
    caption = (
        "Median over the timed images, batch 1; one code is an AR step, more are a verification "
        "(hollow: a whole step, where a backend runs it as one). Lines: the least that reading "
        "(blue) and arithmetic (orange) take on this machine; the floor is the upper of the two. "
    )
    with matplotlib.rc_context(RC):
        size = (WIDTH, PANEL * len(run.sections) + 0.5)
        shape = Figure(figsize=size, layout="constrained")
        grid = shape.subplots(len(run.sections), 1, squeeze=False)[:, 0]
        labels, said = [], []
        for section, ax in zip(run.sections, grid, strict=True):
            ax.set_title(section.title)
            points, found = seen(run, section), bounds(run, section)
            said.append(f"{section.title}: {takes_over(found)}.")
            names = {name for point in points for name in point.names}
            drawn = [entry for entry in section.decoders if entry.name in names]
            said.append(left_out(section, drawn, "not timed").strip())
            if not points:
                say(ax, "no forward was timed")
                continue
            texts = [Label(p.codes, p.ms, ", ".join(p.names), INK, 8.5) for p in points]
            labels.append((ax, texts, _panel(ax, points, found)))
        key: dict[str, Any] = {}  # the same marks in all panels that have them
        for ax in grid:
            marks, words = ax.get_legend_handles_labels()
            key |= dict(zip(words, marks, strict=True))
        if key:
            shape.legend([*key.values()], [*key], loc="outside upper right", ncols=len(key))
        grid[-1].set_xlabel("codes per row of a target forward, root included")
        caption += " ".join(filter(None, said))
        return finish("verification", "What verifying more codes costs", caption, shape, labels)


def _panel(ax: Axes, points: Sequence[Seen], found: Bounds | None) -> list[Bbox]:
    """Draws points and lines; returns the pieces of lines that labels should not cover."""
    widest = max(point.codes for point in points)
    over = None if found is None else found.crossing
    right = max(1.18 * widest, 1.15 * over if over and over < 2 * widest else 0.0, 3.0)
    highest = max(point.ms for point in points)
    pieces: list[Bbox] = []
    if found is not None:
        x = np.linspace(0, right, 61)
        reading = [1e3 * found.growth.at(n).reading(found.rates) for n in x]
        computing = [1e3 * found.growth.at(n).computing(found.rates) for n in x]
        floor = np.maximum(reading, computing)
        ax.plot(x, reading, color=READING, lw=1, ls="--", label="reading")
        ax.plot(x, computing, color=COMPUTING, lw=1, ls="--", label="arithmetic")
        ax.plot(x, floor, color=MUTED, lw=2.2, alpha=0.45, label="floor", zorder=1)
        highest = max(highest, float(floor.max()))
        ends = [*zip(x, floor, strict=True)]
        pieces = [Bbox([start, end]) for start, end in pairwise(ends)]
        if over and 1 < over <= right:
            ax.axvline(over, color=COMPUTING, lw=0.9, ls=":")
            ax.annotate(
                takes_over(found), (over, 0.97), xycoords=("data", "axes fraction"),
                xytext=(4, 0), textcoords="offset points", va="top", fontsize=8.5, color=COMPUTING,
            )  # fmt: skip
    for whole in (False, True):
        mine = [point for point in points if point.whole is whole]
        fill = "white" if whole else MEASURED
        ax.plot(
            [p.codes for p in mine], [p.ms for p in mine], "o", ms=6, mfc=fill, mec=MEASURED,
            label="measured" if mine and not whole else None,
        )  # fmt: skip
    ax.set_xlim(0, right)
    ax.set_ylim(0, 1.15 * highest)
    ax.set_ylabel("ms per target forward")
    ax.grid()
    ar = next((point.ms for point in points if point.codes == 1), math.nan)
    if ar > 0:
        both = partial(_scaled, 1 / ar), partial(_scaled, ar)
        steps = ax.secondary_yaxis("right", functions=both)
        steps.set_ylabel("AR steps")
    return pieces


def _scaled(factor: float, values: Any) -> Any:
    """From milliseconds to AR steps, or back."""
    return np.asarray(values) * factor
