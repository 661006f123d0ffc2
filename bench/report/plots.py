"""Draws the figures of a report, a function each: speed against quality, batches, phases,
verification and acceptance by depth. `bench.report.style` has what they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.analyse.breakdown import DEEPEST
from bench.analyse.floors import bounds
from bench.analyse.run import Entry, Role, Run, Section
from bench.report import style
from bench.report.fonts import warn_of_missing_letters
from bench.report.headline import headliners
from bench.report.style import ABOVE, INK, LINE, MUTED, SMALL, Panel, Plot, Points, left_out_note
from metrics.ambiguity import RANKS
from metrics.stats import NO_INTERVAL, Interval

TV, CLIP = "tv_output", "clip"  # columns that speed is drawn against
SHADES = {
    "text": "#CC79A7",
    "prefill": "#56B4E9",
    "draft": "#E69F00",
    "forward": "#0072B2",
    "accept": "#D55E00",
    "other": "#BDBDBD",
    "VQ decode": "#009E73",
}
BAND: dict[str, Any] = {"color": MUTED, "alpha": 0.2, "linewidth": 0}
FEWEST_STEPS = 20  # of a share of steps, in acceptance by depth


def figures(run: Run) -> list[Plot]:
    if run.all_failed:
        return []
    warn_of_missing_letters(entry.name for entry in run.entries)
    plots = (
        against(run, TV),
        against(run, CLIP),
        throughput(run),
        depth(run),
        reliability(run),
        ambiguity(run),
        phases(run),
        verification(run),
    )
    return [plot for plot in plots if plot is not None]


def quality_of(entry: Entry, column: str) -> Interval:
    """Returns an entry's figure. AR and exact decoders are at no distance from AR's distribution:
    what is measured of one is rounding."""
    if column == TV and (entry.role is Role.BASELINE or entry.exact):
        return Interval(0.0, math.nan, math.nan)
    return entry.interval(column)


def to_name(run: Run, section: Section, entries: Sequence[Entry], column: str) -> set[str]:
    """The decoders that a crowded figure names: AR, those of the first lines, and those that no
    other one beats in speed and in quality."""
    sign = -1 if column == TV else 1
    scores = {e.name: (e.number("speedup"), sign * quality_of(e, column).value) for e in entries}
    best = {
        name
        for name, one in scores.items()
        if not any(o != one and o[0] >= one[0] and o[1] >= one[1] for o in scores.values())
    }
    return best | {entry.name for entry in headliners(run, section)}


def against(run: Run, column: str) -> Plot | None:
    """Draws speed-up against output TV or CLIP score: which decoders buy speed, at what price.
    A relaxed rule may lose no CLIP score and still be far from the target, and the other way round,
    so both have a figure."""
    name, side = ("output TV", "left") if column == TV else ("CLIP score", "right")
    caption = f"Up and to the {side} is better. Bars: 95 % intervals."
    rest = [e for e in run.entries if e.role is Role.DECODER and not run.unmeasured(e)]
    if unfair := ", ".join(e.name for e in rest if run.speed_mark(e)):
        caption += f" Against an unfair baseline (see the table): {unfair}."
    handles = style.verdict_handles(run.entries)
    if any(math.isfinite(band(section, column).half_width) for section in run.sections):
        handles.append(Patch(**BAND, label="AR under one more seed"))
    shown, named = list[tuple[Section, list[Entry]]](), set[str]()
    for section in run.sections:
        ok = [e for e in section.decoders if not e.failed]
        ok = [e for e in ok if math.isfinite(e.number("speedup") + quality_of(e, column).value)]
        if all(e.role is Role.BASELINE or (column == TV and e.exact) for e in ok):
            continue  # all lie on one line
        shown.append((section, ok))
        named |= to_name(run, section, ok, column)
        caption += left_out_note(section, [e.name for e in ok])
    numbers = style.numbers_of(run, named, [[e.name for e in ok] for _, ok in shown])
    if numbers:
        handles += style.number_handles(run, numbers)
        caption += (
            " Named: AR, the decoders of the first lines, and those that no other one beats in "
            "speed and in quality. The others have numbers."
        )
    panels = [
        Panel(
            section.title,
            4.2 if len(ok) > style.MANY else 3.2,
            partial(_scatter, run, section, ok, column, numbers),
        )
        for section, ok in shown
    ]
    return style.plot(f"speedup_{column}", f"Speed-up against {name}", caption, panels, handles)


def band(section: Section, column: str) -> Interval:
    """Returns where AR's figure would lie under one more seed; its output TV is 0 under any."""
    return NO_INTERVAL if column == TV else section.reseeded(column)


