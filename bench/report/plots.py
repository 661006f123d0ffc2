"""The figures of a report, a function each: speed, quality, batches, codes, phases, verification
and depth. `bench.report.style` has what they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.judge.paired import mal_interval
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report import style
from bench.report.roofline import bounds, forwards, phase_seconds
from bench.report.scaling import Line
from bench.report.style import INK, LINE, MUTED, Bar, Marks, Plot, bars, by_section, with_style
from bench.report.table import interval
from metrics.stats import UNKNOWN, Interval
from metrics.traces import steps_by_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = {
    "text": "#CC79A7", "prefill": "#56B4E9", "draft": "#E69F00", "forward": "#0072B2",
    "accept": "#D55E00", "other": "#BDBDBD", "VQ decode": "#009E73",
}  # fmt: skip
FEWEST_STEPS, DEEPEST = 20, 12  # of acceptance by depth: steps of a share, depths
NAMED = 2  # decoders at a point of a forward's time


def figures(run: RunData, batches: Sequence[Line]) -> list[Plot]:
    """Figures of what the run recorded."""
    if run.all_failed:
        return []
    plots = [speed(run), *(against(run, one) for one in QUALITIES), throughput(run, batches),
            codes(run), phases(run), verification(run), depth(run)]  # fmt: skip
    return [plot for plot in plots if plot is not None]


@with_style
def speed(run: RunData) -> Plot | None:
    """Speed-ups over AR."""
    colors = style.colors_of(run)

    def bar(section: Section, entry: Entry) -> Bar:
        speedup, noise = SPEED.of(entry), section.speed_is_noise(entry)
        if math.isnan(speedup.value):
            return Bar("not measured")
        parts = [(speedup.value, colors[entry.name])]
        return Bar(interval(speedup, 2) + " ≈" * noise, parts, speedup, pale=noise)

    caption = (
        "AR's seconds over the decoder's on the same prompts, batch 1, with 95 % intervals. Pale "
        "(≈): the interval includes 1."
    )
    return bars(
        run, "speedup", "Speed-up over AR", caption + style.unfair(run), bar,
        "speed-up over AR, 95 % interval", "speed-up not measured", style.verdicts(run.entries), 1,
    )  # fmt: skip


@with_style
def codes(run: RunData) -> Plot | None:
    """Codes per forward."""
    colors = style.colors_of(run)

    def bar(section: Section, entry: Entry) -> Bar:
        value = entry.number("mal")
        if math.isnan(value):
            return Bar("not measured")
        ends = UNKNOWN if entry.role is Role.BASELINE else mal_interval(entry.records) or UNKNOWN
        parts = [(value, colors[entry.name])]
        return Bar(f"{value:.2f}", parts, ends)

    caption = (
        "Codes committed per forward of the target (mean accepted length, MAL), with 95 % "
        "intervals over images."
    )
    return bars(run, "codes_per_forward", "Codes per forward", caption, bar,
                "codes per target forward, 95 % interval", "not measured")  # fmt: skip


@with_style
def phases(run: RunData) -> Plot | None:
    """Where the seconds of an image go: one stacked bar a decoder, mean over the timed images."""
    from matplotlib.patches import Patch

    def bar(section: Section, entry: Entry) -> Bar:
        seconds = phase_seconds(entry)
        total = sum(seconds.values())
        parts = [(width, SHADES[name]) for name, width in seconds.items()]
        return Bar(f"{total:.{3 if total < 10 else 1}f} s" if seconds else "not timed", parts)

    caption = (
        "Mean over the timed images, batch 1. Other: decoding time outside the four timed parts "
        "(cache, bookkeeping). Text and VQ decoding are not part of the speed-up."
    )
    handles = [Patch(color=shade, label=name) for name, shade in SHADES.items()]
    return bars(run, "phases", "Where an image's seconds go", caption, bar, "seconds per image",
                "no timed images", handles)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A figure of quality: its column of the summary, its name, which way is better."""

    column: str
    name: str
    better: str = "lower"

    def label(self, section: Section) -> str:
        """The label of its axis in a section."""
        return {"fid": section.fid_name, "clip": section.clip_name}.get(self.column, self.name)

    def of(self, entry: Entry) -> Interval:
        """An entry's figure, with its interval where it has one. AR is at no distance from its own
        distribution; what an exact decoder has of one is rounding."""
        base, figure = entry.role is Role.BASELINE, entry.interval(self.column)
        if self is TV:
            zero = base or (entry.exact and not math.isnan(figure.value))
            return replace(UNKNOWN, value=0.0 if zero else figure.value)
        return replace(UNKNOWN, value=figure.value) if self is SPEED and base else figure

    def drawn(self, section: Section) -> list[Entry]:
        """The decoders of which this and the speed-up are known. Of the exact ones, which all have
        output TV 0, the fastest stands for all; [] where there are no others."""
        ok = [e for e in section.decoders if not e.failed]
        measured = [e for e in ok if not math.isnan(self.of(e).value + SPEED.of(e).value)]
        rest = [e for e in measured if e.role is Role.DECODER]
        exact = [e for e in rest if self is TV and e.exact]
        fastest = max(exact, key=lambda e: SPEED.of(e).value, default=None)
        shown = [e for e in measured if e is fastest or e not in exact]
        return shown if len(rest) > len(exact) else []


