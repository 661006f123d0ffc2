"""What the charts share: palette, encodings, linking and saving.

A `Chart` is one Vega-Lite description. The page embeds it, where a click on a decoder fades the
others; `save` draws the same as SVG and PNG. Colours are Okabe and Ito's, two of Tol's after them:
colour-blind readers tell them apart. Every mark is also named directly, so colour never stands
alone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.data.files import write_atomically, write_text
from bench.records.run_data import Entry, Role, RunData, Section
from metrics.stats import UNKNOWN as UNKNOWN
from metrics.stats import Interval

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
PICK = "pick"  # the page's script listens to it
WIDTH = 740  # pixels of the panels in a row; the page's script makes them as wide as there is room
GAP = 60  # pixels between panels, for the axis of the next
CAPTION = 118  # characters of a caption's line in a picture
INK, MUTED, FAINT = "#222222", "#666666", "#d9d9d9"
BASELINE = "#6b6b6b"
HUES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255",
)  # fmt: skip
SHAPES = {
    "exact": "circle", "exact as far as sampled": "square", "relaxed": "diamond",
    "broken": "cross", "not judged": "triangle-up",
}  # fmt: skip
FONT = "DejaVu Sans"
LOOK: Spec = {
    "font": f"{FONT}, system-ui, sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 13},
    "axis": {
        "domainColor": MUTED, "tickColor": MUTED, "gridColor": "#e8e8e8", "tickCount": 6,
        "labelFlush": False, "labelLimit": 100, "titleFontWeight": "normal", "titleFontSize": 11.5,
    },
    "legend": {"orient": "bottom", "columns": 6, "labelLimit": 180, "symbolOpacity": 1},
}  # fmt: skip
ABOVE: Spec = {
    "labelAlign": "left", "labelPadding": -4, "labelOffset": -13, "labelLimit": 0, "ticks": False,
    "domain": False,
}  # fmt: skip
FADED = 0.12
LINE = 36  # pixels of a decoder's line: its name above its bar


@dataclass(frozen=True)
class Chart:
    """name: file stem; caption: also drawn below the picture, says what was left out and why;
    charted: the page's linked charts show the same, so only readers without scripts see it."""

    name: str
    title: str
    caption: str
    spec: Spec
    charted: bool = False


def colors_of(run: RunData) -> dict[str, str]:
    """Decoder -> colour: one for a composition at every temperature; AR is grey, hues repeat."""
    found: dict[tuple[str, ...], str] = {}
    hues = cycle(HUES)
    for entry in run.entries:
        if entry.part_key not in found and entry.role is not Role.RESEED:
            found[entry.part_key] = BASELINE if entry.role is Role.BASELINE else next(hues)
    return {e.name: found[e.part_key] for e in run.entries if e.part_key in found}


def linked(panels: Sequence[Spec], colors: dict[str, str], columns: int) -> Spec:
    """Panels in which one click picks a decoder. An empty encoding `color` or `shape` of a layer
    becomes the decoder's colour, or the shape of its verdict."""
    layers = [layer for panel in panels for layer in panel.get("layer", [panel])]
    rows = [row for layer in layers for row in layer["data"]["values"]]
    kinds = [kind for kind in SHAPES if any(row.get("kind") == kind for row in rows)]
    names = [name for name in colors if any(row.get("decoder") == name for row in rows)]
    views = []
    for at, layer in enumerate(layers):
        encoding = layer["encoding"]
        if encoding.get("color") == {}:
            encoding["color"] = _scale("decoder", names, [colors[name] for name in names])
        if encoding.get("shape") == {}:
            encoding["shape"] = _scale("kind", kinds, [SHAPES[kind] for kind in kinds])
            encoding["shape"]["legend"] = {"title": "verdict", "columns": 1}
        if "tooltip" in encoding:
            layer["name"] = f"marks_{at}"
            views.append(layer["name"])
    select = {"type": "point", "fields": ["decoder"], "on": "click", "toggle": "true"}
    pick = {"name": PICK, "select": select, "bind": {"legend": "click"}, "views": views}
    for panel in panels:
        panel.setdefault("width", (WIDTH - GAP * (columns - 1)) / columns)
    return {
        "$schema": SCHEMA, "config": LOOK, "params": [pick] if views else [],
        "concat": [*panels], "columns": columns, "spacing": 24,
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }  # fmt: skip


def by_section(
    run: RunData,
    name: str,
    title: str,
    caption: str,
    made: Callable[[Section], tuple[Sequence[Spec], str]],
    columns: int = 1,
    last: str = "",
) -> Chart:
    """A chart of the panels of every section. made: a section's, and what the caption says of it;
    last: what it ends with."""
    panels = list[Spec]()
    for section in run.sections:
        drawn, said = made(section)
        panels += [{"title": section.title, **panel} for panel in drawn]
        caption += said
    return Chart(name, title, caption + last, linked(panels, colors_of(run), columns))


def _scale(field: str, domain: list[str], values: list[str]) -> Spec:
    scale = {"domain": domain, "range": values}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"title": field}}