def _scatter(
    run: Run,
    section: Section,
    entries: Sequence[Entry],
    column: str,
    numbers: Mapping[str, str],
    axes: Axes,
) -> Points:
    """Draws a point per decoder, a line through the settings of a family, and the band of AR under
    one more seed."""
    seeds, colors = band(section, column), style.colors_of(run)
    if math.isfinite(seeds.half_width):
        axes.axvspan(seeds.lo, seeds.hi, **BAND)
    axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    known = {entry.name: entry for entry in entries}
    families: dict[str, list[str]] = {}
    for one in run.lines("families", section):
        families.setdefault(one["family"], []).append(one["decoder"])
    for members in families.values():
        names = [name for name in members if name in known]
        line = [(quality_of(known[n], column).value, known[n].number("speedup")) for n in names]
        axes.plot(*zip(*line, strict=True), color=colors[names[0]], linewidth=1) if line else None
    for entry in entries:
        style.draw(
            axes, entry, colors[entry.name], quality_of(entry, column), entry.interval("speedup")
        )
    label = "output TV, lower" if column == TV else f"{section.clip_name}, higher"
    axes.set(xlabel=f"{label} is better", ylabel="speed-up over AR")
    axes.grid(visible=True)
    axes.margins(0.08, 0.1)
    return {
        numbers.get(e.name, e.name): (quality_of(e, column).value, e.number("speedup"))
        for e in sorted(entries, key=lambda entry: entry.name in numbers)
    }


def throughput(run: Run) -> Plot | None:
    """Draws images per second and speed-up by batch size; the caption names what failed."""
    timed = sorted(run.lines("batches"), key=itemgetter("batch"))
    ok = [line for line in timed if not line["error"]]
    first = [entry.name for section in run.sections for entry in headliners(run, section)]
    numbers = style.numbers_of(run, first, [{line["decoder"] for line in ok}])
    panels = [
        Panel("images per second", 2.6, partial(_draw_by_batch, run, ok, "images_s", numbers)),
        Panel(
            "speed-up at the same batch", 2.6, partial(_draw_by_batch, run, ok, "speedup", numbers)
        ),
    ]
    caption = (
        "Prefill and decoding; bars are 95 % intervals over calls, where there are enough. "
        "Speed-up: over the baseline at the same batch."
    )
    calls = {line["images"] for line in ok if line["images"] > line["batch"] > 1}
    if calls:
        caption += f" Offline: {calls.pop()} images per call, a place that is done is refilled."
    failed = [f"{line['decoder']} at {line['batch']}" for line in timed if line["error"]]
    caption += f" Failed and left out: {', '.join(failed)}." if failed else ""
    handles = style.verdict_handles(run.entries) + style.number_handles(run, numbers)
    title = "Throughput and speed-up by batch size"
    return style.plot("throughput", title, caption, panels if ok else [], handles)


def _draw_by_batch(
    run: Run,
    timed: Sequence[Mapping[str, Any]],
    column: str,
    numbers: Mapping[str, str],
    axes: Axes,
) -> Points:
    colors, entries = style.colors_of(run), {entry.name: entry for entry in run.entries}
    batches = sorted({line["batch"] for line in timed})
    last: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(line["decoder"] for line in timed):
        lines = [x for x in timed if x["decoder"] == name and math.isfinite(x[column])]
        axes.plot([x["batch"] for x in lines], [x[column] for x in lines], color=colors[name])
        for line in lines:
            value = Interval(*(line[column + end] for end in ("", "_lo", "_hi")))
            style.draw(axes, entries[name], colors[name], line["batch"], value)
            last[numbers.get(name, name)] = line["batch"], value.value
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch}" for batch in batches], minor=False)
    axes.set(xlabel="batch size", xlim=(0.8, 2.5 * batches[-1]))  # names: right
    axes.grid(visible=True, axis="y")
    if column == "speedup":
        axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    else:
        axes.set_ylim(bottom=0)
    return last