FID, CLIP = Measure("fid", "FID"), Measure("clip", "CLIP score", "higher")
TV = Measure("tv_output", "output TV")
SPEED = Measure("speedup", "speed-up over AR", "higher")
QUALITIES = (FID, CLIP, TV)


@with_style
def against(run: RunData, measure: Measure) -> Plot | None:
    """Speed-up against a figure of quality: which decoders buy speed, and what they pay for it. A
    relaxed rule may lose no CLIP score and still be far from the target, and the other way round,
    so both have a figure."""
    from matplotlib.patches import Patch

    colors, shown = style.colors_of(run), [s for s in run.sections if measure.drawn(s)]
    side = "left" if measure.better == "lower" else "right"
    caption = f"Up and to the {side} is better. Bars: 95 % intervals." + style.unfair(run)
    if measure is TV:
        caption += (
            " Output TV: the mean over all codes. Of the exact decoders, which have 0, the fastest "
            "is shown besides AR."
        )
    handles = style.verdicts(run.entries)

    def draw(section: Section, axes: Axes) -> Marks:
        entries, band = measure.drawn(section), section.reseeded(measure.column)
        if measure is not TV and math.isfinite(band.half_width):
            shade: dict[str, Any] = {"color": MUTED, "alpha": 0.2, "linewidth": 0}
            axes.axvspan(band.lo, band.hi, **shade)
            words = f"{measure.name} of AR under one more seed"
            handles[:] = [h for h in handles if h.get_label() != words]
            handles.append(Patch(**shade, label=words))
        axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
        for entry in entries:
            style.point(axes, entry, colors[entry.name], measure.of(entry), SPEED.of(entry))
        label = f"{measure.label(section)}, {measure.better} is better"
        axes.set(xlabel=label, ylabel=SPEED.name)
        axes.grid(visible=True)
        axes.margins(0.08, 0.1)
        exact = [e for e in section.decoders if measure is TV and e.exact]
        names = {e.name: (measure.of(e).value, SPEED.of(e).value) for e in entries}
        return Marks([*entries, *exact], names)

    name, title = f"speedup_{measure.column}", f"Speed-up against {measure.name}"
    absent = f"{measure.name} or speed-up not measured"
    return by_section(name, title, caption, shown, [3.4] * len(shown), draw, absent, handles)


@with_style
def throughput(run: RunData, lines: Sequence[Line]) -> Plot | None:
    """Images per second and speed-up by batch size; what failed is named in the caption."""
    if not lines:
        return None
    ok = [line for line in lines if not line.error]
    figure, rows = style.panels([2.6] * 2)
    colors, entries = style.colors_of(run), {entry.name: entry for entry in run.entries}
    batches, ends = sorted({line.batch for line in ok}), []
    for column, title, (axes,) in (
        ("images_s", "images per second", rows[0]),
        ("speedup", "speed-up at the same batch", rows[1]),
    ):
        last: dict[str, tuple[float, float]] = {}
        for name in dict.fromkeys(line.decoder for line in ok):
            mine = [line for line in ok if line.decoder == name]
            points = [(line.batch, getattr(line, column)) for line in mine
                      if column != "speedup" or name != line.baseline]  # fmt: skip
            points = [(batch, value) for batch, value in points if math.isfinite(value.value)]
            axes.plot([x for x, _ in points], [y.value for _, y in points], color=colors[name])
            for batch, value in points:
                style.point(axes, entries[name], colors[name], batch, value)
                last[name] = batch, value.value
        ends.append((axes, last))
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [f"{batch}" for batch in batches], minor=False)
        axes.set(ylabel=title, xlabel="batch size", xlim=(0.8, 2 * batches[-1]))  # names: right
        axes.grid(visible=True, axis="y")
    rows[0][0].set_ylim(bottom=0)
    rows[1][0].axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    style.key(figure, style.verdicts(run.entries))
    for axes, last in ends:
        style.label(axes, last)
    caption = (
        "Prefill and decoding; bars are 95 % intervals over calls, where there are enough. "
        "Speed-up: over the baseline at the same batch."
    )
    many = {line.images for line in ok if line.batch > 1 and line.images > line.batch}
    if many:
        caption += f" Offline: {many.pop()} images per call, a place that is done is refilled."
    failed = [f"{line.decoder} at {line.batch}" for line in lines if line.error]
    caption += f" Failed and left out: {', '.join(failed)}." if failed else ""
    return Plot("throughput", "Throughput and speed-up by batch size", caption, figure)


