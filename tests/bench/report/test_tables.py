"""What a report says: figures as given, intervals, noise marks, failures, order, the headline, time
over floor and unfair baselines, in every form."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.analyse.fairness import FAIR, UNFAIR, UNKNOWN, Fairness
from bench.analyse.run import Entry, Run
from bench.data.errors import ConfigError
from bench.report import texts, timing
from bench.report.headline import headline
from bench.report.notes import facts
from bench.report.table import number, percent
from bench.report.tables import roofline_tables
from bench.report.texts import Report, summarise
from tests.bench.report.synthetic import DETAIL, RESEED_FID


def tables_of(said: Report, block: str) -> list:
    return next(each.tables for each in said.blocks if each.name == block)


def cells(said: Report, name: str, *blocks: str) -> dict[str, str]:
    """A decoder's figures in the first tables that have it, by their headings."""
    found: dict[str, str] = {}
    for table in [
        t for block in blocks or ("table", "quality", "details") for t in tables_of(said, block)
    ]:
        for row in table.rows:
            if row.cells[0] == name:
                found |= dict(zip(table.headings, row.cells, strict=True))
    return found


def changed(run: Run, of: Callable[[Entry], bool], **figures: object) -> Run:
    """The run's first section alone, with other figures in the rows of some decoders."""
    section = run.sections[0]
    entries = [replace(e, line=e.line | figures) if of(e) else e for e in section.entries]
    return replace(run, sections=[replace(section, entries=entries)])


def one_line(text: str) -> str:
    return " ".join(text.split())


CELLS = {
    ("lantern", "speed-up"): "2.35 [2.27, 2.44]",  # 2.4 s / 1.02 s
    ("lantern", "s/image"): "1.020",
    ("lantern", "FID (scenes-clip)"): "21.93 [21.48, 22.43]",  # one other seed says little
    ("lantern", "CLIP (scenes)"): "30.98 [30.86, 31.11]",
    ("lantern", "CLIP (scenes) - AR"): "-0.22 [-0.34, -0.10]",
    ("eagle2", "CLIP (scenes)"): "31.19 [31.07, 31.32] ≈",
    ("lantern", "output TV"): "0.090 [0.080, 0.100] ≤ 0.140",
    ("lantern", "acceptance"): "lantern(k=100, delta=0.2, residual=paper)",
    ("lantern", "TV, tested codes"): "0.090",
    ("lantern", "declared bound"): "0.200",
    ("lantern_released", "verdict"): "broken (1)",
    ("lantern_released", "output TV"): "0.410 [0.400, 0.420] ≤ 0.460 †",
    ("ar", "speed-up"): "1.00",
    ("ar", "FID (scenes-clip)"): "21.40 [20.95, 21.90]",
    ("eagle1", "speed-up"): "1.02 [0.98, 1.05] ≈",
    # With fewer than four seeds no FID may be called noise.
    ("eagle2", "FID (scenes-clip)"): "21.52 [21.07, 22.02]",
    ("eagle2", "FID without bias"): "18.52 [18.07, 19.02]",
    ("eagle2", "KID"): "0.00210 [0.00120, 0.00300]",
    ("AR, 2 seeds", "FID (scenes-clip)"): f"{(RESEED_FID + 21.4) / 2:.2f} (21.40 to {RESEED_FID})",
    ("AR, 2 seeds", "KID"): "0.00210 (0.00210 to 0.00210)",
}


def test_figures_are_those_of_the_summary_and_noise_is_marked(said):
    assert {(name, at): cells(said, name)[at] for name, at in CELLS} == CELLS
    text = one_line(texts.terminal(said))
    assert "no figures of an AR reseed" in text, "of the greedy decoders"
    assert "its FID (scenes-clip) would lie within 21.40 ± 0.52" in text
    assert "timed in 10 blocks; from block to block ar took 2." in text
    assert "(a rough guess: two seeds, twice their difference)" in text
    assert "With only one AR seed, its luck shifts every row equally." in texts.markdown(said)


MORE = {
    "precision": (0.71, "0.710 [0.660, 0.760]"), "recall": (0.52, "0.520 [0.470, 0.570]"),
    "hps": (27.3, "27.30 [27.25, 27.35]"),
}  # fmt: skip


