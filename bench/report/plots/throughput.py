"""Images per second and speed-up by batch size, of a run that timed several sizes."""

from __future__ import annotations

import math

from bench.records.run_data import RunData
from bench.report.plots import style
from bench.report.plots.style import Plot, styled
from bench.report.scaling import lines

HEIGHT = 2.6  # inches
FIGURES = {"images_s": "images per second", "speedup": "speed-up at the same batch"}


@styled
def draw(run: RunData) -> Plot:
    """Two rows; what failed is named in the caption."""
    every = lines(run)
    ok = [line for line in every if not line.error]
    failed = [f"{line.decoder} at {line.batch}" for line in every if line.error]
    figure, rows = style.panels([HEIGHT] * len(FIGURES))
    colors, entries = style.colors_of(run), {entry.name: entry for entry in run.entries}
    ends = []
    for (column, title), (axes,) in zip(FIGURES.items(), rows, strict=True):
        last: dict[str, tuple[float, float]] = {}
        for name in dict.fromkeys(line.decoder for line in ok):
            mine = [line for line in ok if line.decoder == name]
            points = [(line.batch, getattr(line, column)) for line in mine
                      if column != "speedup" or name != line.baseline]  # fmt: skip
            points = [(batch, found) for batch, found in points if math.isfinite(found.value)]
            axes.plot([x for x, _ in points], [y.value for _, y in points], color=colors[name])
            for batch, found in points:
                style.point(axes, entries[name], colors[name], batch, found)
                last[name] = batch, found.value
        ends.append(last)
        batches = sorted({line.batch for line in ok})
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [f"{batch}" for batch in batches], minor=False)
        axes.set(ylabel=title, xlabel="batch size", xlim=(0.8, 2 * batches[-1]))  # names: right
        axes.grid(visible=True, axis="y")
    rows[0][0].set_ylim(bottom=0)
    rows[1][0].axhline(1, color=style.MUTED, linewidth=0.8, linestyle=":")
    style.verdict_key(figure, run.entries)
    for (axes,), last in zip(rows, ends, strict=True):
        style.label(axes, last)
    caption = (
        "Prefill and decoding; bars are 95 % intervals over calls, where there are enough. "
        "Speed-up: over the baseline at the same batch."
    )
    many = {line.images for line in ok if line.batch > 1 and line.images > line.batch}
    if many:
        caption += f" Offline: {many.pop()} images per call, a place that is done is refilled."
    caption += f" Failed and left out: {', '.join(failed)}." if failed else ""
    return Plot("throughput", "Throughput and speed-up by batch size", caption, figure)
