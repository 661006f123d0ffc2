"""Figures, on small made-up data: what they say, and in which files."""

import re
from dataclasses import replace

import pytest
from PIL import Image

from bench.judge.paired import latency_rows
from bench.records.load import load
from bench.records.run_data import RunData
from bench.report import plots
from bench.report.roofline import phase_seconds
from bench.report.style import FORMATS, Panel, Plot, inline, plot, save
from tests.bench.report.synthetic import DECODERS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    few = (DECODERS[0], DECODERS[4], DECODERS[8])
    return load(write_run(tmp_path_factory.mktemp("plots") / "run", few, prompts=3))


def words(plot: Plot) -> list[str]:
    """What a reader of the figure sees written."""
    return re.findall(r">([^<>]+)</text>", inline(plot))


def test_a_figure_is_a_picture_and_a_file_for_papers(run, tmp_path):
    first = save(plots.phases(run), tmp_path / "a")
    again = save(plots.phases(run), tmp_path / "b")
    assert list(first) == list(FORMATS) == ["png", "pdf"]
    for ending, path in first.items():
        assert path.name == f"phases.{ending}"
        assert path.read_bytes() == again[ending].read_bytes(), "the same run, the same bytes"
    with Image.open(first["png"]) as picture:
        assert picture.width == 1280 and len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_phases_sum_to_the_measured_whole(run):
    entry = run.entries[2]
    seconds = phase_seconds(entry)
    rows = latency_rows(entry.records)
    whole = (rows["seconds_total"] + rows["seconds_text"] + rows["seconds_vq"]).mean()
    assert sum(seconds.values()) == pytest.approx(whole)
    assert seconds["other"] > 0
    assert phase_seconds(run.entries[3]) == {}  # failed
    plot = plots.phases(run)
    assert "not measured: lantern_chain" in plot.caption
    assert {"ar", "lantern", f" {whole:.3f} s"} <= {*words(plot)}


@pytest.mark.parametrize(
    ("column", "label", "band"),
    [
        (plots.CLIP, "CLIP (scenes), higher is better", True),
        (plots.TV, "output TV, lower is better", False),
    ],
)
def test_speed_is_drawn_against_quality(run, column, label, band):
    plot = plots.against(run, column)
    said = words(plot)
    assert {label, "speed-up over AR", "ar", "lantern", "exact", "relaxed"} <= {*said}
    assert ("AR under one more seed" in said) == band
    assert plot.name == f"speedup_{column}" and "not measured: lantern_chain" in plot.caption
    ar, lantern = run.sections[0].decoders[:2]
    assert plots.quality_of(ar, plots.TV).value == 0
    assert plots.quality_of(lantern, column) == lantern.interval(column)


def test_of_many_decoders_those_are_named_that_no_other_one_beats(run):
    ar, lantern = run.sections[0].decoders[:2]
    swept = [replace(lantern, name=f"d{n}", row=lantern.row | {"speedup": n, "tv_output": n / 10})
             for n in range(2, 10)]  # fmt: skip
    worse = replace(lantern, name="worse", row=lantern.row | {"speedup": 2.5, "tv_output": 0.5})
    assert [e.name for e in plots.frontier([ar, *swept, worse], plots.TV)] == [
        "ar", *(f"d{n}" for n in range(2, 10))
    ]  # fmt: skip
    assert plots.frontier([ar, lantern, worse], plots.TV) == [ar, lantern, worse], "few: all"


def test_names_do_not_cover_each_other():
    points = {f"decoder_{n:02d}": (n % 3 / 9, 1 + n / 40) for n in range(9)}

    def draw(axes):
        axes.scatter(*zip(*points.values(), strict=True))
        return points

    drawn = plot("names", "Names", "", [Panel("", 3, draw)])
    (axes,) = drawn.figure.axes
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 9
    pairs = [(a, b) for at, a in enumerate(boxes) for b in boxes[at + 1 :]]
    assert not [1 for a, b in pairs if a.padded(-2).overlaps(b.padded(-2))]


def test_acceptance_by_depth_is_of_the_steps_that_came_so_far(run):
    section = run.sections[0]
    steps = [[2, 0, 1] * 20, [2] * 15]  # the last step of an image is cut by the image's end
    rows = section.decoders[1].records.iloc[:2].assign(accepted=steps, tree_depth=2, seed=[0, 1])
    few = replace(section, entries=[replace(section.decoders[1], records=rows)])
    shares = plots.shares_by_depth(few)
    assert [*shares.columns] == [1, 2]
    assert shares.iloc[0].tolist() == pytest.approx([53 / 73, 34 / 53])
    short = replace(few.entries[0], records=rows.assign(accepted=[[2, 0, 1], [1]]))
    assert plots.shares_by_depth(replace(section, entries=[short])).empty, "too few steps"
