"""Tables: the numbers as given, intervals, noise marks, reseeds, failures, order and sections."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.commands import evaluate
from bench.compare import compare
from bench.judge.fairness import FAIR, Fairness
from bench.records.load import load
from bench.records.run_data import Entry, RunData
from bench.report import texts
from bench.report.headline import headline
from bench.report.page import render
from bench.report.summarise import Report, summarise
from bench.report.table import number, percent
from tests.bench.report.synthetic import RESEED_FID, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return load(write_run(tmp_path_factory.mktemp("tables"), prompts=4, images=False))


@pytest.fixture(scope="module")
def said(run: RunData) -> Report:
    return summarise(run)


def cells(made: Report, name: str) -> dict[str, str]:
    """A decoder's figures in the main and the detailed tables, by their headings."""
    found: dict[str, str] = {}
    for table in [*made.block("table").tables, *made.block("details").tables]:
        for row in table.rows:
            if row.cells[0] == name:
                found |= dict(zip(table.headings, row.cells, strict=True))
    return found


def changed(run: RunData, of: Callable[[Entry], bool], **figures: object) -> RunData:
    """The run's first section alone, with other figures in the rows of some decoders."""
    section = run.sections[0]
    entries = [replace(e, row=e.row | figures) if of(e) else e for e in section.entries]
    return replace(run, sections=[replace(section, entries=entries)])


CELLS = {
    ("lantern", "speed-up"): "2.35 [2.27, 2.44]",  # 2.4 s / 1.02 s
    ("lantern", "s/image"): "1.020",
    ("lantern", "FID (scenes-clip)"): "21.93 [21.48, 22.43]",  # one other seed says little
    ("lantern", "CLIP (scenes)"): "30.98 [30.86, 31.11]",
    ("lantern", "CLIP (scenes) - AR"): "-0.22 [-0.34, -0.10]",
    ("eagle2", "CLIP (scenes)"): "31.19 [31.07, 31.32] ≈",
    ("eagle2", "CLIP (scenes) - AR"): "-0.01 [-0.13, 0.11]",
    ("lantern", "output TV"): "0.090 [0.080, 0.100] ≤ 0.140",
    ("lantern", "acceptance"): "lantern(k=100, delta=0.2, residual=paper)",
    ("lantern", "TV, tested codes"): "0.090",
    ("lantern", "declared bound"): "0.200",
    ("lantern_released", "verdict"): "broken",
    ("lantern_released", "output TV"): "0.410 [0.400, 0.420] ≤ 0.460 †",
    ("ar", "speed-up"): "1.00",
    ("ar", "FID (scenes-clip)"): "21.40 [20.95, 21.90]",
    ("eagle1", "speed-up"): "1.02 [0.98, 1.05] ≈",
    ("sd_chain", "speed-up"): "1.17 [1.12, 1.21]",
    ("eagle2", "speed-up"): "1.21 [1.17, 1.25]",
    # With fewer than four seeds no FID may be called noise.
    ("eagle2", "FID (scenes-clip)"): "21.52 [21.07, 22.02]",
    ("eagle2", "FID without bias"): "18.52 [18.07, 19.02]",
    ("eagle2", "KID"): "0.00210 [0.00120, 0.00300]",
    ("eagle2_greedy", "FID (scenes-clip)"): "33.10 [32.65, 33.60]",
    ("AR reseed, seed 1", "FID (scenes-clip)"): f"{RESEED_FID:.2f} [21.21, 22.16]",
    ("AR reseed, seed 1", "speed-up"): "—",
}


def test_figures_are_those_of_the_summary_and_noise_is_marked(said):
    assert {(name, at): cells(said, name)[at] for name, at in CELLS} == CELLS
    text = " ".join(texts.terminal(said).split())
    assert "no figures of an AR reseed" in text, "of the greedy decoders"
    assert "its FID (scenes-clip) would lie within 21.40 ± 0.52" in text
    assert "timed in 2 blocks; from block to block ar took 2." in text
    assert "(prediction intervals: twice the difference of the two)" in text
    assert "| *AR reseed, seed 1* |" in texts.markdown(said)
    assert "With only one AR seed, its luck shifts every row equally." in texts.markdown(said)


