"""Where the seconds of an image go, stacked: text, prefill, draft, forward, accept, VQ decode."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.report.load import PHASES
from bench.report.model import Entry, Run
from bench.report.plots.style import INK, MUTED, RC, Plot, finish, left_out, row_panels

TITLE = "Latency of one image, by phase"
NAMES = {
    "text": "text", "prefill": "prefill", "draft": "draft", "forward": "forward",
    "accept": "accept", "other": "other", "vq": "VQ decode",
}  # fmt: skip
COLORS = {
    "text": "#CC79A7", "prefill": "#56B4E9", "draft": "#E69F00", "forward": "#0072B2",
    "accept": "#D55E00", "other": "#BDBDBD", "vq": "#009E73",
}  # fmt: skip
COLUMNS = (*(f"seconds_{phase}" for phase in PHASES), "seconds_total")
INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


def draw(run: Run) -> Plot:
    """One stacked bar a decoder, mean over the timed images."""
    caption = (
        "Mean over the timed images (fastest time of each), batch 1. Other: decoding time "
        "outside the four timed parts (cache, bookkeeping). The figure is the sum; text and VQ "
        "decoding are not part of the speed-up."
    )
    with matplotlib.rc_context(RC):
        figure, panels = row_panels(run, columns=1, row_inches=0.36)
        for section, (ax,) in zip(run.sections, panels, strict=True):
            drawn = [entry for at, entry in enumerate(section.decoders) if _bar(ax, at, entry)]
            caption += left_out(section, drawn, "no timed images")
        longest = max(ax.dataLim.x1 for (ax,) in panels)
        panels[0][0].set_xlim(0, longest * 1.09 if longest > 0 else 1.0)
        panels[-1][0].set_xlabel("seconds per image")
        _key(figure)
        return finish("latency", TITLE, caption, figure)


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Mean seconds of every phase over the timed images, see `phases_of`; {} without any."""
    rows = entry.latency_rows()
    if rows.empty:
        return {}
    return phases_of({column: float(rows[column].mean()) for column in COLUMNS})


def phases_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every phase, 0 where not recorded, of the seconds_* columns of a row.

    `other` is what seconds_total holds beyond its four timed parts.
    """
    known = {phase: float(np.nan_to_num(seconds[f"seconds_{phase}"])) for phase in PHASES}
    total = float(np.nan_to_num(seconds["seconds_total"]))
    known["other"] = max(total - sum(known[name] for name in INSIDE), 0.0)
    return {name: known[name] for name in NAMES}


def _bar(ax: Axes, at: int, entry: Entry) -> bool:
    seconds = phase_seconds(entry)
    if not seconds or entry.failed:
        text = "failed" if entry.failed else "not timed"
        ax.text(0.01, at, text, transform=ax.get_yaxis_transform(), va="center", color=MUTED)
        return False
    left = 0.0
    for name, width in seconds.items():
        ax.barh(at, width, left=left, height=0.62, color=COLORS[name], ec="white", lw=0.4)
        left += width
    ax.annotate(
        f"{left:.{3 if left < 10 else 1}f} s", (left, at), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=8.5, color=INK,
    )  # fmt: skip
    return True


def _key(figure: Figure) -> None:
    handles = [Patch(color=COLORS[name], label=text) for name, text in NAMES.items()]
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles),
        handlelength=1, handletextpad=0.4, columnspacing=0.9,
    )  # fmt: skip
