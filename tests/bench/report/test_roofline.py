"""Time over floor and unfair baselines, in every form of a report."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from bench.config.schema import FairnessConfig
from bench.judge.fairness import judge, write_fairness
from bench.measure.machine_rates import MACHINE, MachineRates
from bench.records.load import load
from bench.report import roofline, texts
from bench.report.build import ReportPaths, write_report
from bench.report.headline import regime_lines
from bench.report.plots import verification
from bench.report.style import inline
from bench.report.summarise import summarise
from tests.bench.report.synthetic import DECODERS, write_run

NAN = math.nan
SLOW = "in a quiet moment a step of ar takes 10.0 times its floor of 0.825 ms, at most 4 are fair"
RATES = MachineRates("Example CPU", 20e9, 300e9)
FEW = (DECODERS[0], DECODERS[4], *DECODERS[9:])  # ar, lantern; greedy: ar, eagle2, lantern


def line(name: str, ar: float = NAN, forward: float = NAN, note: str = "") -> dict[str, object]:
    """A line of roofline.csv; ar, forward: time over floor."""
    floors = {"ar_floor_ms": 0.825, "forward_floor_ms": 2.0}
    times = {"ar_ms": 0.825 * ar, "forward_ms": 2.0 * forward, "draft_ms": 0.7 if ar != ar else NAN}
    over = {"ar_over_floor": ar, "forward_over_floor": forward}
    whole = 3.0 if forward == forward else times["ar_ms"]
    step = {"step_ms": whole, "step_floor_ms": whole / 1.6, "step_over_floor": 1.6}
    needs = {"ar_bytes": 16.5e6, "ar_operations": 30e6, "bytes_per_s": 20e9}
    needs["operations_per_s"] = 300e9
    codes = 1 if forward != forward else 59
    found = {**times, **floors, **over, **step, **needs}
    if note:
        found |= {key: NAN for key in found if "floor" in key or "bytes" in key}
    return {
        "decoder": name, "codes": codes, "images": 20, "note": note, **found,
        "accept_share": NAN if forward != forward else 0.125,
    }  # fmt: skip


LINES = (
    line("ar", ar=10.0), line("lantern", forward=1.5), line("ar_greedy", ar=1.5),
    line("eagle2_greedy", forward=1.25), line("lantern_greedy", forward=3.0),
)  # fmt: skip


def made(folder: Path, lines: tuple[dict[str, object], ...] = LINES, limit: float = 4.0) -> Path:
    """A run folder with roofline.csv, machine.json, and what the gate makes of them."""
    write_run(folder, FEW, prompts=3, images=False)
    pd.DataFrame(lines).to_csv(folder / "roofline.csv", index=False)
    (folder / MACHINE).write_text(json.dumps(asdict(RATES)))
    rows = pd.read_parquet(folder / "records.parquet")
    floors = pd.read_csv(folder / "roofline.csv")
    write_fairness(folder, judge(rows, ["ar", "ar_greedy"], floors, FairnessConfig(limit)))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    return write_report(load(made(tmp_path_factory.mktemp("roofline"))))


def row(text: str, name: str, table: int = 0) -> str:
    """The n-th line of a text that begins with a decoder's name."""
    pattern = rf"^(?:\| )?{re.escape(name)}[ |&].*$"
    return re.findall(pattern, text, flags=re.MULTILINE)[table]


def test_an_unfair_baseline_marks_every_speed_up_over_it_in_every_form(built: ReportPaths) -> None:
    assert "unfair baseline (1)" in row(built.terminal, "ar")
    for name in ("ar_greedy", "eagle2_greedy", "lantern_greedy", "AR reseed, seed 1"):
        assert "unfair" not in row(built.terminal, name)
    for name, (cell, note) in {
        "txt": ("2.35 [2.27, 2.44] unfair baseline (1)", f"(1) unfair baseline: {SLOW}."),
        "md": ("| 2.35 [2.27, 2.44] unfair baseline (1) |", f"* (1) unfair baseline: {SLOW}."),
        "tex": ("2.35 [2.27, 2.44] unfair baseline (1) &", f"(1) unfair baseline: {SLOW}."),
    }.items():
        text = (built.folder / f"table.{name}").read_text(encoding="utf-8")
        assert cell in text and note in " ".join(text.split())
    assert f"<li>(1) unfair baseline: {SLOW}.</li>" in built.page.read_text(encoding="utf-8")


