"""What verifying more codes costs: milliseconds of a target forward over its codes per row."""

from __future__ import annotations

import math

from bench.records.run_data import RunData, Section
from bench.report.plots import style
from bench.report.plots.style import Plot, by_section, left_out, styled
from bench.report.roofline import bounds, forwards, takes_over

HEIGHT = 3.0  # inches
NAMED = 2  # decoders at a point
READING, ARITHMETIC = style.HUES[:2]


def sections(run: RunData) -> list[Section]:
    """Those of which a forward was timed."""
    return [section for section in run.sections if forwards(run, section)]


@styled
def draw(run: RunData) -> Plot:
    """Measured forwards, and the least that reading and arithmetic take, a row per section."""
    from matplotlib.lines import Line2D

    shown = sections(run)
    figure, rows = by_section(shown, [HEIGHT] * len(shown))
    caption = (
        "Median over the timed images, batch 1; one code is an AR step, more are a verification "
        "(hollow: a whole step, where a backend runs it as one). Dashed lines: the least that "
        "reading and arithmetic take on this machine; the higher one is the floor."
    )
    named: list[dict[str, tuple[float, float]]] = []
    for section, axes in rows:
        points, found = forwards(run, section), bounds(run, section)
        ar = next((point.ms for point in points if point.codes == 1), math.nan)
        right = max(1.18 * max(point.codes for point in points), 3.0)
        if found is not None:
            over = found.growth.crossing(found.rates)
            right = max(right, 1.15 * over) if over and over < 2 * right else right
            at = [right * step / 60 for step in range(61)]
            works = [found.growth.at(codes) for codes in at]
            axes.plot(at, [1e3 * w.reading(found.rates) for w in works], "--", color=READING)
            axes.plot(at, [1e3 * w.computing(found.rates) for w in works], "--", color=ARITHMETIC)
        labels = {}
        for point in points:
            fill = "white" if point.whole else style.INK
            axes.plot(point.codes, point.ms, "o", color=style.INK, markerfacecolor=fill)
            many = f" ({point.ms / ar:.2f} AR steps)" if point.codes > 1 and ar > 0 else ""
            more = f" and {len(point.names) - NAMED} more" if len(point.names) > NAMED else ""
            labels[", ".join(point.names[:NAMED]) + more + many] = (float(point.codes), point.ms)
        named.append(labels)
        axes.set(xlim=(0, right), ylabel="ms per target forward")
        axes.set_ylim(0, 1.12 * axes.dataLim.y1)
        axes.set_xlabel("codes per row of a target forward, root included")
        axes.grid(visible=True)
        timed = {name for point in points for name in point.names}
        drawn = [entry for entry in section.decoders if entry.name in timed]
        caption += f" {section.title}: {takes_over(found)}." + left_out(section, drawn, "not timed")
    lines = {"least for reading": READING, "least for arithmetic": ARITHMETIC}
    style.key(figure, [Line2D([], [], linestyle="--", color=color, label=name)
                       for name, color in lines.items()])  # fmt: skip
    for (_, axes), labels in zip(rows, named, strict=True):
        style.label(axes, labels)
    return Plot("verification", "What verifying more codes costs", caption, figure)
