"""What was drafted: acceptance by draft depth, and moved mass against its declared bound.

Acceptance by depth shows how fast a drafter's guesses go stale: of the steps that accepted depth
d - 1, the share that also accepted depth d; and the share of all steps that got at least that deep,
which summed over depths is the mean number of drafts accepted per step (MAL without its last code).
The last step of an image is left out: the image's end cuts it.

Moved mass: for every position at which a draft was tested, the mass that the relaxed rule moves,
TV(p, p_A), and the bound that the rule declares for it. Then, at the recorded positions, the exact
distance between p and the law of the emitted code: a rule may keep its bound on the moved mass and
have a larger distance of the output.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import DOT, WORDS, between, series, spread
from decoders.api import whole_steps

FEWEST_STEPS = 20  # a share of fewer steps than this is not drawn
HEIGHT = 240  # pixels
SHARES = {"conditional": "accepted, given depth d - 1", "reach": "steps reaching depth d"}
TESTED = (1, 2, 3)  # CodeKind DRAFT, RELAXED, CORRECTED: the codes at which a draft was tested
LINE = 46  # pixels of a decoder: its name and two strips
FIGURES = {"moved mass": -3, "output TV": 11}  # and how many pixels below the middle they stand
OVER = "#B2182B"  # an output TV that exceeds what is declared
LEVELS = {"5 %": 0.05, "25 %": 0.25, "75 %": 0.75, "95 %": 0.95}


def _drafting(section: Section) -> list[Entry]:
    return [e for e in section.decoders if not e.failed and e.role is not Role.BASELINE]


def depth_shown(run: RunData) -> bool:
    """Whether the accepted drafts of any decoder were recorded."""
    return any(len(acceptance_by_depth(e.images)) for s in run.sections for e in _drafting(s))


def draw_depth(run: RunData) -> Chart:
    """Two panels a section: conditional acceptance and reach."""
    caption = (
        "Left or above: share of the steps which accepted depth d - 1 that also accepted depth d "
        f"(points of fewer than {FEWEST_STEPS} steps are not drawn). Right or below: share of all "
        "steps that accepted at least d drafts. AR drafts nothing."
    )

    def one(section: Section) -> tuple[list[Spec], str]:
        found = [(entry, acceptance_by_depth(entry.images)) for entry in _drafting(section)]
        curves = [(entry, curve) for entry, curve in found if len(curve)]
        drawn = [entry for entry, _ in curves]
        drawn += [e for e in section.decoders if e.role is Role.BASELINE]
        said = vl.left_out(section, drawn, "no drafts recorded")
        return [_curves(curves, share) for share in SHARES], said

    title = "Acceptance by draft depth"
    return vl.by_section(run, "acceptance_depth", title, caption, one, columns=2)


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


def _curves(curves: list[tuple[Entry, pd.DataFrame]], share: str) -> Spec:
    """One line a decoder, named at its right end."""
    if not curves:
        return vl.say("no decoder of this section drafts")
    rows, last = list[Spec](), list[Spec]()
    for entry, curve in curves:
        kept = curve[curve["steps"] >= FEWEST_STEPS] if share == "conditional" else curve
        kept = curve.head(1) if kept.empty else kept
        kept = kept[["depth", "steps"]].assign(decoder=entry.name, share=kept[share])
        rows += cast(list[Spec], kept.to_dict("records"))
        last.append(rows[-1])
    at = spread([row["share"] for row in last], 13 / HEIGHT, 0.02, 0.99)
    named = [row | {"at": place} for row, place in zip(last, at, strict=True)]
    deepest = max(row["depth"] for row in rows)
    longest = max(len(row["decoder"]) for row in rows)
    room = 6.2 * longest / ((vl.WIDTH - vl.GAP) / 2)  # of the width
    right = 1 + (deepest - 0.9) / max(1 - room - 0.05, 0.3)
    steps = {"format": "d", "tickMinStep": 1, "values": [*range(1, deepest + 1)]}
    x = vl.axis("depth", "draft depth d", domain=[0.9, right]) | {"axis": steps}
    y = vl.axis("share", SHARES[share], domain=[0, 1])
    said = vl.tooltip(decoder="decoder", depth="depth", share="share", steps="of steps")
    layers = series(rows, DOT | {"size": 45}, x=x, y=y, line=1.6, tooltip=said)
    text = vl.layer(WORDS | {"dx": 9}, named, 0.85, x=x, y=y | {"field": "at"},
                 text={"field": "decoder"})  # fmt: skip
    return {"height": HEIGHT, "layer": [*layers, text]}


def moved_shown(run: RunData) -> bool:
    """Whether any decoder but AR has recorded positions."""
    return any(
        len(_flat(entry.images["moved"])) or len(_flat(entry.images["tv_output"]))
        for section in run.sections
        for entry in _drafting(section)
    )


def draw_moved(run: RunData) -> Chart:
    """Two strips a decoder: moved mass with its bound, output TV with its bound."""
    caption = (
        "Upper strip (circle): mass moved at tested positions. Lower strip (diamond): output TV at "
        "recorded positions; red where its mean exceeds the mean declared bound († in the "
        "table). Mark: mean; thick: middle half; thin: 5 to 95 %. Black bar: declared bound (mean; "
        "grey: 5 to 95 % where it varies by position). Square: output bound (mean), which the "
        "acceptance allows. Exact rules move nothing."
    )
    colors = vl.colors_of(run)

    def one(section: Section) -> tuple[list[Spec], str]:
        found = [(entry, *_strips(entry, colors[entry.name])) for entry in section.decoders]
        rows = [row for _, mine, _ in found for row in mine]
        notes = [{"decoder": e.name, "at": 0.004, "text": why} for e, _, why in found if why]
        drawn = [e for e, mine, _ in found if mine or e.role is Role.BASELINE]
        said = vl.left_out(section, drawn, "no draft was tested or its TV was not recorded")
        without = [e.name for e in drawn if e.role is not Role.BASELINE
                   and not len(_flat(e.ok["tv_output"]))]  # fmt: skip
        said += f" {section.title}: no output TV for {', '.join(without)}." if without else ""
        return [_moved([entry.name for entry, *_ in found], rows, notes)], said

    return vl.by_section(run, "moved_mass", "Moved mass against declared bound", caption, one)


def _strips(entry: Entry, color: str) -> tuple[list[Spec], str]:
    """A decoder's strips; or why it has none."""
    if entry.failed:
        return [], "failed"
    if entry.role is Role.BASELINE:
        return [], "drafts nothing"
    rows = entry.images
    output, declared, allowed = (
        _flat(rows[column]) for column in ("tv_output", "tv_declared_bound", "tv_output_bound")
    )
    found = []
    for figure, values, bound, least in (
        ("moved mass", *tested_positions(rows), np.empty(0)),
        ("output TV", output, declared, allowed),
    ):
        if not len(values):
            continue
        own: Spec = {"decoder": entry.name, "strip": figure, "at": float(values.mean())}
        own |= {"below": FIGURES[figure]}
        own |= dict(zip(LEVELS, np.quantile(values, [*LEVELS.values()]).tolist(), strict=True))
        if len(bound):
            own |= {"bound": float(bound.mean())}
            low, high = np.quantile(bound, [LEVELS["5 %"], LEVELS["95 %"]]).tolist()
            own |= {"low": low, "high": high} if high - low > 1e-6 else {}
        if len(least):
            own |= {"allowed": float(least.mean())}
        over = figure == "output TV" and own["at"] > own.get("bound", np.inf) + 1e-6
        found.append(own | {"color": OVER if over else color})
    return found, "" if found else "not measured"