def test_precision_recall_and_hps_are_columns_where_a_run_measured_them(run):
    for name, (value, text) in MORE.items():
        figures = {f"{name}{end}": value + less for end, less in (("_lo", -0.05), ("_hi", 0.05))}
        scored = summarise(changed(run, lambda e: e.name == "lantern", **{name: value}, **figures))
        heading = "HPS" if name == "hps" else name
        assert cells(scored, "lantern", "quality")[heading] == text
        assert cells(scored, "eagle2", "quality")[heading] == "—"
        for form in (texts.terminal, texts.markdown, texts.latex):
            assert text in form(scored) and heading in form(scored)
        others = {"HPS", "precision", "recall"} - {heading}
        assert not others & cells(scored, "lantern", "quality").keys()
    none = {f"{name}{end}": math.nan for name in ("kid", *MORE) for end in ("", "_lo", "_hi")}
    plain = summarise(changed(run, lambda _: True, **none))
    assert not [block for block in plain.blocks if block.name == "quality"]
    assert cells(plain, "lantern", "details")["KID"] == "—", "as ever"
    assert "quality" not in texts.terminal(plain) + texts.latex(plain)


def test_why_there_is_no_clip_score_and_fid_is_said(run):
    few = changed(run, lambda e: e.name == "eagle2", clip=math.nan, fid=math.nan, n_quality=4)
    says = "no CLIP score and FID of eagle2; both need at least 5 images (quality.images=5)."
    assert says in one_line(texts.terminal(summarise(few)))


def test_the_headline_is_made_from_the_figures(said, written):
    broken, exact, relaxed, doubts, *_, machine = said.headline
    assert broken == "Broken, for the reasons in the notes: lantern_released (1)."
    assert exact.endswith(
        "Fastest exact decoder: eagle2, or sd_chain or eagle1 (not told apart). eagle2, 1.21 "
        "[1.17, 1.25] times as fast as AR in this run, output TV 0, exact. "
        "Its forward of 59 codes costs 0.36 AR steps."
    )
    kind = "relaxed decoder whose CLIP score is not worse than AR's by more than 1"
    assert f"Fastest {kind}: lantern_pp" in relaxed
    assert "lantern_pp, 2.64 [2.55, 2.73] times as fast as AR in this run" in relaxed
    assert "output TV 0.070 [0.060, 0.080], at most 0.120, relaxed." in relaxed
    assert "no speed-up of lantern_chain counts" in doubts
    assert machine == (
        "Measured on Example CPU, 2 cores (bfloat16, 2 threads), batch 1, reads 20 GB/s, "
        "multiplies 1,030 Gflop/s. AR is bound by memory here: a step needs at least 0.825 ms "
        "to read and 0.1 ms to compute. In a forward over 9 codes or more, computing takes longer "
        "than reading."
    )
    for name in ("table.txt", "table.md", "index.html"):
        words = one_line((written / name).read_text(encoding="utf-8"))
        assert words.index("Fastest exact decoder") < words.index("exact decoders")
        assert "AR is bound by memory here" in words
    text = str(timing.Bounds(reading=0.825, computing=1034.6))
    assert "AR is bound by arithmetic here: a step needs at least 1,030 ms" in text


def test_a_fastest_decoder_is_faster_beyond_chance(run):
    _, first, *_ = headline(changed(run, lambda e: e.number("speedup") > 1, speedup_lo=0.99))
    assert first.startswith(
        "No exact decoder is faster than AR beyond chance. The fastest: eagle2, or sd_chain or "
        "eagle1 (not told apart). eagle2, 1.21 [0.99, 1.25] times as fast as AR in this run"
    )
    least = {"speedup": 0.8, "speedup_lo": 0.7, "speedup_hi": 0.9}
    _, first, *_ = headline(changed(run, lambda e: e.number("speedup") > 1, **least))
    assert first.startswith("No exact decoder is faster than AR. The fastest: sd_chain, or")


def test_a_broken_decoder_has_a_note_that_says_why_in_every_form(said):
    assert "relaxed or broken decoders" in tables_of(said, "table")[1].title
    for text in (texts.terminal(said), texts.markdown(said), texts.latex(said)):
        assert "broken (1)" in text and f"(1) broken: {DETAIL}" in one_line(text)


