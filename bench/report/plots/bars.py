"""Mean accepted length and speed-up as bars with 95 % intervals."""

from __future__ import annotations

import math

import matplotlib
from matplotlib.axes import Axes

from bench.judge import paired
from bench.report.model import Entry, Role, Run, Section
from bench.report.plots.style import INK, MUTED, RC, Look, Plot, finish, left_out, looks, row_panels
from bench.report.roofline import unfair_caption

TITLE = "Mean accepted length and speed-up"


def draw(run: Run) -> Plot:
    """Left: MAL; right: speed-up; one band a section."""
    caption = (
        "MAL: codes committed per target forward; the white tick is MAL without the bonus code. "
        "Lines: 95 % intervals (MAL: bootstrap over images). Pale bars: the interval of "
        "the speed-up includes 1."
    )
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = row_panels(run, columns=2, row_inches=0.36)
        for section, (left, right) in zip(run.sections, panels, strict=True):
            _lengths(left, section, styles)
            _speeds(right, section, styles)
            shown = [e for e in section.decoders if not math.isnan(e.number("mal"))]
            timed = [e for e in section.decoders if not math.isnan(e.number("speedup"))]
            broken = [e for e in section.decoders if e.failed]
            caption += left_out(section, shown, "MAL not measured")
            caption += left_out(section, [*timed, *broken], "speed-up not measured")
        for column, room in ((0, 1.2), (1, 1.62)):  # room for the figures right of the bars
            longest = max(ax.dataLim.x1 for ax in (axes[column] for axes in panels))
            panels[0][column].set_xlim(0, max(longest, 1.0) * room)
        panels[-1][0].set_xlabel("mean accepted length (codes per target forward)")
        panels[-1][1].set_xlabel("speed-up over AR")
        caption += unfair_caption(run)
        return finish("mal_speedup", TITLE, caption, figure)


def mal_interval(entry: Entry) -> tuple[float, float]:
    """95 % bootstrap interval over images of codes per target forward; NaN below two images."""
    found = paired.mal_interval(entry.records)
    return (math.nan, math.nan) if found is None else (found.lo, found.hi)


def _lengths(ax: Axes, section: Section, styles: dict[tuple[str, str], Look]) -> None:
    for at, entry in enumerate(section.decoders):
        value = entry.number("mal")
        if math.isnan(value):
            _absent(ax, at, entry)
            continue
        ax.barh(at, value, height=0.62, color=styles[entry.part_key].color)
        bare = entry.number("mal_no_bonus")
        if not math.isnan(bare) and entry.role is not Role.BASELINE:
            ax.plot([bare, bare], [at - 0.31, at + 0.31], color="white", lw=1.6)
        low, high = mal_interval(entry)
        end = value if math.isnan(high) else max(value, high)
        if not math.isnan(low):
            ax.plot([low, high], [at, at], color=INK, lw=1.3, solid_capstyle="butt")
        _figure(ax, end, at, f"{value:.2f}")


def _speeds(ax: Axes, section: Section, styles: dict[tuple[str, str], Look]) -> None:
    for at, entry in enumerate(section.decoders):
        value = entry.number("speedup")
        if math.isnan(value):
            _absent(ax, at, entry)
            continue
        pale = section.speed_is_noise(entry)
        color = styles[entry.part_key].color
        ax.barh(at, value, height=0.62, color=color, alpha=0.35 if pale else 1)
        low, high = entry.number("speedup_lo"), entry.number("speedup_hi")
        text, end = f"{value:.2f}", value
        if not (math.isnan(low) or math.isnan(high)) and entry.role is not Role.BASELINE:
            ax.plot([low, high], [at, at], color=INK, lw=1.3, solid_capstyle="butt")
            text, end = f"{text}  [{low:.2f}, {high:.2f}]", max(value, high)
        _figure(ax, end, at, f"{text} ≈" if pale else text)
    ax.axvline(1, color=MUTED, lw=0.9, ls=":")


def _figure(ax: Axes, x: float, y: float, text: str) -> None:
    """The figure itself, just right of its bar, over the line at 1 where they meet."""
    ax.annotate(
        text,
        (x, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )


def _absent(ax: Axes, at: int, entry: Entry) -> None:
    text = "failed" if entry.failed else "not measured"
    ax.text(0.02, at, text, transform=ax.get_yaxis_transform(), va="center", color=MUTED)