def _moved(names: list[str], rows: list[Spec], notes: list[Spec]) -> Spec:
    """A line a decoder."""
    x = vl.axis("at", "total variation (share of probability mass)", nice=True, padding=0)
    y = vl.line_of(names) | {"axis": vl.ABOVE | {"labelOffset": -16}}
    said = vl.tooltip(decoder="decoder", strip="of", at="mean", bound="declared bound",
                   allowed="output bound")  # fmt: skip
    offset = {"yOffset": {"expr": "datum.below"}}
    bar: Spec = {"type": "bar", **offset}
    place: Spec = {"x": x, "y": y}
    kinds = {"domain": [*FIGURES], "range": ["circle", "diamond"]}
    shape = {"field": "strip", "type": "nominal", "scale": kinds, "legend": {"title": None}}
    varying = [row for row in rows if "low" in row]
    faint = bar | {"height": 13, "opacity": 0.1}
    tick = {"type": "tick", "thickness": 2.5, "size": 14, **offset}
    square = {"type": "point", "shape": "square", "size": 60, **offset}
    black = vl.color("black")
    layers = [
        vl.layer(WORDS | {"color": vl.MUTED}, notes, **place, text={"field": "text"}),
        *([between(faint, varying, "low", "high", **place, color=black)] if varying else []),
        between(bar | {"height": 1.6}, rows, "5 %", "95 %", 0.8, **place, color=vl.OWN),
        between(bar | {"height": 6}, rows, "25 %", "75 %", 0.8, **place, color=vl.OWN),
        vl.layer(tick, rows, y=y, x=x | {"field": "bound"}, color=black),
        vl.layer(square, rows, y=y, x=x | {"field": "allowed"}, color=vl.color(vl.INK)),
        *series(rows, DOT | {"stroke": "white", **offset}, **place, color=vl.OWN, shape=shape,
                tooltip=said),
    ]  # fmt: skip
    return {"height": LINE * len(names), "layer": layers}


def tested_positions(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(moved, bound) at every position where a draft was tested, all images together."""
    kinds = _flat(rows["kind"])
    keep = np.isin(kinds, TESTED)
    return _flat(rows["moved"])[keep], _flat(rows["bound"])[keep]


def _flat(column: pd.Series) -> np.ndarray:
    lists = [np.asarray(values, dtype=float) for values in column if values is not None]
    return np.concatenate(lists) if lists else np.empty(0)
