"""Plots' figures, code maps and the contact sheet, on small made-up data."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bench.judge.paired import latency_rows, mal_interval
from bench.records.load import load
from bench.records.run_data import RunData
from bench.report import sheets
from bench.report.plots import bars, drafts, scatter
from bench.report.plots.chart import Spec
from bench.report.plots.scatter import CLIP, FID, Quality, draw_pareto, pareto
from bench.report.plots.series import placed, spread
from bench.report.sheets import CAPTION, GAP, MARGIN, SIDE, TILE, code_maps, contact_sheet, kind_map
from decoders.api import CodeKind
from tests.bench.report.synthetic import DECODERS, Made, write_run


def layers(spec: Spec, panel: int = 0) -> list[Spec]:
    """The layers of a panel of a chart."""
    return list(spec["concat"][panel]["layer"])


def values(spec: Spec, panel: int = 0) -> list[Spec]:
    """The rows of all its layers."""
    return [row for layer in layers(spec, panel) for row in layer["data"]["values"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    few = (DECODERS[0], DECODERS[4], DECODERS[8])
    return load(write_run(tmp_path_factory.mktemp("pictures"), few, prompts=3))


def test_map_colours_are_those_of_the_kinds():
    assert [kind.name.lower() for kind in CodeKind] == list(sheets.KINDS)
    cells = kind_map(np.arange(256, dtype=np.uint8) % 5)
    assert cells.shape == (16, 16, 3)
    for at in (0, 1, 2, 3, 4, 17, 255):
        assert tuple(cells[at // 16, at % 16]) == sheets.COLORS[CodeKind(at % 5)]
    assert len(set(sheets.COLORS)) == 5


def test_sheet_of_maps_shows_the_recorded_kinds(run):
    sheet = code_maps(run)
    assert sheet is not None
    pixels = np.asarray(sheet)
    entry = next(e for e in run.entries if e.name == "lantern")  # the second card
    row = sheets.image_row(entry, sheets.pictured(run, 1)[0][0])
    assert row is not None
    expected = kind_map(np.asarray(row["kind"], dtype=np.uint8))
    # The second card's map starts one image to the right of its card; find its top by its cells.
    left = MARGIN + (2 * SIDE + 4) + sheets.CARD_GAP + SIDE + 4
    centres = np.round((np.arange(16) + 0.5) * SIDE / 16).astype(int)
    cells = [pixels[np.ix_(top + centres, left + centres)] for top in range(60, len(pixels) - SIDE)]
    assert any(np.array_equal(shown, expected) for shown in cells)


def test_contact_sheet_shows_the_kept_images(run):
    sheet = contact_sheet(run)
    assert sheet is not None
    pixels = np.asarray(sheet)
    path = run.folder / "images" / "lantern-0" / "quality" / "quality-0-0.png"
    with Image.open(path) as image:
        tile = np.asarray(image.resize((TILE, TILE), Image.Resampling.NEAREST))
    left = MARGIN + CAPTION + (TILE + GAP)  # second column
    tops = [
        top
        for top in range(pixels.shape[0] - TILE)
        if np.array_equal(pixels[top : top + TILE, left : left + TILE], tile)
    ]
    assert len(tops) == 1
    caption = pixels[tops[0] : tops[0] + TILE, MARGIN : MARGIN + CAPTION - 14]
    assert (caption < 100).any()


def test_many_decoders_are_shared_out_evenly_under_a_whole_title(run, monkeypatch):
    count = len(run.sections[0].decoders)
    whole = contact_sheet(run)
    monkeypatch.setattr(sheets, "ACROSS", count - 1)
    halves = contact_sheet(run)
    assert whole is not None and halves is not None
    assert halves.width < whole.width and halves.height > 1.9 * whole.height
    shared = [len(block) for block in sheets.shared_out(run.sections[0].decoders)]
    assert shared == [count // 2 + count % 2, count // 2]
    one = replace(run, sections=[replace(run.sections[0], title="A title " * 20)])
    monkeypatch.setattr(sheets, "ACROSS", 1)
    wide = contact_sheet(one)
    assert wide is not None and wide.width > sheets.font(22, bold=True).getlength("A title " * 20)


def test_lost_and_damaged_images_leave_a_marked_tile(tmp_path):
    folder = write_run(tmp_path, DECODERS[:2], prompts=2)
    kept = "images/{}-0/quality/quality-0-0.png".format
    (folder / kept("ar")).unlink()
    (folder / kept("sd_chain")).write_bytes(b"\x89PNG broken")
    run = load(folder)
    assert contact_sheet(run) is not None
    for name, reason in (("ar", "image not kept"), ("sd_chain", "image damaged")):
        entry = next(e for e in run.entries if e.name == name)
        shown = sheets.tile(run, entry, sheets.image_row(entry, 0), 64)
        assert np.array_equal(np.asarray(shown), np.asarray(sheets.blank(64, reason)))


def test_the_picture_is_that_of_the_round_that_kept_it(tmp_path):
    folder = write_run(tmp_path, DECODERS[:1], prompts=1, reseed=False)
    rows = pd.read_parquet(folder / "records.parquet")
    timed = rows[rows.protocol == "latency"]
    rounds = [timed.assign(repeat=0, image=""), timed.assign(repeat=1)]
    pd.concat(rounds, ignore_index=True).to_parquet(folder / "records.parquet")
    row = sheets.image_row(load(folder).entries[0], 0)
    assert row is not None and row["repeat"] == 1 and row["image"]


def test_acceptance_by_depth_counts_whole_steps():
    rows = pd.DataFrame(
        {"accepted": [[2, 0, 1, 2], [1, 2, 0, -1, -1]], "tree_depth": [2, 2]}
    )  # the last real step of each image is cut by the image's end: steps 2 0 1 and 1 2 remain
    curve = drafts.acceptance_by_depth(rows)
    assert list(curve["steps"]) == [5, 4]
    assert list(curve["conditional"]) == pytest.approx([4 / 5, 2 / 4])
    assert list(curve["reach"]) == pytest.approx([4 / 5, 2 / 5])
    assert drafts.acceptance_by_depth(rows.iloc[:0]).empty


def test_moved_mass_counts_only_tested_positions():
    rows = pd.DataFrame(
        {"kind": [[0, 1, 2, 3, 4]], "moved": [[9, 0.1, 0.2, 0.3, 9]], "bound": [[9, 1, 2, 3, 9]]}
    )
    mass, bound = drafts.tested_positions(rows)
    assert list(mass) == [0.1, 0.2, 0.3] and list(bound) == [1, 2, 3]


def test_phases_sum_to_the_measured_whole(run):
    entry = run.entries[2]
    seconds = bars.phase_seconds(entry)
    rows = latency_rows(entry.records)
    whole = (rows["seconds_total"] + rows["seconds_text"] + rows["seconds_vq"]).mean()
    assert sum(seconds.values()) == pytest.approx(whole)
    assert seconds["other"] > 0
    assert bars.phase_seconds(run.entries[3]) == {}  # failed
    assert "left out lantern_chain (failed)" in bars.draw_latency(run).caption
    reach = mal_interval(entry.records)
    assert reach is not None and reach.lo < entry.number("mal") < reach.hi


@pytest.mark.parametrize(
    ("quality", "column", "says"),
    [(FID, "fid", "FID, lower is better"), (CLIP, "clip", "CLIP, higher is better")],
)
def test_speed_is_drawn_against_quality_with_both_intervals(run, quality, column, says):
    chart = draw_pareto(run, quality)
    assert chart.name == f"speedup_{column}" and "Pareto front" in chart.caption
    titles = {layer["encoding"].get("x", {}).get("title") for layer in layers(chart.spec)}
    section = run.sections[0]
    assert any(title and says.split(", ")[1] in title for title in titles)
    rows = values(chart.spec)
    for entry in section.decoders:
        if not entry.failed:
            ends = entry.number(f"{column}_lo"), entry.number(f"{column}_hi")
            assert ends in [(row.get("x_lo"), row.get("x_hi")) for row in rows], entry.name
    band = section.reseeded(column)
    assert {"lo": band.lo, "hi": band.hi} in rows


def front(folder: Path, made: Sequence[Made], quality: Quality, reseed: bool) -> tuple[Any, Any]:
    """The front of a chart: (quality, speed-up) of its points. And the decoders' own."""
    run = load(write_run(folder, tuple(made), prompts=2, images=False, reseed=reseed))
    (section,) = run.sections
    own = [(e.number(quality.column), e.number("speedup")) for e in section.decoders]
    return pareto(section, quality).front, own


