"""What a report says: one page in full (`page.md`), and what changes with the figures: noise marks,
the headline, unfair baselines, what was not measured, in every form."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analyse.analyse import analyse
from bench.analyse.fairness import FAIR, FAIRNESS_UNKNOWN, UNFAIR, Fairness
from bench.analyse.floors import Bounds, forwards
from bench.analyse.run import Entry, Run
from bench.analyse.tables import tables_of
from bench.errors import ConfigError
from bench.report import texts
from bench.report.headline import headline, regime
from bench.report.notes import facts
from bench.report.table import Column, interval, number, percent, table_of
from bench.report.tables import roofline_tables
from bench.report.texts import Block, Report, summarise
from bench.store.facts import Findings
from metrics.stats import NO_INTERVAL, Interval
from tests.bench.report.synthetic import timed_ratio

PAGE = Path(__file__).with_name("page.md")


def shown(said: Report, block: str) -> list:
    return next(each.tables for each in said.blocks if each.name == block)


def cells(said: Report, name: str, *blocks: str) -> dict[str, str]:
    """A decoder's figures in the first tables that have it, by their headings."""
    found: dict[str, str] = {}
    for table in [
        t for block in blocks or ("table", "quality", "details") for t in shown(said, block)
    ]:
        for row in table.rows:
            if row.cells[0] == name:
                found |= dict(zip(table.headings, row.cells, strict=True))
    return found


def changed(run: Run, of: Callable[[Entry], bool], **figures: object) -> Run:
    """The run's first section alone, with other figures of some decoders."""
    section = run.sections[0]

    def change(entry: Entry) -> Entry:
        line = replace(entry.line)
        line.__dict__["speedup"] = entry.line.speedup
        if isinstance(speedup := figures.get("speedup"), Interval):
            line.__dict__["speedup"] = timed_ratio(speedup)
        return replace(entry, line=line, figures={**entry.figures, **figures})

    entries = [change(e) if of(e) else e for e in section.entries]
    run = replace(run, sections=[replace(section, entries=entries)])
    made = {name: run.tables[name] for name in ("roofline", "clip_pairs")}
    return replace(run, tables=tables_of(run, **made))


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_page_says_what_it_said(said, written, tmp_path):
    """Every sentence, cell, mark and the order of rows. A page that is right replaces `page.md`."""
    page = texts.markdown(said)
    (tmp_path / PAGE.name).write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8"), f"the new page: {tmp_path / PAGE.name}"
    text = one_line(texts.plain(said))
    lost = [w for block in said.blocks for w in block.notes if block.name not in texts.PAGE_ONLY
            and one_line(w) not in text]  # fmt: skip
    assert not lost, "the terminal has the sentences too"
    for name in ("table.txt", "index.html"):
        words = one_line((written / name).read_text(encoding="utf-8"))
        assert words.index("Fastest exact decoder") < words.index("exact decoders")
        assert "AR is bound by memory here" in words
    text = regime(Bounds(reading=0.825, computing=1034.6))
    assert "AR is bound by arithmetic here: a step needs at least 1,030 ms" in text


MORE = {
    "precision": (Interval(0.71, 0.66, 0.76), "0.710 [0.660, 0.760]"),
    "recall": (Interval(0.52, 0.47, 0.57), "0.520 [0.470, 0.570]"),
    "hps": (Interval(27.3, 27.25, 27.35), "27.30 [27.25, 27.35]"),
}


def test_quality_figures_are_columns_where_a_run_measured_them(run):
    for name, (value, text) in MORE.items():
        scored = summarise(changed(run, lambda e: e.name == "lantern", **{name: value}))
        heading = "HPS" if name == "hps" else name
        assert cells(scored, "lantern", "quality")[heading] == text
        assert cells(scored, "eagle2", "quality")[heading] == "—"
        for form in (texts.plain, texts.markdown, texts.latex):
            assert text in form(scored) and heading in form(scored)
        others = {"HPS", "precision", "recall"} - {heading}
        assert not others & cells(scored, "lantern", "quality").keys()
    wide = changed(run, lambda e: e.name == "lantern", kid=Interval(0.0213, 0.0, 0.0413))
    (table,) = shown(summarise(wide), "quality")
    column = [row.cells[table.headings.index("KID")] for row in table.rows]
    assert "0.021 [0.000, 0.041]" in column and "0.002 [0.001, 0.003]" in column
    assert {len(found) for cell in column for found in re.findall(r"\.(\d+)", cell)} == {3}
    names = ("kid", "fid", "fid_debiased", "clip_less_baseline", *MORE)
    plain = summarise(changed(run, lambda _: True, **dict.fromkeys(names, NO_INTERVAL)))
    assert not [block for block in plain.blocks if block.name == "quality"]
    assert "quality" not in texts.plain(plain) + texts.latex(plain)