def test_the_headline_is_made_from_the_figures(said):
    exact, relaxed, doubts, *_, machine = said.headline
    assert exact.endswith(
        "Fastest exact decoder: eagle2, 1.21 [1.17, 1.25] times AR, output TV 0, exact."
    )
    assert "not worse than AR's (margin 1): lantern_pp, 2.64 [2.55, 2.73] times AR" in relaxed
    assert "output TV 0.070 [0.060, 0.080], at most 0.120, relaxed." in relaxed, (
        "and no broken one, if faster"
    )
    assert "no speed-up of lantern_chain counts" in doubts
    assert machine == "Measured on Example CPU, 2 cores (bfloat16, 2 threads), batch 1."
    for text in (texts.terminal(said), texts.markdown(said)):
        words = " ".join(text.split())
        assert words.index("Fastest exact decoder") < words.index("exact decoders")
    page = render(said)
    assert page.index("Fastest exact decoder") < page.index("<table") < page.index('id="figures"')


def test_a_fastest_decoder_is_faster_beyond_chance(run):
    slow = changed(run, lambda e: e.number("speedup") > 1, speedup_lo=0.99)
    first, *_ = headline(slow)
    assert first.startswith(
        "No exact decoder is faster than AR beyond chance; the fastest is eagle2"
    )
    least = {"speedup": 0.8, "speedup_lo": 0.7, "speedup_hi": 0.9}
    first, *_ = headline(changed(run, lambda e: e.number("speedup") > 1, **least))
    assert first.startswith("Every exact decoder is slower than AR; the least slow is")


def test_tables_are_by_law_and_by_speed(said):
    tables = said.block("table").tables
    rows = {t.title.rpartition(": ")[2]: [r.cells[0] for r in t.rows] for t in tables[:3]}
    assert rows == {
        "exact decoders": ["ar", "AR reseed, seed 1", "eagle2", "sd_chain", "eagle1"],
        "relaxed decoders": [
            "ar", "lantern_pp_released", "lantern_pp", "lantern_released", "lantern"
        ],
        "not judged": ["ar", "lantern_chain"],
    }  # fmt: skip
    names = [e.name for e in said.run.sections[0].decoders]
    assert names[:4] == ["ar", "eagle2", "sd_chain", "eagle1"] and names[-1] == "lantern_chain"


def test_an_output_tv_above_what_is_declared_has_one_footnote(run, said):
    assert "†" not in cells(said, "lantern")["output TV"]
    notes = said.block("table").notes
    assert sum("†" in line for line in notes) == 1 and "limits TV(p, p_A)" in " ".join(notes)
    section = run.sections[0]
    few = [e for e in section.entries if "released" not in e.name]
    kept = replace(run, sections=[replace(section, entries=few)])
    assert not any("†" in line for line in summarise(kept).block("table").notes)


def test_a_decoder_with_an_eager_piece_is_marked_and_not_the_fastest(run, said):
    one = Fairness(
        "eagle2", FAIR, "", 1.2, "its acceptance ran eagerly, where others' ran compiled"
    )
    marked = replace(run, fairness={"eagle2": one})
    assert cells(summarise(marked), "eagle2")["speed-up"].endswith("(eager)")
    assert "eager" not in cells(said, "eagle2")["speed-up"]
    assert not any("decoder: eagle2," in line for line in headline(marked))


def test_a_failed_decoder_has_a_row_and_its_error_is_said_once(said):
    text = texts.terminal(said)
    line = next(line for line in text.splitlines() if line.startswith("lantern_chain"))
    assert line.split() == ["lantern_chain", "failed"]
    failures = text.partition("\nFailures\n")[2]
    assert "8 of 8 images failed: NumericalError: NaN logits at code 17 | row 3" in failures
    assert r"NumericalError: NaN logits at code 17 \| row 3" in texts.markdown(said)
    assert r"lantern\_chain & failed & " in texts.latex(said)


def test_no_figure_is_minus_zero():
    assert number(-1e-9, 4) == "0.0000" and percent(-1e-9, 1, "+") == "+0.0 %"
    assert evaluate._short(-1e-7) == "0.0000" and compare.number(-1e-7, "fid") == "0.00"


def test_markup_is_well_formed(said):
    lines = [line for line in texts.markdown(said).splitlines() if line.startswith("|")]
    widths = {line.replace(r"\|", "").count("|") for line in lines}
    assert widths == {7, 8, 9}  # of quality and bounds 6, of exact decoders 7, all others 8
    latex = texts.latex(said)
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 10
    assert "%" not in latex.replace(r"\%", "").partition("\n")[2].replace("{!}{%", "")
    assert "≈" not in latex and "—" not in latex
