"""Figures and sheets of pictures, on small made-up data: what they say, and in which files."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bench.judge.paired import latency_rows
from bench.records.load import load
from bench.records.run_data import RunData
from bench.report import plots, sheets
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


def holds(sheet: Image.Image, tile: np.ndarray) -> bool:
    """Whether a tile stands in a sheet, pixel by pixel."""
    pixels, side = np.asarray(sheet), len(tile)
    corners = np.argwhere((pixels[:-side, :-side] == tile[0, 0]).all(axis=2))
    return any(np.array_equal(pixels[y : y + side, x : x + side], tile) for y, x in corners)


def test_the_contact_sheet_shows_the_kept_images(run):
    entry = next(e for e in run.entries if e.name == "lantern")
    row = sheets.image_row(entry, sheets.illustrated_prompts(run, 1)[0][0])
    assert row is not None
    with Image.open(run.folder / row["image"]) as image:
        tile = np.asarray(image.resize((sheets.PIXELS,) * 2, Image.Resampling.NEAREST))
    contact = sheets.contact_sheet(run)
    assert contact is not None and holds(contact, tile)


def test_lost_and_damaged_images_leave_a_tile_that_says_so(tmp_path):
    folder = write_run(tmp_path, DECODERS[:2], prompts=2)
    kept = "images/{}-0/quality/quality-0-0.png".format
    (folder / kept("ar")).unlink()
    (folder / kept("sd_chain")).write_bytes(b"\x89PNG broken")
    run = load(folder)
    assert sheets.contact_sheet(run) is not None
    for name, reason in (("ar", "image not kept"), ("sd_chain", "image damaged")):
        entry = next(e for e in run.entries if e.name == name)
        assert sheets.tile(run, entry, sheets.image_row(entry, 0)) == reason