@with_style
def verification(run: RunData) -> Plot | None:
    """What verifying more codes costs: milliseconds of a target forward over its codes per row, and
    the least that reading and arithmetic take."""
    from matplotlib.lines import Line2D

    shown = [section for section in run.sections if forwards(run, section)]
    reading, arithmetic = style.HUES[:2]
    handles = [Line2D([], [], linestyle="--", color=color, label=name) for name, color in
               (("least for reading", reading), ("least for arithmetic", arithmetic))]  # fmt: skip

    def draw(section: Section, axes: Axes) -> Marks:
        points, bound = forwards(run, section), bounds(run, section)
        ar = next((point.ms for point in points if point.codes == 1), math.nan)
        right = max(1.18 * max(point.codes for point in points), 3.0)
        if bound is not None:
            right = max(right, 1.15 * bound.crossing) if bound.crossing < 2 * right else right
            axes.plot([0, right], [bound.reading] * 2, "--", color=reading)
            axes.plot([0, right], [0, bound.computing * right], "--", color=arithmetic)
        names = {}
        for point in points:
            fill = "white" if point.whole else INK
            axes.plot(point.codes, point.ms, "o", color=INK, markerfacecolor=fill)
            many = f" ({point.ms / ar:.2f} AR steps)" if point.codes > 1 and ar > 0 else ""
            more = f" and {len(point.names) - NAMED} more" if len(point.names) > NAMED else ""
            names[", ".join(point.names[:NAMED]) + more + many] = (float(point.codes), point.ms)
        axes.set(xlim=(0, right), ylabel="ms per target forward")
        axes.set_ylim(0, 1.12 * axes.dataLim.y1)
        axes.set_xlabel("codes per row of a target forward, root included")
        axes.grid(visible=True)
        timed = {name for point in points for name in point.names}
        entries = [entry for entry in section.decoders if entry.name in timed]
        return Marks(entries, names)

    caption = (
        "Median over the timed images, batch 1; one code is an AR step, more are a verification "
        "(hollow: a whole step, where a backend runs it as one). Dashed lines: the least that "
        "reading and arithmetic take on this machine; the higher one is the floor."
    )
    return by_section("verification", "What verifying more codes costs", caption, shown,
                      [3.0] * len(shown), draw, "not timed", handles)  # fmt: skip


def shares_by_depth(section: Section) -> pd.DataFrame:
    """Decoder by depth: of the steps that accepted the depth before it, the share that accepted
    this one, where there were enough."""
    shares = {}
    for entry in section.decoders:
        levels = min(int(entry.images["tree_depth"].max()) if len(entry.images) else 0, DEEPEST)
        steps = steps_by_depth(entry.images["accepted"], levels)  # [levels + 1]
        enough = np.flatnonzero(steps[:-1] >= FEWEST_STEPS)
        if len(enough):
            shares[entry.name] = pd.Series(steps[enough + 1] / steps[enough], enough + 1)
    return pd.DataFrame(shares).T


@with_style
def depth(run: RunData) -> Plot | None:
    """Acceptance by draft depth, how fast a drafter's guesses go stale: a line of cells per
    decoder."""
    shares = {section.title: shares_by_depth(section) for section in run.sections}
    shown = [section for section in run.sections if len(shares[section.title])]

    def draw(section: Section, axes: Axes) -> Marks:
        cells = shares[section.title]
        axes.pcolormesh(cells, cmap="Blues", vmin=0, vmax=1, edgecolor="white", linewidth=1)
        for (line, column), share in np.ndenumerate(cells):
            text = f"{share:.2f}" if math.isfinite(share) else ""
            axes.text(column + 0.5, line + 0.5, text, ha="center", va="center",
                      color="white" if share > 0.55 else "black", fontsize=style.SMALL)  # fmt: skip
        axes.set_xticks(np.arange(cells.shape[1]) + 0.5, [f"{d}" for d in cells.columns])
        axes.set_yticks(np.arange(len(cells)) + 0.5, [*cells.index])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.invert_yaxis()
        axes.set_xlabel("draft depth d; share accepted, given depth d - 1")
        drafting = (e for e in section.decoders if e.name in cells.index)
        return Marks([*drafting, *(e for e in section.decoders if e.role is Role.BASELINE)])

    caption = (
        "Of the steps that accepted depth d - 1, the share that also accepted depth d (not "
        f"shown: shares of fewer than {FEWEST_STEPS} steps, and depths over {DEEPEST}). AR drafts "
        "nothing."
    )
    heights = [LINE * len(shares[section.title]) for section in shown]
    return by_section("acceptance_depth", "Acceptance by draft depth", caption, shown, heights,
                      draw, "too few drafts recorded")  # fmt: skip