def phases(run: Run) -> Plot | None:
    """Draws where an image's seconds go: a stacked bar per decoder, mean over the timed images."""
    caption = (
        "Mean over the timed images, batch 1. Other: decoding time outside the four timed parts "
        "(cache, bookkeeping). Text and VQ decoding are not part of the speed-up."
    )
    panels = []
    for section in run.sections:
        lines = run.lines("phases", section)
        timed = {line["decoder"]: {name: line[name] for name in SHADES} for line in lines}
        caption += left_out_note(section, timed)
        if timed:
            draw = partial(_draw_stacked, timed)
            panels.append(Panel(section.title, LINE * len(timed), draw))
    handles = [Patch(color=shade, label=name) for name, shade in SHADES.items()]
    return style.plot("phases", "Where an image's seconds go", caption, panels, handles)


def _draw_stacked(timed: Mapping[str, Mapping[str, float]], axes: Axes) -> Points:
    for at, seconds in enumerate(timed.values()):
        end = 0.0
        for name, width in seconds.items():
            axes.barh(at, width, 0.64, end, color=SHADES[name])
            end += width
        axes.annotate(f" {end:.{3 if end < 10 else 1}f} s", (end, at), va="center", fontsize=SMALL)
    axes.set(xlabel="seconds per image", ylim=(len(timed) - 0.4, -0.6))
    axes.set_yticks(range(len(timed)), [*timed])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.18)
    return {}


def verification(run: Run) -> Plot | None:
    """Draws what verifying more codes costs: milliseconds of a target forward over its codes per
    row, and the least that reading and arithmetic take."""
    colors = {"least for reading": style.HUES[0], "least for arithmetic": style.HUES[1]}
    handles = [Line2D([], [], linestyle="--", color=c, label=name) for name, c in colors.items()]
    shown = [section for section in run.sections if run.lines("forwards", section)]
    caption = (
        "Median over the timed images, batch 1; one code is an AR step, more are a verification "
        "(hollow: a whole step, where a backend runs it as one). Dashed lines: the least that "
        "reading and arithmetic take on this machine; the higher one is the floor."
    )
    for section in shown:
        points = run.lines("forwards", section)
        caption += left_out_note(section, [n for point in points for n in point["decoders"]])
    panels = [Panel(s.title, 2.8, partial(_draw_costs, run, s, [*colors.values()])) for s in shown]
    return style.plot("verification", "What verifying more codes costs", caption, panels, handles)


def _draw_costs(run: Run, section: Section, colors: Sequence[str], axes: Axes) -> Points:
    """Draws a point per number of codes, and the two least times as dashed lines."""
    points, bound = run.lines("forwards", section), bounds(run, section)
    right = max(1.18 * max(point["codes"] for point in points), 3.0)
    if bound is not None:
        right = max(right, 1.15 * bound.crossing) if bound.crossing < 2 * right else right
        axes.plot([0, right], [bound.reading] * 2, "--", color=colors[0], zorder=ABOVE)
        axes.plot([0, right], [0, bound.computing * right], "--", color=colors[1], zorder=ABOVE)
    names = {}
    for point in points:
        codes, ms, decoders = point["codes"], point["ms"], point["decoders"]
        fill = "white" if point["whole"] else INK
        axes.plot(codes, ms, "o", color=INK, markerfacecolor=fill, zorder=ABOVE)
        text = ", ".join(decoders) if len(decoders) <= 2 else f"{codes} codes"
        costs = codes > 1 and math.isfinite(point["ar_steps"])
        text += f"\n{point['ar_steps']:.2f} AR steps" if costs else ""
        names[text] = (float(codes), ms)
    axes.set(xlim=(0, right), ylabel="ms per target forward")
    axes.set_ylim(0, 1.12 * axes.dataLim.y1)
    axes.set_xlabel("codes per row of a target forward, root included")
    axes.locator_params("x", integer=True)
    axes.grid(visible=True)
    return names


def depth(run: Run) -> Plot | None:
    """Draws acceptance by draft depth, a line of cells per decoder: how fast guesses go stale."""
    caption = (
        "Cells: of the steps that accepted depth d - 1, the share that also accepted depth d (not "
        f"shown: shares of fewer than {FEWEST_STEPS} steps, and depths over {DEEPEST}). AR drafts "
        "nothing."
    )
    panels = []
    for section in run.sections:
        cells = shares_by_depth(run.lines("depths", section))
        if len(cells):
            panels.append(Panel(section.title, LINE * len(cells), partial(_draw_cells, cells)))
    return style.plot("acceptance_depth", "Acceptance by draft depth", caption, panels)


