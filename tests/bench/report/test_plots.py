"""Figures of the made-up run: what they say."""

import re
from dataclasses import replace

import matplotlib
import pytest
from cycler import cycler
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from bench.report import plots
from bench.report.style import Panel, Plot, inline, plot
from metrics.stats import Interval


def written(plot: Plot) -> list[str]:
    """What a reader of the figure sees written."""
    return re.findall(r">([^<>]+)</text>", inline(plot))


def test_phases_sum_to_the_measured_whole(run):
    entry = next(e for e in run.entries if e.name == "lantern")
    seconds = next(x for x in run.lines("phases") if x["decoder"] == "lantern")
    rows = entry.line.timed
    whole = (rows["seconds_total"] + rows["seconds_text"] + rows["seconds_vq"]).mean()
    assert sum(seconds[name] for name in plots.SHADES) == pytest.approx(whole)
    assert seconds["other"] > 0
    plot = plots.phases(run)
    assert "not measured: lantern_chain" in plot.caption
    assert {"ar", "lantern", f" {whole:.3f} s"} <= {*written(plot)}


@pytest.mark.parametrize(
    ("column", "label", "band"),
    [
        (plots.CLIP, "CLIP (scenes), higher is better", True),
        (plots.TV, "output TV, lower is better", False),
    ],
)
def test_speed_is_drawn_against_quality(run, column, label, band):
    plot = plots.against(run, column)
    said = written(plot)
    assert {label, "speed-up over AR", "ar", "lantern", "exact", "relaxed"} <= {*said}
    assert ("AR under one more seed" in said) == band
    assert plot.name == f"speedup_{column}" and "not measured: lantern_chain" in plot.caption
    ar, *_, lantern = (e for e in run.sections[0].decoders if e.name in ("ar", "lantern"))
    assert plots.quality_of(ar, plots.TV).value == 0
    assert plots.quality_of(lantern, column) == lantern.interval(column)


def crowded(run, points):
    """The run's AR and relaxed decoders at these points of speed-up and output TV, with bars."""
    ar, lantern = (e for e in run.sections[0].decoders if e.name in ("ar", "lantern"))

    def at(name, speed, tv):
        figures = {"speedup": Interval(speed, speed - 0.2, speed + 0.2),
                   "tv_output": Interval(tv, tv - 0.03, tv + 0.03)}  # fmt: skip
        return replace(lantern, name=name, figures={**lantern.figures, **figures})

    entries = [ar, *(at(name, *where) for name, where in points.items())]
    return replace(run, sections=[replace(run.sections[0], entries=entries)])


def test_a_crowded_figure_names_ar_the_fastest_and_who_is_not_beaten_and_numbers_the_others(run):
    front = {f"decoder d={n}": (1 + n / 2, n / 10) for n in range(1, 6)}
    beaten = {f"beaten d={n}": (1 + n / 9, 0.2 + n / 40) for n in range(12)}
    figure = plots.against(crowded(run, beaten | front), plots.TV)
    said = written(figure)
    assert {"ar", *front} <= {*said} and not {*beaten} & {*said}
    for number, name in enumerate(beaten, 1):
        assert {f"{number}", f"{number}  {name}"} <= {*said}, "every number is in the key"
    assert "The others have numbers." in figure.caption
    assert 0.3 < figure.first < 0.8, "its key is below its axes"
    boxes = [Text.get_window_extent(name) for name in figure.figure.axes[0].texts]
    assert len(boxes) == 1 + len(front) + len(beaten), "no decoder is left out"
    pairs = [(a, b) for at, a in enumerate(boxes) for b in boxes[at + 1 :]]
    assert not [1 for a, b in pairs if a.padded(-2).overlaps(b.padded(-2))]


def test_a_figure_of_few_decoders_names_all(run):
    few = {f"d={n}": (2 - n / 9, 0.1 + n / 20) for n in range(7)}  # six are beaten
    figure = plots.against(crowded(run, few), plots.TV)
    assert {"ar", *few} <= {*written(figure)} and "numbers" not in figure.caption