def test_why_there_is_no_clip_score_and_fid_is_said(run):
    few = changed(
        run, lambda e: e.name == "eagle2", clip=NO_INTERVAL, fid=NO_INTERVAL, n_quality=4.0
    )
    says = "no CLIP score and FID of eagle2; both need at least 5 images (quality.images=5)."
    assert says in one_line(texts.plain(summarise(few)))


def test_a_fastest_decoder_is_faster_beyond_chance(run):
    within = Interval(1.21, 1.02, 1.44)  # of one decoder; of the fastest of three it is wider
    _, first, *_ = headline(changed(run, lambda e: e.name == "eagle2", speedup=within))
    assert first.startswith(
        "No exact decoder is faster than AR beyond chance. The fastest: eagle2, or sd_chain or "
        "eagle1 (not told apart). eagle2, 1.21 [0.98, 1.49] times as fast as AR in this run (95 % "
        "for all 3 decoders together)"
    )
    slow = Interval(0.8, 0.7, 0.9)
    _, first, *_ = headline(changed(run, lambda e: e.number("speedup") > 1, speedup=slow))
    assert first.startswith("No exact decoder is faster than AR. The fastest: sd_chain, or")


def test_a_run_that_others_disturbed_says_so_first(run):
    def analysed(**load: object) -> Run:
        return analyse(run.folder, run.rows.assign(**load), run.identity, Findings())

    busy = headline(analysed(disturbed=True, cpu_others=0.75, cpu_steal=0.01))
    line = next(line for line in busy if "No speed" in line)
    assert line.startswith("No speed: 40 of 40 timings were disturbed (others took 76 % of the")
    quiet = summarise(analysed(disturbed=False, cpu_others=0.02, cpu_steal=0.0))
    assert "nobody knows which of" not in one_line(texts.plain(quiet)), "as the page says of NaN"


def test_marks_have_a_footnote_where_there_are_some(run):
    few = summarise(changed(run, lambda e: True, tv_tested=0.0))
    assert not any("†" in line for line in few.blocks[0].notes)


def test_a_failed_decoder_has_a_row_and_its_error_is_said(said):
    text = texts.plain(said)
    line = next(line for line in text.splitlines() if line.startswith("lantern_chain"))
    assert line.split() == ["lantern_chain", "failed"]
    failures = text.partition("\nFailures\n")[2]
    assert "8 of 8 images failed: NumericalError: NaN logits at code 17 | row 3" in failures
    assert r"lantern\_chain & failed & " in texts.latex(said)


def test_latex_is_well_formed(said):
    latex = texts.latex(said)
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2 * (5 + 2), "and of quality"
    assert "%" not in latex.replace(r"\%", "").partition("\n")[2].replace("{!}{%", "")
    assert "≈" not in latex and "—" not in latex
    assert r"& CLIP (scenes) $-$ AR &" in latex and "[$-$0.12, 0.12]" in latex
    assert not re.search(r"[ (\[]-[\d ]", latex), "a hyphen is no minus"
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
    assert r"LANTERN & 2.35 [2.27, 2.44] & 0.090" in text
    assert "Settings. LANTERN: k = 64, delta = 0.4, tree dynamic(58 nodes)." in text
    assert text.count("Measured on Example CPU") == 1
    first, second, *_ = re.findall(r"\\caption{(.*)}", text)
    assert r"[a, b]: a 95 \% interval." in first and r"$\approx$: chance" in first
    assert r"\dag{}: above the paper's delta" in second and r"\dag" not in first
    assert "FID (scenes-clip)" in text, "of the table of quality all columns"
    both = texts.latex(summarise(replace(run, identity={"config": {"decoders": decoders}})))
    assert r"LANTERN (lantern\_released) & broken" in both, "of equal names each has its own too"
    with pytest.raises(ConfigError, match=r"did you mean 'speed-up'"):
        texts.latex(summarise(run), ["speedup"])


