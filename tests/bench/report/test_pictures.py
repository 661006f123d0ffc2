"""Plots' figures, code maps and the contact sheet, on small made-up data."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bench.report import contact, images
from bench.report.code_map import COLORS, KINDS, SIDE, code_maps, kind_map
from bench.report.contact import CAPTION, GAP, MARGIN, TILE, contact_sheet
from bench.report.load import load_run
from bench.report.model import Run
from bench.report.plots import cost, latency, moved
from bench.report.plots.bars import mal_interval
from bench.report.plots.depth import acceptance_by_depth
from bench.report.plots.labels import spread
from bench.report.plots.pareto import CLIP, FID, Quality, draw, pareto_front
from decoders.api import CodeKind
from tests.bench.report.synthetic import DECODERS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    few = (DECODERS[0], DECODERS[4], DECODERS[8])
    return load_run(write_run(tmp_path_factory.mktemp("pictures"), few, prompts=3))


def test_map_colours_are_those_of_the_kinds() -> None:
    assert [kind.name.lower() for kind in CodeKind] == list(KINDS)
    kinds = np.arange(256, dtype=np.uint8) % 5
    cells = kind_map(kinds)
    assert cells.shape == (16, 16, 3)
    for at in (0, 1, 2, 3, 4, 17, 255):
        assert tuple(cells[at // 16, at % 16]) == COLORS[CodeKind(at % 5)]
    assert len(set(COLORS)) == 5
    with pytest.raises(ValueError, match="found 7"):
        kind_map(np.array([0, 7], dtype=np.uint8))


def test_sheet_of_maps_shows_the_recorded_kinds(run: Run) -> None:
    sheet = code_maps(run)
    assert sheet is not None
    pixels = np.asarray(sheet)
    entry = run.entries[2]  # lantern, after ar and its reseed
    assert entry.name == "lantern"
    row = images.image_row(entry, images.sheet_prompts(run, 1)[0][0])
    assert row is not None
    expected = kind_map(np.asarray(row["kind"], dtype=np.uint8))
    # The second card's map starts one image to the right of its card; find its top by its title.
    left = MARGIN + (2 * SIDE + 4) + 20 + SIDE + 4
    centres = [round((at + 0.5) * SIDE / 16) for at in range(16)]
    found = any(
        all(
            tuple(pixels[top + y, left + x]) == tuple(expected[r, c])
            for r, y in enumerate(centres)
            for c, x in enumerate(centres)
        )
        for top in range(60, pixels.shape[0] - SIDE)
    )
    assert found


def test_contact_sheet_shows_the_kept_images(run: Run) -> None:
    sheet = contact_sheet(run)
    assert sheet is not None
    pixels = np.asarray(sheet)
    path = run.folder / "images" / "lantern" / "quality" / "quality-0-0.png"
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


def test_many_decoders_are_shared_out_evenly_under_a_whole_title(run: Run, monkeypatch) -> None:
    count = len(run.sections[0].decoders)
    whole = contact_sheet(run)
    monkeypatch.setattr(contact, "ACROSS", count - 1)
    halves = contact_sheet(run)
    assert whole is not None and halves is not None
    assert halves.width < whole.width and halves.height > 1.9 * whole.height
    assert [len(b) for b in contact._shared_out(run.sections[0].decoders)] == [
        count // 2 + count % 2,
        count // 2,
    ]
    one = replace(run, sections=[replace(run.sections[0], title="A title " * 20)])
    monkeypatch.setattr(contact, "ACROSS", 1)
    wide = contact_sheet(one)
    assert wide is not None and wide.width > contact.font(22, bold=True).getlength("A title " * 20)


def test_lost_and_damaged_images_leave_a_marked_tile(tmp_path: Path) -> None:
    folder = write_run(tmp_path, DECODERS[:2], prompts=2)
    (folder / "images" / "ar" / "quality" / "quality-0-0.png").unlink()
    (folder / "images" / "sd_chain" / "quality" / "quality-0-0.png").write_bytes(b"\x89PNG broken")
    run = load_run(folder)
    assert contact_sheet(run) is not None
    ar = run.entries[0]
    lost = images.tile(run, ar, images.image_row(ar, 0), 64)
    assert np.array_equal(np.asarray(lost), np.asarray(images.blank(64, "image not kept")))


def test_the_picture_is_that_of_the_round_that_kept_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path, DECODERS[:1], prompts=1, reseed=False)
    rows = pd.read_parquet(folder / "records.parquet")
    timed = rows[rows.protocol == "latency"]
    rounds = [timed.assign(repeat=0, image=""), timed.assign(repeat=1)]
    pd.concat(rounds, ignore_index=True).to_parquet(folder / "records.parquet")
    row = images.image_row(load_run(folder).entries[0], 0)
    assert row is not None and row["repeat"] == 1 and row["image"]


def test_acceptance_by_depth_counts_whole_steps() -> None:
    rows = pd.DataFrame(
        {"accepted": [[2, 0, 1, 2], [1, 2, 0, -1, -1]], "tree_depth": [2, 2]}
    )  # the last real step of each image is cut by the image's end: steps 2 0 1 and 1 2 remain
    curve = acceptance_by_depth(rows)
    assert list(curve["steps"]) == [5, 4]
    assert list(curve["conditional"]) == pytest.approx([4 / 5, 2 / 4])
    assert list(curve["reach"]) == pytest.approx([4 / 5, 2 / 5])
    assert acceptance_by_depth(rows.iloc[:0]).empty


def test_moved_mass_counts_only_tested_positions() -> None:
    rows = pd.DataFrame(
        {"kind": [[0, 1, 2, 3, 4]], "moved": [[9, 0.1, 0.2, 0.3, 9]], "bound": [[9, 1, 2, 3, 9]]}
    )
    mass, bound = moved.tested_positions(rows)
    assert list(mass) == [0.1, 0.2, 0.3] and list(bound) == [1, 2, 3]


def test_phases_sum_to_the_measured_whole(run: Run) -> None:
    entry = run.entries[2]
    seconds = latency.phase_seconds(entry)
    rows = entry.latency_rows()
    whole = (rows["seconds_total"] + rows["seconds_text"] + rows["seconds_vq"]).mean()
    assert sum(seconds.values()) == pytest.approx(whole)
    assert seconds["other"] > 0
    assert latency.phase_seconds(run.entries[3]) == {}  # failed


def test_mal_interval_holds_the_mean(run: Run) -> None:
    low, high = mal_interval(run.entries[2])
    assert low < run.entries[2].number("mal") < high
    assert all(map(math.isnan, mal_interval(run.entries[3])))


@pytest.mark.parametrize(
    ("quality", "column", "says"),
    [(FID, "fid", "FID, lower is better"), (CLIP, "clip", "CLIP, higher is better")],
)
def test_speed_is_drawn_against_quality_with_both_intervals(
    run: Run, quality: Quality, column: str, says: str
) -> None:
    plot = draw(run, quality)
    assert plot.name == f"speedup_{column}" and "Pareto front" in plot.caption
    (ax,) = plot.figure.axes[: len(run.sections)]
    assert says.split(",")[0] in ax.get_xlabel() and says.split(", ")[1] in ax.get_xlabel()
    section = run.sections[0]
    spans = {tuple(map(float, line.get_xdata())) for line in ax.lines if len(line.get_xdata()) == 2}
    for entry in section.decoders:
        if not entry.failed:
            ends = entry.number(f"{column}_lo"), entry.number(f"{column}_hi")
            assert ends in spans, entry.name
    band = section.reseeded(column)
    assert any(p.get_x() == band.lo and p.get_width() == band.hi - band.lo for p in ax.patches)


@pytest.mark.parametrize(("quality", "reseed"), [(FID, True), (FID, False), (CLIP, True)])
def test_the_front_takes_no_noise_for_quality(
    tmp_path: Path, quality: Quality, reseed: bool
) -> None:
    """One is slower than AR and better by noise; the other two are faster and worse."""
    eagle1 = replace(DECODERS[2], seconds=2.6, verdict="bounded (TV 0.0100)")
    few = (DECODERS[0], eagle1, DECODERS[4], DECODERS[7])
    run = load_run(write_run(tmp_path, few, prompts=2, images=False, reseed=reseed))
    (line,) = [x for x in draw(run, quality).figure.axes[0].lines if x.get_linestyle() == "--"]
    ar, better, *worse = (e.number(quality.column) for e in run.sections[0].decoders)
    assert (better - ar) * quality.sign > 0
    assert list(line.get_xdata()) == ([ar, *worse] if reseed else [better, ar, *worse])


@pytest.mark.parametrize(
    ("quality", "fid", "clip", "reseed"),
    [
        (FID, 17.0, 0.35, True), (FID, 30.0, 0.25, False),
        (CLIP, 17.0, 0.35, False), (CLIP, 30.0, 0.25, True),
    ],
)  # fmt: skip
def test_an_exact_decoder_is_as_good_as_ar_whatever_its_images_came_out_like(
    tmp_path: Path, quality: Quality, fid: float, clip: float, reseed: bool
) -> None:
    """One is slower than AR, one faster: by far the best images, or the worst, change nothing. A
    relaxed one between the best and AR is no better than AR, so being slower it has no place."""
    lucky = replace(DECODERS[6], name="lucky", seconds=2.9, fid=18.0, clip=0.34)
    slow = replace(DECODERS[1], seconds=2.6, fid=fid, clip=clip)
    fast = replace(DECODERS[3], seconds=1.5, fid=fid, clip=clip)
    better = [lucky] if fid < 18 else []
    few = (DECODERS[0], slow, fast, DECODERS[4], *better)
    run = load_run(write_run(tmp_path, few, prompts=2, images=False, reseed=reseed))
    plot = draw(run, quality)
    (line,) = [x for x in plot.figure.axes[0].lines if x.get_linestyle() == "--"]
    speedups = [e.number("speedup") for e in run.sections[0].decoders]
    assert list(line.get_ydata()) == speedups[2:4], "not AR either: the fast one equals it"
    assert "exact decoder" in plot.caption


def test_costs_are_losses_against_ar_and_exact_decoders_cost_nothing(run: Run) -> None:
    section = run.sections[0]
    base = section.baseline
    assert base is not None and cost.clip_loss(base, section) == (0.0, 0.0, 0.0)
    for entry in section.decoders:
        loss, tv = cost.clip_loss(entry, section)[0], cost.output_tv(entry, section)[0]
        if entry.exact:
            assert tv == 0.0
        elif not entry.failed:
            assert tv == entry.number("tv_output")
            assert loss == pytest.approx(base.number("clip") - entry.number("clip"), nan_ok=True)
    assert cost.shown(run)
    plot = cost.draw(run)
    assert any("lost against AR" in ax.get_xlabel() for ax in plot.figure.axes)
    assert any("output TV" in ax.get_xlabel() for ax in plot.figure.axes)
    assert "failed" in plot.caption


def test_pareto_front_keeps_the_undominated() -> None:
    points = [(21.4, 1.0), (21.3, 1.02), (21.9, 2.3), (23.9, 2.2), (22.6, 2.7), (22.6, 2.5)]
    assert [points[at] for at in pareto_front(points)] == [(21.3, 1.02), (21.9, 2.3), (22.6, 2.7)]


def test_plot_captions_name_what_is_left_out(run: Run) -> None:
    plot = latency.draw(run)
    assert "left out lantern_chain (failed)" in plot.caption


def test_labels_are_spread_in_order_and_in_bounds() -> None:
    wanted = [0.5, 0.52, 0.51, 0.99, 0.0]
    places = spread(wanted, gap=0.1, low=0.05, high=0.95)
    ordered = sorted(places)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(ordered))
    assert min(places) >= 0.05 - 1e-9 and max(places) <= 0.95 + 1e-9
    assert sorted(range(5), key=places.__getitem__) == sorted(range(5), key=wanted.__getitem__)


def test_long_words_and_captions_wrap() -> None:
    face = images.font(17)
    lines = images.wrap("lantern_pp_released_with_a_very_long_name", face, 100, breaks=" _")
    assert "".join(lines) == "lantern_pp_released_with_a_very_long_name"
    assert all(face.getlength(line) <= 100 for line in lines)
    assert images.wrap("x" * 60, face, 50) and images.wrap("", face, 50) == []
