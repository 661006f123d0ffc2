"""Acceptance by draft depth: how fast a drafter's guesses go stale.

Above: of the steps that accepted depth d - 1, the share that also accepted depth d. Below: the
share of all steps that got at least that deep; summed over depths it is the mean number of drafts
accepted a step (MAL without its last code). The last step of an image is left out: the image's end
cuts it.
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots.labels import spread
from bench.report.plots.style import (
    INK,
    RC,
    WIDTH,
    Look,
    Plot,
    finish,
    left_out,
    looks,
    say,
    square_panels,
)
from decoders.api import whole_steps

FEWEST_STEPS = 20  # a share of fewer steps than this is not drawn


def shown(run: RunData) -> bool:
    """Whether the accepted drafts of any decoder were recorded."""
    return any(len(acceptance_by_depth(e.images)) for s in run.sections for e in _drafting(s))


def draw(run: RunData) -> Plot:
    """Two panels a section: conditional acceptance above, reach below."""
    caption = (
        "Above: share of the steps which accepted depth d - 1 that also accepted depth d (points "
        f"of fewer than {FEWEST_STEPS} steps are not drawn). Below: share of all steps that "
        "accepted at least d drafts. AR drafts nothing."
    )
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = square_panels(run, rows=2, panel_inches=2.75)
        across = min(len(panels), 2)
        for section, axes in zip(run.sections, panels, strict=True):
            curves = [(entry, acceptance_by_depth(entry.images)) for entry in _drafting(section)]
            curves = [(entry, curve) for entry, curve in curves if len(curve)]
            _lines(axes[0], curves, "conditional", styles, across)
            _lines(axes[1], curves, "reach", styles, across)
            axes[0].set_ylabel("accepted, given d - 1")
            axes[1].set_ylabel("steps reaching d")
            axes[1].set_xlabel("draft depth d")
            drawn = [entry for entry, _ in curves]
            drawn += [e for e in section.decoders if e.role is Role.BASELINE]
            caption += left_out(section, drawn, "no drafts recorded")
        return finish("acceptance_depth", "Acceptance by draft depth", caption, figure)


def acceptance_by_depth(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns depth, steps (that accepted depth - 1), conditional, reach; empty without drafts.

    rows: image rows with `accepted` (drafts accepted a step, -1 past the last) and `tree_depth`.
    """
    levels = int(rows["tree_depth"].max()) if len(rows) else 0
    steps = [whole_steps(row) for row in rows["accepted"]]
    if not levels or not sum(map(len, steps)):
        return pd.DataFrame(columns=["depth", "steps", "conditional", "reach"])
    accepted = np.concatenate(steps)  # [steps of all rows]
    reached = np.array([(accepted >= depth).sum() for depth in range(levels + 1)])
    before = reached[:-1]
    return pd.DataFrame(
        {
            "depth": np.arange(1, levels + 1),
            "steps": before,
            "conditional": reached[1:] / np.maximum(before, 1),
            "reach": reached[1:] / len(accepted),
        }
    )


def _drafting(section: Section) -> list[Entry]:
    return [e for e in section.decoders if not e.failed and e.role is not Role.BASELINE]


def _lines(
    ax: Axes,
    curves: list[tuple[Entry, pd.DataFrame]],
    column: str,
    styles: dict[tuple[str, str], Look],
    columns: int,
) -> None:
    """One line a decoder, labelled at the right edge in the order of their ends."""
    ax.set_ylim(0, 1.02)
    ax.grid()
    if not curves:
        say(ax, "no decoder of this section drafts")
        ax.set_xticks([])
        return
    deepest = max(int(curve["depth"].max()) for _, curve in curves)
    ends = []
    for entry, curve in curves:
        look = styles[entry.part_key]
        kept = curve[curve["steps"] >= FEWEST_STEPS] if column == "conditional" else curve
        if kept.empty:
            kept = curve.head(1)
        ax.plot(
            kept["depth"], kept[column], color=look.color, ls=look.dash, marker=look.marker,
            ms=4.5, lw=1.6, mec="white", mew=0.5,
        )  # fmt: skip
        ends.append((float(kept["depth"].iloc[-1]), float(kept[column].iloc[-1])))
    places = spread([y for _, y in ends], gap=0.075, low=0.03, high=0.99)
    edge = deepest + 0.35
    for (entry, _), (x, y), at in zip(curves, ends, places, strict=True):
        color = styles[entry.part_key].color
        ax.plot([x + 0.06, edge - 0.04], [y, at], color=color, lw=0.6, alpha=0.5, clip_on=False)
        ax.text(edge + 0.07, at, entry.name, color=INK, fontsize=8.5, va="center", clip_on=False)
        ax.plot(edge - 0.02, at, ".", color=color, ms=4, clip_on=False)
    longest = max(len(entry.name) for entry, _ in curves)
    width, across = WIDTH / columns - 0.7, edge - 0.8  # inches, depths
    room = min(0.072 * longest + 0.15, 0.6 * width)  # inches for the longest label
    ax.set_xlim(0.8, edge + across * room / (width - room))
    ax.set_xticks(range(1, deepest + 1))