@pytest.mark.parametrize(("quality", "reseed"), [(FID, True), (FID, False), (CLIP, True)])
def test_the_front_takes_no_noise_for_quality(tmp_path, quality, reseed):
    """One is slower than AR and better by noise; the other two are faster and worse."""
    eagle1 = replace(DECODERS[2], seconds=2.6, verdict="relaxed (TV 0.0100)")
    few = (DECODERS[0], eagle1, DECODERS[4], DECODERS[7])
    found, (ar, better, *worse) = front(tmp_path, few, quality, reseed)
    assert (better[0] - ar[0]) * quality.sign > 0
    assert found == ([ar, *worse] if reseed else [better, ar, *worse])


@pytest.mark.parametrize(
    ("quality", "fid", "clip", "reseed"),
    [
        (FID, 17.0, 0.35, True), (FID, 30.0, 0.25, False),
        (CLIP, 17.0, 0.35, False), (CLIP, 30.0, 0.25, True),
    ],
)  # fmt: skip
def test_an_exact_decoder_is_as_good_as_ar_whatever_its_images_came_out_like(
    tmp_path, quality, fid, clip, reseed
):
    """One is slower than AR, one faster: by far the best images, or the worst, change nothing. A
    relaxed one between the best and AR is no better than AR, so being slower it has no place."""
    lucky = replace(DECODERS[6], name="lucky", seconds=2.9, fid=18.0, clip=0.34)
    slow = replace(DECODERS[1], seconds=2.6, fid=fid, clip=clip)
    fast = replace(DECODERS[3], seconds=1.5, fid=fid, clip=clip)
    few = (DECODERS[0], slow, fast, DECODERS[4], *([lucky] if fid < 18 else []))
    found, own = front(tmp_path, few, quality, reseed)
    assert found == own[2:4], "not AR either: the fast one equals it"