def layer(mark: str | Spec, rows: Iterable[Spec], fade: float = 0, /, **encoding: Any) -> Spec:
    """Marks over rows. fade: their opacity, unless another decoder is picked; 0: always 1."""
    if fade:
        encoding["opacity"] = {"condition": {"param": PICK, "value": fade}, "value": FADED * fade}
    return {"mark": mark, "data": {"values": [*rows]}, "encoding": encoding}


def axis(field: str, title: str | None = None, /, *, zero: bool = False, **scale: Any) -> Spec:
    """A position on an axis; zero: that begins at 0."""
    room = {"zero": zero} | ({} if zero else {"nice": False, "padding": 16}) | scale
    return {"field": field, "type": "quantitative", "title": title, "scale": room}


def line_of(names: Sequence[str]) -> Spec:
    """The vertical place of a decoder's line, its name above it."""
    return {"field": "decoder", "type": "nominal", "sort": [*names], "title": None, "axis": ABOVE,
            "scale": {"domain": [*names]}}  # fmt: skip


def color(value: str) -> Spec:
    """A colour that every row has, or (`field`) that its column names."""
    return {"value": value}


OWN: Spec = {"field": "color", "type": "nominal", "scale": None}  # the colour that a row names


def rule_at(side: str, place: Spec, value: float, dash: Sequence[int] = ()) -> Spec:
    """A line across the chart."""
    mark = {"type": "rule", "color": MUTED, "strokeDash": [*dash]}
    return layer(mark, [{place["field"]: value}], **{side: place})


def band(side: str, place: Spec, found: Interval) -> list[Spec]:
    """What AR has under other seeds, along an axis ("x" or "y"); [] where that is not known."""
    if not math.isfinite(found.half_width):
        return []
    ends = {side: place | {"field": "lo"}, f"{side}2": {"field": "hi"}}
    mark = {"type": "rect", "color": FAINT, "opacity": 0.6}
    return [layer(mark, [{"lo": found.lo, "hi": found.hi}], **ends)]


def tooltip(**named: str) -> list[Spec]:
    """field=title; numbers with four digits."""
    words = ("decoder", "verdict", "prompt", "value", "text", "strip")
    return [
        {"field": field.replace("__", " "), "title": name}
        | ({} if field in words else {"format": ".4~g"})
        for field, name in named.items()
    ]


def plain(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return float(value) if math.isfinite(value) else None


def ends(column: str, found: Interval) -> Spec:
    """A figure and the ends of its interval, in columns of their own."""
    values = {"": found.value, "_lo": found.lo, "_hi": found.hi}
    return {column + end: plain(value) for end, value in values.items()}


def row_of(entry: Entry) -> Spec:
    """What every chart knows of a decoder. kind: its verdict without the figure."""
    verdict = entry.text("exactness")
    kind = verdict.partition(" (")[0]
    return {
        "decoder": entry.name, "kind": kind if kind in SHAPES else "not judged", "verdict": verdict,
        "s/image": plain(entry.number("latency_mean_s")), "codes": plain(entry.number("mal")),
    }  # fmt: skip


def left_out(section: Section, drawn: Sequence[Entry], reason: str) -> str:
    """Caption text naming the decoders without a mark, "" when all are drawn."""
    names = {entry.name for entry in drawn}
    found: dict[str, list[str]] = {}
    for entry in sorted(section.decoders, key=lambda e: e.failed):
        if entry.name not in names:
            found.setdefault("failed" if entry.failed else reason, []).append(entry.name)
    parts = [f"{', '.join(absent)} ({why})" for why, absent in found.items()]
    return f" {section.title}: left out {' and '.join(parts)}." if parts else ""


def unfair(run: RunData) -> str:
    """Text for the caption of a plot of speed-ups, "" where no baseline is unfair."""
    decoders = [e for e in run.entries if e.role is Role.DECODER and not run.unmeasured(e)]
    names = [e.name for e in decoders if run.mark(e)]
    return f" Against an unfair baseline (see the table): {', '.join(names)}." if names else ""


def say(text: str, height: int = 60) -> Spec:
    """A panel that has nothing to draw: the reason."""
    mark = {"type": "text", "color": MUTED, "align": "left", "fontSize": 12}
    return {"height": height, **layer(mark, [{}], text={"value": text}, x={"value": 0})}


def save(chart: Chart, folder: Path) -> tuple[Path, Path]:
    """(svg, png) under `folder`. Raises ImportError without vl-convert-python."""
    import vl_convert

    _fonts()
    words = textwrap.wrap(chart.caption, CAPTION)
    below = {"text": words, "orient": "bottom", "anchor": "start", "fontWeight": "normal",
             "fontSize": 11, "lineHeight": 15, "color": MUTED, "offset": 12}  # fmt: skip
    spec = chart.spec | {"background": "white"} | ({"title": below} if words else {})
    drawn = vl_convert.vegalite_to_svg(spec)
    png = vl_convert.svg_to_png(drawn, scale=1.6)
    svg = write_text(folder / f"{chart.name}.svg", drawn)
    path = folder / f"{chart.name}.png"
    write_atomically(path, lambda file: file.write(png))
    return svg, path


@lru_cache(maxsize=1)
def _fonts() -> None:
    """DejaVu Sans as shipped with matplotlib: the same on every machine."""
    import matplotlib
    import vl_convert

    vl_convert.register_font_directory(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf"))
