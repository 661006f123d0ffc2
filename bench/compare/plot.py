"""Measured and published figures as marks: one panel per figure, one line per decoder.

A black dot with its 95 % interval is ours; coloured marks are published, their shape the paper,
their colour the verdict, hollow where the verdict assumes what the source leaves unstated. Several
marks on a line are published numbers that disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare.published import LABELS
from bench.compare.verdicts import Comparison, Result, Verdict, has_interval
from bench.report.plots.chart import (
    INK,
    Chart,
    Spec,
    axis,
    layer,
    line_of,
    linked,
    rule_at,
    say,
    tooltip,
)

TITLE = "Measured and published"
COLORS = {Verdict.REPRODUCED: "#009E73", Verdict.NOT: "#D55E00", Verdict.APART: "#9a9a9a"}
MARKS = ("square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right",
         "triangle-left", "stroke", "wedge")  # fmt: skip
MOST = 40  # lines of a panel; more are left to the table
LINE = 34  # pixels of a decoder's line


def draw(result: Result) -> Chart:
    """The chart `compare`; one that says so where no published row has a measured one."""
    shown = [c for c in result.shown() if c.known]
    panels = _panels(shown, [row.decoder for row in result.run.rows])
    caption = "Black: this run, with its 95 % interval. "
    if result.covered:
        caption += (
            "Coloured: published; hollow: the source leaves a setting unstated and the verdict "
            "assumes it. Several marks on a line: several published numbers."
        )
    else:
        caption += "Grey: published, of other models; nothing here is reproduced or refuted."
    cut = [name for name, lines in panels.items() if len(lines) > MOST]
    if cut:
        caption += f" Only the first {MOST} lines of {', '.join(cut)}; all are in the table."
    papers = list(dict.fromkeys(c.row.paper for c in shown))
    drawn = [_panel(name, lines, papers) for name, lines in panels.items()]
    drawn = drawn or [say("No published row has a measured one to compare.")]
    return Chart("compare", TITLE, caption, linked(drawn, {}, columns=1))


def _panels(
    shown: Sequence[Comparison], order: Sequence[str]
) -> dict[str, dict[str, list[Comparison]]]:
    """figure, in the order of LABELS -> decoder, in that of the run -> its comparisons."""
    found: dict[str, dict[str, list[Comparison]]] = {}
    places = list(LABELS)
    for item in sorted(shown, key=lambda item: (places.index(item.metric), item.row.baseline)):
        if item.measured is not None:
            lines = found.setdefault(item.label, {})
            lines.setdefault(item.measured.decoder, []).append(item)
    return {
        name: {decoder: lines[decoder] for decoder in order if decoder in lines}
        for name, lines in found.items()
    }


def _panel(name: str, lines: dict[str, list[Comparison]], papers: list[str]) -> Spec:
    decoders = list(lines)[:MOST]
    ours, published = list[Spec](), list[Spec]()
    for decoder in decoders:
        own = lines[decoder][0].figure
        ends = {"lo": own.lo, "hi": own.hi} if has_interval(own) else {}
        ours.append({"decoder": decoder, "figure": own.value, **ends})
        published += [
            {"decoder": decoder, "figure": item.published, "paper": item.row.paper,
             "verdict": str(item.verdict), "fill": "white" if item.assumed else
             COLORS[item.verdict]}
            for item in lines[decoder]
        ]  # fmt: skip
    x, y = axis("figure", name), line_of(decoders)
    verdicts = {"domain": [str(v) for v in COLORS], "range": [*COLORS.values()]}
    marks = {"domain": papers, "range": [MARKS[at % len(MARKS)] for at in range(len(papers))]}
    mark = {"type": "point", "size": 90, "strokeWidth": 1.6, "opacity": 1}
    said = tooltip(decoder="decoder", paper="paper", figure="published", verdict="verdict")
    dot, bar = {"type": "point", "filled": True, "size": 40}, {"type": "rule", "strokeWidth": 1.8}
    black = {"color": {"value": INK}}
    layers = [
        layer(mark, published, x=x, y=y, tooltip=said,
              fill={"field": "fill", "type": "nominal", "scale": None},
              stroke={"field": "verdict", "type": "nominal", "scale": verdicts},
              shape={"field": "paper", "type": "nominal", "scale": marks}),
        layer(dot | {"opacity": 1}, ours, x=x, y=y, **black),
    ]  # fmt: skip
    within = [row for row in ours if "lo" in row]
    if within:
        across = {"x": x | {"field": "lo"}, "x2": {"field": "hi"}}
        layers.insert(0, layer(bar, within, y=y, **across, **black))
    if name.startswith("speed-up"):
        layers.append(rule_at("x", x, 1, dash=[2, 3]))
    return {"title": name, "height": LINE * len(decoders), "layer": layers}
