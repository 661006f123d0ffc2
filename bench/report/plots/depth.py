"""Acceptance by draft depth: how fast a drafter's guesses go stale.

Of the steps that accepted depth d - 1, the share that also accepted depth d. The last step of an
image is left out: the image's end cuts it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench.records.run_data import Role, RunData, Section
from bench.report.plots import style
from bench.report.plots.style import Plot, by_section, left_out, styled
from decoders.api import whole_steps

FEWEST_STEPS = 20  # a share of fewer steps than this is not drawn
DEEPEST = 12
LINE = 0.29  # inches of a decoder


def curves(section: Section) -> dict[str, pd.DataFrame]:
    """Decoder -> its shares, of those whose accepted drafts were recorded."""
    entries = [e for e in section.decoders if not e.failed and e.role is not Role.BASELINE]
    found = {e.name: acceptance_by_depth(e.images) for e in entries}
    return {name: curve for name, curve in found.items() if len(curve)}


def acceptance_by_depth(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns depth, steps (that accepted depth - 1) and share (of those, that accepted depth);
    empty without drafts.

    rows: image rows with `accepted` (drafts accepted per step, -1 past the last) and `tree_depth`.
    """
    levels = int(rows["tree_depth"].max()) if len(rows) else 0
    steps = [whole_steps(row) for row in rows["accepted"]]
    if not levels or not sum(map(len, steps)):
        return pd.DataFrame(columns=["depth", "steps", "share"])
    accepted = np.concatenate(steps)  # [steps of all rows]
    reached = np.array([(accepted >= depth).sum() for depth in range(levels + 1)])
    share = reached[1:] / np.maximum(reached[:-1], 1)
    return pd.DataFrame({"depth": range(1, levels + 1), "steps": reached[:-1], "share": share})


@styled
def draw(run: RunData) -> Plot:
    """A line of cells per decoder, a row per section."""
    shares = {section.title: curves(section) for section in run.sections}
    sections = [section for section in run.sections if shares[section.title]]
    caption = (
        "Of the steps that accepted depth d - 1, the share that also accepted depth d (not "
        f"shown: shares of fewer than {FEWEST_STEPS} steps, and depths over {DEEPEST}). AR drafts "
        "nothing."
    )
    figure, rows = by_section(sections, [LINE * len(shares[s.title]) for s in sections])
    for section, axes in rows:
        found = shares[section.title]
        depths = min(max(curve["depth"].max() for curve in found.values()), DEEPEST)
        cells = np.full((len(found), depths), np.nan)  # [decoders, depths]
        for line, curve in enumerate(found.values()):
            curve = curve.head(depths)
            curve = curve[curve["steps"] >= FEWEST_STEPS]
            cells[line, curve["depth"] - 1] = curve["share"]
        axes.pcolormesh(cells, cmap="Blues", vmin=0, vmax=1, edgecolor="white", linewidth=1)
        for line, column in zip(*np.nonzero(np.isfinite(cells)), strict=True):
            share = cells[line, column]
            axes.text(column + 0.5, line + 0.5, f"{share:.2f}", ha="center", va="center",
                      color="white" if share > 0.55 else "black", fontsize=style.SMALL)  # fmt: skip
        axes.set_xticks(np.arange(depths) + 0.5, [f"{d}" for d in range(1, depths + 1)])
        axes.set_yticks(np.arange(len(found)) + 0.5, [*found])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.invert_yaxis()
        axes.set_xlabel("draft depth d; share accepted, given depth d - 1")
        drawn = [e for e in section.decoders if e.name in found or e.role is Role.BASELINE]
        caption += left_out(section, drawn, "no drafts recorded")
    return Plot("acceptance_depth", "Acceptance by draft depth", caption, figure)