def test_a_run_that_others_disturbed_says_so_first(run):
    rows = run.rows.assign(disturbed=True, cpu_others=0.75, cpu_steal=0.01)
    line = next(line for line in headline(replace(run, rows=rows)) if "No speed" in line)
    assert line.startswith("No speed: 40 of 40 timings were disturbed (others took 76 % of the")


def test_tables_are_by_law_and_by_speed(said):
    rows = {
        t.title.rpartition(": ")[2]: [r.cells[0] for r in t.rows]
        for t in tables_of(said, "table")[:3]
    }
    assert rows == {
        "exact decoders": ["ar", "eagle2", "sd_chain", "eagle1"],
        "relaxed or broken decoders": ["ar", "lantern_pp", "lantern_released", "lantern"],
        "not judged": ["ar", "lantern_chain"],
    }


def test_an_output_tv_above_what_is_declared_has_one_footnote(run, said):
    assert "†" not in cells(said, "lantern")["output TV"]
    notes = said.blocks[0].notes
    assert sum("†" in line for line in notes) == 1 and "limits TV(p, p_A)" in " ".join(notes)
    few = changed(run, lambda e: True, tv_tested=0.0)
    assert not any("†" in line for line in summarise(few).blocks[0].notes)


def test_a_failed_decoder_has_a_row_and_its_error_is_said_once(said):
    text = texts.terminal(said)
    line = next(line for line in text.splitlines() if line.startswith("lantern_chain"))
    assert line.split() == ["lantern_chain", "failed"]
    failures = text.partition("\nFailures\n")[2]
    assert "8 of 8 images failed: NumericalError: NaN logits at code 17 | row 3" in failures
    assert r"NumericalError: NaN logits at code 17 \| row 3" in texts.markdown(said)
    assert r"lantern\_chain & failed & " in texts.latex(said)


def test_markup_is_well_formed(said):
    markdown, latex = texts.markdown(said), texts.latex(said)
    assert "| *AR, 2 seeds* |" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    widths = {line.replace(r"\|", "").count("|") for line in lines}
    assert widths == {7, 8, 9, 11}  # quality and bounds, exact decoders, others, roofline
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2 * (5 + 2), "and of quality"
    assert "%" not in latex.replace(r"\%", "").partition("\n")[2].replace("{!}{%", "")
    assert "≈" not in latex and "—" not in latex
    assert number(-1e-9, 4) == "0.0000" and percent(-1e-9) == "0.0 %", "no figure is minus zero"


# ---- the roofline and fairness ------------------------------------------------------------------


def test_a_table_for_a_paper_has_chosen_columns_names_of_methods_and_signs_explained(run):
    rule = {"target": "decoders.verify.lantern.Lantern", "kwargs": {"k": 64, "delta": 0.4}}
    eagle = {"target": "decoders.propose.drafters.eagle.Eagle", "kwargs": {}}
    loop = {"target": "decoders.loops.speculative.Speculative", "kwargs": {}}
    tree = {"target": "decoders.propose.trees.dynamic.Dynamic", "kwargs": {}}
    spec = {"acceptance": rule, "drafter": eagle, "tree": tree, "loop": loop}
    decoders = [{"name": name, "spec": spec} for name in ("lantern", "lantern_released")]
    named = replace(run, identity={"config": {"decoders": decoders[:1]}})
    text = texts.latex(summarise(named), ["speed-up", "output TV"])
    assert r"decoder & speed-up & output TV \\" in text
    assert r"LANTERN (k = 64, delta = 0.4) & 2.35 [2.27, 2.44] & 0.090" in text
    first, second, *_ = re.findall(r"\\caption{(.*)}", text)
    assert r"[a, b]: a 95 \% interval." in first and r"$\approx$: chance" in first
    assert r"\dag{}: above the paper's delta" in second and r"\dag" not in first
    assert "FID (scenes-clip)" in text, "of the table of quality all columns"
    both = texts.latex(summarise(replace(run, identity={"config": {"decoders": decoders}})))
    assert r"LANTERN (k = 64, delta = 0.4): lantern\_released & broken" in both
    with pytest.raises(ConfigError, match=r"did you mean 'speed-up'"):
        texts.latex(summarise(run), ["speedup"])


