"""Acceptance by draft depth: how fast a drafter's guesses go stale.

Of the steps that accepted depth d - 1, the share that also accepted depth d; and the share of all
steps that got at least that deep, which summed over depths is the mean number of drafts accepted
per step (MAL without its last code). The last step of an image is left out: the image's end cuts
it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots.chart import (
    GAP,
    WIDTH,
    Chart,
    Spec,
    axis,
    colors_of,
    layer,
    left_out,
    linked,
    say,
    tooltip,
)
from bench.report.plots.labels import spread
from decoders.api import whole_steps

FEWEST_STEPS = 20  # a share of fewer steps than this is not drawn
HEIGHT = 240  # pixels
SHARES = {"conditional": "accepted, given depth d - 1", "reach": "steps reaching depth d"}


def shown(run: RunData) -> bool:
    """Whether the accepted drafts of any decoder were recorded."""
    return any(len(acceptance_by_depth(e.images)) for s in run.sections for e in _drafting(s))


def draw(run: RunData) -> Chart:
    """Two panels a section: conditional acceptance and reach."""
    caption = (
        "Left or above: share of the steps which accepted depth d - 1 that also accepted depth d "
        f"(points of fewer than {FEWEST_STEPS} steps are not drawn). Right or below: share of all "
        "steps that accepted at least d drafts. AR drafts nothing."
    )
    panels = []
    for section in run.sections:
        found = [(entry, acceptance_by_depth(entry.images)) for entry in _drafting(section)]
        curves = [(entry, curve) for entry, curve in found if len(curve)]
        panels += [{"title": section.title, **_panel(curves, share)} for share in SHARES]
        drawn = [entry for entry, _ in curves]
        drawn += [e for e in section.decoders if e.role is Role.BASELINE]
        caption += left_out(section, drawn, "no drafts recorded")
    spec = linked(panels, colors_of(run), columns=2)
    return Chart("acceptance_depth", "Acceptance by draft depth", caption, spec)


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


def _panel(curves: list[tuple[Entry, pd.DataFrame]], share: str) -> Spec:
    """One line a decoder, named at its right end."""
    if not curves:
        return say("no decoder of this section drafts")
    rows, last = list[Spec](), list[Spec]()
    for entry, curve in curves:
        kept = curve[curve["steps"] >= FEWEST_STEPS] if share == "conditional" else curve
        kept = curve.head(1) if kept.empty else kept
        mine = [
            {"decoder": entry.name, "depth": int(depth), "share": float(value), "steps": int(steps)}
            for depth, value, steps in zip(kept["depth"], kept[share], kept["steps"], strict=True)
        ]
        rows += mine
        last.append(mine[-1])
    at = spread([row["share"] for row in last], 13 / HEIGHT, 0.02, 0.99)
    names = [row | {"at": place} for row, place in zip(last, at, strict=True)]
    deepest = max(row["depth"] for row in rows)
    room = 6.2 * max(len(row["decoder"]) for row in rows) / ((WIDTH - GAP) / 2)  # of the width
    right = 1 + (deepest - 0.9) / max(1 - room - 0.05, 0.3)
    steps = {"format": "d", "tickMinStep": 1, "values": [*range(1, deepest + 1)]}
    x = axis("depth", "draft depth d", domain=[0.9, right]) | {"axis": steps}
    y = axis("share", SHARES[share], domain=[0, 1])
    text = {"type": "text", "align": "left", "dx": 9, "fontSize": 10.5}
    said = tooltip(decoder="decoder", depth="depth", share="share", steps="of steps")
    point = {"type": "point", "filled": True, "size": 45, "opacity": 1, "cursor": "pointer"}
    layers = [
        layer({"type": "line", "strokeWidth": 1.6}, rows, 1, x=x, y=y, color={}),
        layer(point, rows, 1, x=x, y=y, color={}, tooltip=said),
        layer(text, names, 0.85, x=x, y=y | {"field": "at"}, text={"field": "decoder"}),
    ]
    return {"height": HEIGHT, "layer": layers}