def drawn(draw, height=3.0):
    """The axes of a plot of one panel, names and all."""
    figure = plot("names", "Names", "", [Panel("", height, draw)]).figure
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return axes


@pytest.mark.parametrize("count", [9, 16])
def test_names_do_not_cover_each_other(count):
    points = {f"a_decoder_{n:02d}": (n % 3 / 9, 1 + n / 40) for n in range(count)}

    def draw(axes):
        axes.scatter(*zip(*points.values(), strict=True))
        return points

    axes = drawn(draw)
    boxes = [Text.get_window_extent(name) for name in axes.texts]  # without a line that leads to it
    assert len(boxes) == count
    pairs = [(a, b) for at, a in enumerate(boxes) for b in boxes[at + 1 :]]
    assert not [1 for a, b in pairs if a.padded(-2).overlaps(b.padded(-2))]


def test_names_stay_inside_and_off_marks_without_a_name():
    mark, other = (1.0, 2.0), (1.1, 2.05)

    def draw(axes):
        axes.plot(*zip((0.0, 0.0), mark, other, strict=True), "o")
        axes.set_ylim(0, 2.12)
        return {"a decoder\nof two lines": mark}

    axes = drawn(draw)
    (name,) = axes.texts
    box, frame = Text.get_window_extent(name), axes.get_window_extent()
    assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1
    assert not box.contains(*axes.transData.transform(other))


def test_no_error_bar_strikes_through_a_name():
    def draw(axes):
        axes.errorbar([1.0, 3.0], [2.0, 2.1], xerr=0.8, yerr=0.3, fmt="o")
        axes.set(xlim=(0, 4), ylim=(0, 4))
        return {"first": (1.0, 2.0), "second": (3.0, 2.1)}

    axes = drawn(draw)
    for name in axes.texts:
        box = Text.get_window_extent(name)
        for bars in axes.collections:
            ends = [axes.transData.transform(bar) for bar in bars.get_segments()]
            assert not any(Bbox([*bar]).padded(0.5).overlaps(box.padded(-1)) for bar in ends)
            patch = name.get_bbox_patch()  # where there is no room it hides the bar
            assert name.zorder > bars.zorder and patch.get_alpha() in (None, 1)


def test_no_name_hides_a_mark_or_a_dashed_line_of_the_floor(run):
    for axes in plots.verification(run).figure.axes:
        dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert len(dashed) == 2 and axes.texts
        assert min(line.zorder for line in axes.lines) > max(name.zorder for name in axes.texts)
        assert all(tick == int(tick) for tick in axes.get_xticks())  # codes
        ends = [Bbox(axes.transData.transform(line.get_xydata())) for line in dashed]
        boxes = [Text.get_window_extent(name) for name in axes.texts]
        assert not [1 for box in boxes if box.padded(-1).overlaps(ends[0].padded(0.5))]


def test_acceptance_by_depth_is_of_steps_that_are_enough():
    lines = [
        {"decoder": name, "depth": depth, "steps": steps, "accepted": share}
        for name, depth, steps, share in (
            ("lantern", 1, 73, 0.7), ("lantern", 2, 53, 0.6), ("short", 1, 5, 0.5),
        )
    ]  # fmt: skip
    shares = plots.shares_by_depth(lines)
    assert [*shares.columns] == [1, 2] and [*shares.index] == ["lantern"]
    assert shares.loc["lantern"].tolist() == [0.7, 0.6]


def test_a_users_own_style_changes_nothing(run):
    """As SciencePlots asks for LaTeX, which need not be there."""
    plain = inline(plots.phases(run))
    own = {"text.usetex": True, "font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path",
           "axes.prop_cycle": cycler(color=["red"]), "figure.dpi": 300}  # fmt: skip
    with matplotlib.rc_context(own):
        assert inline(plots.phases(run)) == plain
        assert matplotlib.rcParams["text.usetex"], "it is the user's again"