def with_fairness(run: Run, verdict: str, reason: str, mixed: str = "") -> Run:
    """The run with this verdict on the decoders of its first section."""
    names = [entry.name for entry in run.sections[0].decoders]
    return replace(run, fairness={n: Fairness(n, verdict, reason, mixed) for n in names})


def test_an_unfair_baseline_marks_every_speed_up_over_it_in_every_form(run):
    said = summarise(with_fairness(run, UNFAIR, "a step of ar takes 10.0 times its floor"))
    assert cells(said, "ar")["speed-up"] == "1.00 unfair baseline (2)"
    assert "unfair" not in cells(said, "eagle2_greedy")["speed-up"] + " ".join(
        cells(said, "AR, 2 seeds").values()
    )
    note = "(2) unfair baseline: a step of ar takes 10.0 times its floor."
    for text in (texts.terminal(said), texts.markdown(said), texts.latex(said)):
        assert "2.35 [2.27, 2.44] unfair baseline (2)" in text and note in one_line(text)


def test_fair_and_unknown_baselines_are_said_to_be_so(run):
    text = one_line(texts.terminal(summarise(with_fairness(run, FAIR, "a step is quick"))))
    assert "unfair" not in text and "Baselines are fair: a step is quick." in text
    text = one_line(texts.terminal(summarise(with_fairness(run, UNKNOWN, "no floor known"))))
    names = "ar, eagle2, sd_chain, eagle1, lantern_pp, lantern_released, lantern"
    assert "unfair" not in text
    assert f"Fairness of the baseline unknown for {names}: no floor known." in text


def test_a_decoder_with_an_eager_piece_is_marked_and_not_the_fastest(run):
    eager = with_fairness(run, FAIR, "", mixed="its acceptance ran eagerly")
    marked = replace(eager, fairness={"eagle2": eager.fairness["eagle2"]})
    assert cells(summarise(marked), "eagle2")["speed-up"].endswith("(eager)")
    assert not any("decoder: eagle2," in line for line in headline(marked))


def test_the_roofline_table_has_time_over_floor_of_every_forward(said, run, written):
    assert cells(said, "ar", "roofline") == {
        "decoder": "ar", "codes": "1", "step ms": "8.25", "step in AR steps": "1.00",
        "step over floor": "10.0 x", "forward ms": "8.25", "forward in AR steps": "1.00",
        "floor ms": "0.825", "over floor": "10.0 x", "draft call ms": "—",
    }  # fmt: skip
    assert cells(said, "lantern", "roofline") == {
        "decoder": "lantern", "codes": "59", "step ms": "3.00", "step in AR steps": "0.36",
        "step over floor": "1.5 x", "forward ms": "3.00", "forward in AR steps": "0.36",
        "floor ms": "2.00", "over floor": "1.5 x", "draft call ms": "0.700",
    }  # fmt: skip
    for name in ("table.txt", "table.md", "index.html"):
        text = (written / name).read_text(encoding="utf-8")
        assert "Time over floor" in text and "10.0 x" in text


def test_forwards_are_those_of_all_decoders_over_as_many_codes(run):
    ar, trees = timing.forwards(run, run.sections[1])
    assert (ar.codes, ar.names) == (1, ("ar_greedy",))
    assert (trees.codes, trees.names) == (59, ("eagle2_greedy", "lantern_greedy"))
    assert trees.ms == pytest.approx(3.0) and not trees.whole
    nan = float("nan")
    line = run.roofline["lantern_greedy"] | {"forward_ms": nan, "step_ms": 4.0}
    graph = replace(run, roofline={"lantern_greedy": line})
    (whole,) = timing.forwards(graph, run.sections[1])
    assert whole.whole and whole.ms == 4.0, "a step that is one graph"
    row = roofline_tables(graph)[0].rows[0]
    assert row.cells[:6] == ["lantern_greedy", "59", "4.00", "—", "1.5 x", "—"]


def test_the_blocks_of_a_run_are_those_of_its_speedups(run):
    few = changed(run, lambda entry: entry.name == "eagle2", speedup_blocks=9.0)
    assert "timed in 9 to 10 blocks; from block to block ar took" in " ".join(facts(few))