def shares_by_depth(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Decoder by depth, from the table `depths`: the share of steps that accepted this depth, where
    there were enough."""
    shares: dict[str, dict[int, float]] = {}
    for line in lines:
        if line["steps"] >= FEWEST_STEPS:
            shares.setdefault(line["decoder"], {})[line["depth"]] = line["accepted"]
    return pd.DataFrame.from_dict(shares, orient="index")


def _draw_cells(cells: pd.DataFrame, axes: Axes) -> Points:
    axes.pcolormesh(cells, cmap="Blues", vmin=0, vmax=1)
    for (line, column), share in np.ndenumerate(cells):
        text = f"{share:.2f}".removeprefix("0") if math.isfinite(share) else ""
        axes.text(
            column + 0.5,
            line + 0.5,
            text,
            ha="center",
            va="center",
            color="white" if share > 0.55 else "black",
            fontsize=SMALL,
        )
    axes.set_xticks(np.arange(cells.shape[1]) + 0.5, [f"{d}" for d in cells.columns])
    axes.set_yticks(np.arange(len(cells)) + 0.5, [*cells.index])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    axes.set_xlabel("draft depth d")
    return {}


def reliability(run: Run) -> Plot | None:
    """Draws what drafters' confidences are worth: the accepted share of drafts over their
    confidence, a line per depth."""
    caption = (
        "Drafts of a depth, in ten classes by their confidence: its mean, and the share that the "
        f"exact rule accepts (classes of fewer than {FEWEST_STEPS} drafts are left out). On the "
        "dotted line a confidence is right; below it the drafter is too sure."
    )
    panels = []
    for section in run.sections:
        lines = run.lines("reliability", section)
        for name in dict.fromkeys(line["decoder"] for line in lines):
            mine = [line for line in lines if line["decoder"] == name]
            panels.append(Panel(f"{section.title}: {name}", 2.8, partial(_draw_reliability, mine)))
    return style.plot("reliability", "Confidence against acceptance", caption, panels)


def _draw_reliability(lines: Sequence[Mapping[str, Any]], axes: Axes) -> Points:
    axes.plot([0, 1], [0, 1], ":", color=MUTED, linewidth=0.8)
    for line, color in zip(lines, cycle(style.HUES), strict=False):
        shown = [(b.predicted, b.accepted) for b in line["bins"] if b.drafts >= FEWEST_STEPS]
        label = f"depth {line['depth']}"
        if shown:
            x, y = zip(*shown, strict=True)
            axes.plot(x, y, "o-", color=color, markersize=4, label=label)
    axes.set(
        xlabel="confidence of the drafter", ylabel="accepted share", xlim=(0, 1), ylim=(0, 1.04)
    )
    axes.legend(loc="upper left", ncols=2)
    axes.grid(visible=True)
    return {}


def ambiguity(run: Run) -> Plot | None:
    """Draws token selection ambiguity: the mass of the n likeliest codes over n, of the target and
    of every drafter that draws its codes."""
    caption = (
        "Mean over recorded nodes, after guidance, temperature and filters. The lower a line "
        "begins, the more codes share the mass, and the more rarely a drawn code is the target's. "
        "Deterministic drafts have no line."
    )
    panels = []
    for section in run.sections:
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in run.lines("mass", section):
            curves.setdefault(line["of"], []).append((line["codes"], line["mass"]))
        if curves:
            panels.append(Panel(section.title, 2.8, partial(_draw_mass, curves)))
    return style.plot("ambiguity", "Token selection ambiguity", caption, panels)


def _draw_mass(curves: Mapping[str, Sequence[tuple[int, float]]], axes: Axes) -> Points:
    for (label, curve), color in zip(curves.items(), cycle((INK, *style.HUES)), strict=False):
        whole = next((at for at, (_, mass) in enumerate(curve) if mass > 0.9999), len(curve) - 1)
        shown = curve[: whole + 1]
        axes.plot(*zip(*shown, strict=True), "o-", color=color, markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_xticks(RANKS[::3], [f"{rank:,}" for rank in RANKS[::3]])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="likeliest codes n", ylabel="their mass", ylim=(0, 1.04))
    axes.set_xlim(0.8, axes.dataLim.x1 * 1.25)
    axes.legend(loc="lower right")
    axes.grid(visible=True)
    return {}
