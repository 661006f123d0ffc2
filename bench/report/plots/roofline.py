"""Target forwards (AR steps or verifications) and drafter calls beside their floors."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.report.model import Run
from bench.report.plots.style import FAINT, INK, MUTED, RC, Plot, finish, left_out, row_panels
from bench.report.roofline import figure as number
from bench.report.roofline import forward_part

TITLE = "Time over floor"
FLOOR, ABOVE = "#0072B2", "#E69F00"
ROOM = (2.2, 1.8)  # axes over the longest bar, left and right: room for the figures


def draw(run: Run) -> Plot:
    """Left: milliseconds of a target forward; right: of a drafter call; one band a section."""
    caption = (
        "Median over the timed images, batch 1. Blue: the floor, max(bytes / bandwidth, operations "
        "/ rate) on this machine; orange: what the forward takes beyond it; grey: no floor known. "
        "A forward is an AR step, or a verification of so many codes per row (a whole step if a "
        "backend runs it as one)."
    )
    with matplotlib.rc_context(RC):
        shape, panels = row_panels(run, columns=2, row_inches=0.36)
        for section, (left, right) in zip(run.sections, panels, strict=True):
            drawn = []
            for at, entry in enumerate(section.decoders):
                line = run.roofline.get(entry.name)
                if line is None or entry.failed:
                    _word(left, at, "failed" if entry.failed else "not timed")
                    continue
                drawn.append(entry)
                part, what = _forward(line)
                _bar(left, at, line, part, what, "not timed")
                drafts = "drafts nothing" if part == "ar" else "not told apart"
                _bar(right, at, line, "draft", "", drafts)
            caption += left_out(section, drawn, "no timed images")
        _limits(panels)
        panels[-1][0].set_xlabel("ms per target forward")
        panels[-1][1].set_xlabel("ms per drafter call")
        _key(shape, run)
        return finish("roofline", TITLE, caption, shape)


def _forward(line: dict[str, Any]) -> tuple[str, str]:
    """(part of the line, its name): a step as a whole where its parts were not told apart."""
    part, codes = forward_part(line), f"{number(line, 'codes'):.0f} codes"
    if part == "ar":
        return "ar", "AR step"
    return ("forward", codes) if number(line, "forward_ms") > 0 else ("step", f"step of {codes}")


def _bar(ax: Axes, at: int, line: dict[str, Any], part: str, what: str, absent: str) -> None:
    """Floor and rest stacked, and the one over the other in words."""
    taken, floor = number(line, f"{part}_ms"), number(line, f"{part}_floor_ms")
    if math.isnan(taken):
        _word(ax, at, absent)
        return
    known = not math.isnan(floor)
    ax.barh(at, taken, height=0.62, color=ABOVE if known else FAINT, ec="white", lw=0.4)
    words = [what, f"{taken:.2f} ms"]
    if known:
        ax.barh(at, floor, height=0.62, color=FLOOR, ec="white", lw=0.4)
        words.append(f"{taken / floor:.1f} x floor")
    ax.annotate(
        ", ".join(filter(None, words)), (max(taken, floor) if known else taken, at),
        xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK,
    )  # fmt: skip


def _word(ax: Axes, at: int, text: str) -> None:
    ax.text(0.02, at, text, transform=ax.get_yaxis_transform(), va="center", color=MUTED)


def _limits(panels: list[list[Axes]]) -> None:
    """Room for the longest bar and its figures; the axes of a column are shared."""
    for column, room in enumerate(ROOM):
        longest = max(ax.dataLim.x1 for ax in (axes[column] for axes in panels))
        panels[0][column].set_xlim(0, longest * room if 0 < longest < math.inf else 1.0)


def _key(shape: Figure, run: Run) -> None:
    handles = [Patch(color=FLOOR, label="floor"), Patch(color=ABOVE, label="above the floor")]
    if any(math.isnan(number(line, "ar_floor_ms")) for line in run.roofline.values()):
        handles.append(Patch(color=FAINT, label="no floor known"))
    shape.legend(
        handles=handles, loc="outside upper right", ncols=len(handles),
        handlelength=1, handletextpad=0.4, columnspacing=0.9,
    )  # fmt: skip