def test_claims_in_latex_have_a_title_papers_names_and_what_their_verdicts_mean(run):
    rule = {"target": "decoders.verify.lantern.Lantern", "kwargs": {"k": 64, "delta": 0.4}}
    eagle = {"target": "decoders.propose.drafters.eagle.Eagle", "kwargs": {}}
    loop = {"target": "decoders.loops.speculative.Speculative", "kwargs": {}}
    tree = {"target": "decoders.propose.trees.chain.Chain", "kwargs": {}}
    spec = {"acceptance": rule, "drafter": eagle, "tree": tree, "loop": loop}
    named = replace(run, identity={"config": {"decoders": [{"name": "lantern", "spec": spec}]}})
    says = "lantern commits more codes than the exact rule on the same chain of drafts"
    columns = [
        Column("claim", lambda row: row[0], text=True),
        Column("decoders", lambda row: row[1], text=True, names=True),
        Column("published", lambda row: row[2]),
    ]
    table = table_of(columns, [(says, "worst of 2: lantern / lantern_pp; best: lantern", "—")])
    block = Block("claims", "Claims of papers", [table], ["Holds: it is so."])
    text = texts.latex(summarise(named, [block])).partition("Claims of papers")[2]
    assert text.startswith(".}"), "no sign that means something else in this table"
    assert r"worst of 2: LANTERN chain / lantern\_pp; best: LANTERN chain & --" in text
    assert says in text and "Holds: it is so." in text
    assert r"\begin{tabular}{p{6cm}p{6cm}r}" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Interval(0.00213, 0.00118, 0.00302), "0.0021 [0.0012, 0.0030]"),
        (Interval(0.41298, 0.33083, 0.49513), "0.41 [0.33, 0.50]"),
        (Interval(0.02131, 0.01894, 0.02370), "0.0213 [0.0189, 0.0237]"),
        (Interval(0.02131, math.nan, math.nan), "0.0213"),
    ],
)
def test_a_figure_has_the_decimals_that_its_interval_allows(value, text):
    assert interval(value, None) == text


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
    for text in (texts.plain(said), texts.markdown(said), texts.latex(said)):
        assert "2.35 [2.27, 2.44] unfair baseline (2)" in text and note in one_line(text)


def test_fair_and_unknown_baselines_are_said_to_be_so(run):
    text = one_line(texts.plain(summarise(with_fairness(run, FAIR, "a step is quick"))))
    assert "unfair" not in text and "Baselines are fair: a step is quick." in text
    text = one_line(texts.plain(summarise(with_fairness(run, FAIRNESS_UNKNOWN, "no floor known"))))
    names = "ar, eagle2, sd_chain, eagle1, lantern_pp, lantern_released, lantern"
    assert "unfair" not in text
    assert f"Fairness of the baseline unknown for {names}: no floor known." in text


def test_a_decoder_with_an_eager_piece_is_marked_and_not_the_fastest(run):
    eager = with_fairness(run, FAIR, "", mixed="its acceptance ran eagerly")
    marked = replace(eager, fairness={"eagle2": eager.fairness["eagle2"]})
    assert cells(summarise(marked), "eagle2")["speed-up"].endswith("(eager)")
    assert not any("decoder: eagle2," in line for line in headline(marked))


def test_forwards_are_those_of_all_decoders_over_as_many_codes(run):
    ar, trees = run.lines("forwards", run.sections[1])
    assert (ar["codes"], ar["decoders"]) == (1, ["ar_greedy"])
    assert (trees["codes"], trees["decoders"]) == (59, ["eagle2_greedy", "lantern_greedy"])
    assert trees["ms"] == pytest.approx(3.0) and not trees["whole"]
    graph = run.tables["roofline"]
    graph = graph[graph.decoder == "lantern_greedy"].assign(forward_ms=math.nan, step_ms=4.0)
    (whole,) = forwards(run, graph)
    assert whole["whole"] and whole["ms"] == 4.0, "a step that is one graph"
    tables = tables_of(run, roofline=graph, clip_pairs=run.tables["clip_pairs"])
    row = roofline_tables(replace(run, tables=tables))[0].rows[0]
    assert row.cells[:6] == ["lantern_greedy", "59", "4.00", "0.36", "1.5 x", "—"]


def test_the_blocks_of_a_run_are_those_of_its_speedups(run):
    few = changed(run, lambda entry: entry.name == "eagle2", speedup_blocks=9.0)
    assert "timed in 9 to 10 blocks; from block to block ar took" in " ".join(facts(few))