def test_costs_are_losses_against_ar_and_exact_decoders_cost_nothing(run):
    section = run.sections[0]
    base = section.baseline
    assert base is not None and scatter.clip_loss(base, section).value == 0.0
    for entry in section.decoders:
        loss = scatter.clip_loss(entry, section).value
        tv = scatter.TV.of(entry)
        if entry.exact:
            assert tv == 0.0
        elif not entry.failed:
            assert tv == entry.number("tv_output")
            assert loss == pytest.approx(base.number("clip") - entry.number("clip"), nan_ok=True)
    assert scatter.costs_known(run)
    chart = scatter.draw_costs(run)
    titles = [layer["encoding"].get("x", {}).get("title") for n in (0, 1)
              for layer in layers(chart.spec, n)]  # fmt: skip
    assert any("lost against AR" in str(title) for title in titles)
    assert any("output TV" in str(title) for title in titles)
    assert "failed" in chart.caption


def test_labels_are_spread_in_order_and_in_bounds():
    wanted = [0.5, 0.52, 0.51, 0.99, 0.0]
    places = spread(wanted, gap=0.1, low=0.05, high=0.95)
    ordered = sorted(places)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(ordered))
    assert min(places) >= 0.05 - 1e-9 and max(places) <= 0.95 + 1e-9
    assert sorted(range(5), key=places.__getitem__) == sorted(range(5), key=wanted.__getitem__)


def test_long_words_and_captions_wrap():
    face = sheets.font(17)
    lines = sheets.wrap("lantern_pp_released_with_a_very_long_name", face, 100, breaks=" _")
    assert "".join(lines) == "lantern_pp_released_with_a_very_long_name"
    assert all(face.getlength(line) <= 100 for line in lines)
    assert sheets.wrap("x" * 60, face, 50) and sheets.wrap("", face, 50) == []


SIZE = (400.0, 300.0)


@pytest.mark.parametrize(
    ("points", "ends", "place"),
    [
        ({"ar": (1.0, 1.0)}, [0, 2], ("left", 8, -8)),
        ({"lantern": (2.0, 1.0)}, [0, 2], ("right", -8, -8)),  # at the right edge
        ({"ar": (0.0, 0.0)}, [0.0], ("left", 8, -8)),  # equal values do not divide by zero
    ],
)
def test_a_lone_name_goes_where_there_is_room(points, ends, place):
    (found,) = placed(points, ends, ends, SIZE).values()
    assert tuple(found.values()) == place


def test_names_without_room_are_left_out_and_the_first_come_first():
    found = placed({"lantern": (200, 150), "eagle": (204, 152)}, [0, 400], [0, 300], SIZE)
    assert len(found) == 2 and found["lantern"] != found["eagle"]
    crowd = {f"decoder_{n:02d}": (200.0 + n / 10, 150.0) for n in range(40)}
    found = placed(crowd, [0, 400], [0, 300], SIZE)
    assert "decoder_00" in found and 0 < len(found) < 40