def test_fair_and_unknown_baselines_are_said_to_be_so(tmp_path: Path) -> None:
    text = texts.terminal(summarise(load(made(tmp_path / "fair", limit=20.0))))
    assert "unfair" not in text
    assert "Baselines are fair: in a quiet moment a step of ar takes" in text
    note = "no floor known: the target X has no `cfg` that gives its shape"
    unknown = tuple(line(str(one["decoder"]), 2.0, note=note) for one in LINES)
    run = load(made(tmp_path / "unknown", unknown))
    text = " ".join(texts.terminal(summarise(run)).split())
    assert "unfair" not in text
    names = "ar, lantern, ar_greedy, eagle2_greedy, lantern_greedy"
    assert f"Fairness of the baseline unknown for {names}: {note}." in text
    assert regime_lines(run) == [] and "AR is bound" not in text


def test_the_roofline_table_has_time_over_floor_of_every_forward(built: ReportPaths) -> None:
    run = load(built.folder.parent)
    sampling, greedy = roofline.roofline_tables(run)
    cells = {r.cells[0]: dict(zip(sampling.headings, r.cells, strict=True)) for r in sampling.rows}
    assert cells["ar"] == {
        "decoder": "ar", "codes": "1", "step ms": "8.25", "step in AR steps": "1.00",
        "step over floor": "1.6 x", "forward ms": "8.25", "forward in AR steps": "1.00",
        "floor ms": "0.825", "over floor": "10.0 x", "draft call ms": "—", "accept share": "—",
    }  # fmt: skip
    lantern = cells["lantern"]
    assert (lantern["codes"], lantern["over floor"], lantern["accept share"]) == (
        "59", "1.5 x", "12.5 %"
    )  # fmt: skip
    assert (lantern["step in AR steps"], lantern["forward in AR steps"]) == ("0.36", "0.36")
    assert [r.cells[0] for r in greedy.rows] == ["ar_greedy", "eagle2_greedy", "lantern_greedy"]
    for name in ("table.txt", "table.md", "index.html"):
        text = (built.folder / name).read_text(encoding="utf-8")
        assert "Time over floor" in text and "10.0 x" in text
        assert "Example CPU reads 20 GB/s, multiplies 300 Gflop/s" in " ".join(text.split())


def test_the_roofline_is_drawn_where_there_is_one(built: ReportPaths, tmp_path: Path) -> None:
    assert "verification" in built.plots
    folder = made(tmp_path)
    (folder / "roofline.csv").unlink()
    (folder / "fairness.csv").unlink()
    without = summarise(load(folder))
    assert "verification" not in {plot.name for plot in without.plots}
    text = texts.terminal(without)
    assert "Time over floor" not in text and "unfair" not in text
    assert any("No roofline was measured" in line for line in without.notices)


MEMORY = "AR is bound by memory here: reading takes at least 0.825 ms, arithmetic 0.1 ms"


def test_the_headline_says_what_binds_ar(built: ReportPaths) -> None:
    for name in ("table.txt", "table.md", "table.tex", "index.html"):
        assert MEMORY in " ".join((built.folder / name).read_text(encoding="utf-8").split())
    text = str(roofline.Bounds(reading=0.825, computing=1.5))
    assert "AR is bound by arithmetic here: it takes at least 1.5 ms" in text


def test_forwards_are_drawn_over_their_codes_and_by_the_roofline(tmp_path: Path) -> None:
    run = load(made(tmp_path / "run"))
    sampling, greedy = run.sections
    assert [(p.codes, p.names) for p in roofline.forwards(run, sampling)] == [
        (1, ("ar",)), (59, ("lantern",))
    ]  # fmt: skip
    (_, trees) = roofline.forwards(run, greedy)
    assert trees.names == ("eagle2_greedy", "lantern_greedy"), "as many codes, one label"
    assert trees.ms == pytest.approx(2.0 * (1.25 + 3.0) / 2)
    assert ">lantern: 0.36 AR steps<" in inline(verification(run))


def test_steps_that_are_one_graph_are_drawn_as_a_whole(tmp_path: Path) -> None:
    whole = line("lantern", forward=1.5) | dict.fromkeys(("forward_ms", "draft_ms"), NAN)
    run = load(made(tmp_path, (line("ar", ar=2.0), whole)))
    cells = roofline.roofline_tables(run)[0].rows[1].cells
    assert cells[:6] == ["lantern", "59", "3.00", "1.82", "1.6 x", "—"]
    _, tree = roofline.forwards(run, run.sections[0])
    assert tree.whole and tree.ms == 3.0 and "hollow" in verification(run).caption
