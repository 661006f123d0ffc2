"""Verdicts on claims of papers: right on runs whose truth is known, the worst of several pairs,
by the gate and by the margin; on the command line and in a report."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.analyse.fairness import Fairness
from bench.analyse.line import Line
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Run
from bench.commands import compare as command
from bench.compare.claim_tables import claim_rows, claim_table, claims_of, count
from bench.compare.claims import Claim, load_claims, read_selector
from bench.compare.contrasts import difference, log_ratio
from bench.compare.judging import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    NOT_TOLD,
    REFUTED,
    SMALLER,
    Finding,
    Judged,
    judge,
    verdict_of,
)
from decoders.api import CodeKind
from metrics.stats import Interval
from tests.bench.compare.made_runs import (
    AR,
    BASE,
    BLOCKS,
    IMAGES,
    NAN,
    changed,
    cool,
    entry,
    lantern,
    part,
    run_of,
    still,
)

CLAIMS = {claim.id: claim for claim in load_claims()}


# ---- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lo", "hi", "published", "verdict"),
    [
        (1.05, 1.20, NAN, HOLDS),
        (0.95, 1.20, NAN, NOT_TOLD),
        (0.80, 0.95, NAN, FAILS),
        (1.40, 2.00, 1.8, HOLDS),  # 1.34 is half of it
        (1.90, 2.40, 1.8, HOLDS),  # more than published
        (1.40, 1.70, 1.8, SMALLER),  # more than half, but less than published
        (1.05, 1.30, 1.8, SMALLER),
        (1.20, 1.50, 1.8, SMALLER),
        (1.20, 1.90, 1.8, NOT_TOLD),  # half of the paper's size, or all of it, or less
        (0.95, 1.10, 1.8, FAILS),  # half of the paper's size is ruled out
        (0.95, 1.60, 1.8, NOT_TOLD),
        (NAN, NAN, NAN, NOT_TOLD),
    ],
)
def test_an_effect_is_judged_by_its_whole_interval(lo, hi, published, verdict):
    claim = replace(CLAIMS["cool_delta"], published=published)
    assert verdict_of(claim, Interval((lo + hi) / 2, lo, hi)) == verdict


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [(0.97, 1.04, HOLDS), (0.97, 1.07, NOT_TOLD), (1.06, 1.2, FAILS), (NAN, NAN, NOT_TOLD)],
)
def test_two_that_do_the_same_stay_within_the_stated_distance(lo, hi, verdict):
    assert verdict_of(CLAIMS["lantern_cosine"], Interval((lo + hi) / 2, lo, hi)) == verdict


def test_of_pairs_that_should_do_the_same_the_farthest_apart_is_the_worst():
    claim = replace(CLAIMS["cool_codes"], within=0.5)
    pairs = [Judged("run", f"{x}", "y", HOLDS, Interval(x, x, x)) for x in (1.0, 0.9, 1.3)]
    finding = Finding(claim, HOLDS, tuple(pairs))
    assert (finding.decisive.better, finding.best.better) == ("1.3", "1.0")


def test_effects_of_sums_are_paired_by_image():
    """What a prompt does to both decoders does not widen the interval."""
    rng = np.random.default_rng(0)
    prompt = np.exp(rng.normal(0, 0.5, 60))
    first, second = 1.5 * prompt, prompt
    ratio = log_ratio(first, np.ones(60), second, np.ones(60))
    assert ratio.lo == pytest.approx(1.5) == ratio.hi
    less = difference(0.3 * prompt, prompt, 0.1 * prompt, prompt)
    assert vars(less) == pytest.approx({"value": 0.2, "lo": 0.2, "hi": 0.2})
    assert math.isnan(difference(first, prompt, second, 0 * prompt).value)


# ---- runs whose truth is known ------------------------------------------------------------------


def simulated(seed: int, effect: float) -> Run:
    """COOL-SD at delta 2 and 1.1 on one chain; the first is so many times as good in everything."""
    rng = np.random.default_rng(seed)
    prompts, moments = rng.normal(0, 0.15, IMAGES), np.exp(rng.normal(0, 0.1, BLOCKS))
    entries = [
        entry("mine", rng, prompts, 1.2 * effect, 2.1 * effect, moments=moments),
        entry("other", rng, prompts, 1.2, 2.1, moments=moments),
    ]
    return run_of({"mine": cool(2.0), "other": cool(1.1)}, entries)


SHIPPED = CLAIMS["cool_delta"]  # about the two
SIMULATED = [  # in three figures, with and without a published size
    replace(SHIPPED, figure=name, published=size)
    for name in ("speedup", "codes_per_forward", "forwards")
    for size in (NAN, SHIPPED.published)
]


def share_of(verdicts: set[str], claims: list[Claim], effect: float, runs: int) -> list[float]:
    """[claims]: in which part of the runs each has one of the verdicts."""
    each = [judge(claims, [simulated(seed, effect)]) for seed in range(runs)]
    return [sum(one[i].verdict in verdicts for one in each) / runs for i in range(len(claims))]


def test_a_claim_of_no_effect_holds_in_at_most_one_run_of_twenty():
    assert max(share_of({HOLDS, SMALLER}, SIMULATED, 1.0, runs=100)) <= 0.05


def test_a_claim_of_the_published_size_holds_in_four_runs_of_five():
    assert min(share_of({HOLDS}, SIMULATED, SHIPPED.published, runs=40)) >= 0.8


def test_repeats_of_a_setting_do_not_lower_the_chance_that_a_claim_holds():
    """Nor do they raise it: such runs may share prompts and noise."""
    verdicts = set[str]()
    for seed in range(6):
        every = [simulated(seed + 100 * repeat, 1.02) for repeat in range(4)]
        first = judge(SIMULATED, every[:1])
        for alone, several in zip(first, judge(SIMULATED, every), strict=True):
            assert several.verdict == alone.verdict
            assert [pair.counts for pair in several.pairs] == [True, False, False, False]
            verdicts.add(several.verdict)
    assert verdicts >= {HOLDS, NOT_TOLD}


def test_of_repeats_the_largest_stands_for_its_setting():
    specs = {"plain": BASE, "d2": cool(2.0)}
    large, small = ([still("plain", 1.0), still("d2", speed)] for speed in (1.4, 0.9))
    few = [e.rows[(e.rows.protocol == "latency") | (e.rows.prompt_index < 30)] for e in small]
    few = [replace(e, line=Line(e.name, rows)) for e, rows in zip(small, few, strict=True)]
    runs = [run_of(specs, few, "few"), run_of(specs, large, "many")]
    codes = replace(CLAIMS["cool_delta"], than=read_selector("acceptance=exact"))
    for order in (runs, runs[::-1]):
        (finding,) = judge([codes], order)
        assert finding.verdict == HOLDS and finding.decisive.run == "many"
        assert [row.counts for row in claim_rows([finding]).itertuples()].count(True) == 1
    other = replace(runs[0], identity=runs[0].identity | {"machine": {"cpu": "another"}})
    for figure, verdict in (("codes_per_forward", HOLDS), ("speedup", FAILS)):
        (finding,) = judge([replace(codes, figure=figure)], [runs[1], other])
        assert finding.verdict == verdict, "seconds of another machine are another setting"


def test_a_claim_of_quality_that_is_lost_by_the_margin_rarely_holds():
    rng, held, made = np.random.default_rng(1), 0, still("mine", 1)
    for _ in range(400):
        each = rng.normal(-2, 6, IMAGES)  # the margin is 2
        scored = {CLIP_LESS: each.mean(), f"{CLIP_LESS}_sd": each.std(ddof=1)}
        line = replace(made.line, clip_less=scored | {"clip_images": IMAGES})
        run = run_of({"mine": cool(2.0)}, [replace(made, line=line)])
        held += judge([CLAIMS["cool_quality"]], [run])[0].verdict == HOLDS
    assert held <= 0.075 * 400  # 5 % and what 400 runs differ by


# ---- findings -----------------------------------------------------------------------------------


def longer(specs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same decoders on a longer chain: another setting."""
    chain = part("propose.trees.chain.Chain", depth=5)
    return {name: spec | {"tree": chain} for name, spec in specs.items()}


def test_of_several_pairs_and_runs_the_worst_verdict_counts():
    claim = replace(CLAIMS["cool_codes"], better=read_selector("acceptance=cool_sd"))
    specs = {"plain": BASE, "d1": cool(1.1), "d2": cool(2.0)}
    good = [still("plain", 1.0), still("d1", 1.2), still("d2", 1.4)]
    bad = [still("plain", 1.0), still("d1", 0.9), still("d2", 1.4)]
    (finding,) = judge([claim], [run_of(specs, good)])
    assert finding.verdict == HOLDS and [p.better for p in finding.pairs] == ["d1", "d2"]
    assert claim_table([finding]).rows[0].cells[-1] == (
        "worst of 2: d1 (delta = 1.1) / plain; best: d2 (delta = 2.0) / plain 1.40"
    )
    (finding,) = judge([claim], [run_of(specs, good), run_of(longer(specs), bad, "longer")])
    assert finding.verdict == FAILS
    assert (finding.decisive.run, finding.decisive.better) == ("longer", "d1")
    assert (finding.best.better, finding.best.verdict) == ("d2", HOLDS)
    assert {*claim_rows([finding]).pair} == {HOLDS, FAILS}


def test_a_run_without_intervals_does_not_outvote_one_that_has_them():
    claim, specs = CLAIMS["cool_speed"], {"plain": BASE, "d2": cool(2.0)}
    pair = [still("plain", 1.0), still("d2", 1.4)]
    short = [e.rows[(e.rows.protocol != "latency") | (e.rows.block < 3)] for e in pair]
    few = [replace(e, line=Line(e.name, rows)) for e, rows in zip(pair, short, strict=True)]
    (finding,) = judge([claim], [run_of(specs, few)])
    assert (
        finding.verdict == NOT_TOLD
        and finding.decisive.note == "no interval: 3 blocks a minute apart, not 10"
    )
    (finding,) = judge([claim], [run_of(specs, few, "short"), run_of(specs, pair)])
    assert finding.verdict == HOLDS
    assert claim_table([finding]).rows[0].cells[-1] == (
        "d2 (delta = 2.0) / plain; not told: d2 (delta = 2.0) / plain 1.40 in short "
        "(no interval: 3 blocks a minute apart, not 10)"
    )


def test_a_speed_over_an_unfair_baseline_does_not_make_a_claim_hold():
    claim, specs = CLAIMS["eagle1_speed"], {"ar": AR, "mine": BASE}
    claim = replace(claim, better=read_selector("sd_chain"))
    ar = still("ar", 1.0, verdict="exact")
    for verdict, speed, judged in (
        ("fair", 2.1, HOLDS), ("unfair", 2.1, NOT_TOLD), ("unfair", 0.9, FAILS),
    ):  # fmt: skip
        fast = changed(still("mine", speed), speedup=Interval(speed, speed, speed))
        run = run_of(specs, [ar, fast])
        run = replace(run, fairness={"mine": Fairness("mine", verdict, "a step takes 9 floors")})
        assert judge([claim], [run])[0].verdict == judged, (verdict, speed)


def test_a_law_is_judged_by_the_gate():
    claim = CLAIMS["chain_lossless"]
    for word, verdict in (
        ("exact", HOLDS), ("exact as far as sampled (TV < 0.02)", HOLDS), ("relaxed", FAILS),
        ("broken (0.4 > 0.2)", FAILS), ("not checked", NOT_TOLD), ("", NOT_TOLD),
    ):  # fmt: skip
        run = run_of({"sd": BASE}, [still("sd", 1, verdict=word)])
        assert judge([claim], [run])[0].verdict == verdict, word


def test_a_claim_that_no_decoder_fits_names_the_study_that_has_it():
    run = run_of({"ar": AR}, [still("ar", 1, verdict="exact")])
    findings = judge([*CLAIMS.values()], [run])
    by = {finding.claim.id: finding.verdict for finding in findings}
    assert by["traversal_codes"] == NOT_MEASURED and by["scd_gs_released"] == REFUTED
    assert "not hold" not in count(findings) and " are refuted without a run" in count(findings)
    measured = replace(CLAIMS["sjd_released"], once="")
    assert f"of {len(CLAIMS) + 1} claims" in count([*findings, *judge([measured], [run])])


def test_a_claim_about_sampling_is_not_judged_greedily():
    cold = changed(still("sd", 1, verdict="relaxed"), temperature=0.0)
    (finding,) = judge([CLAIMS["chain_lossless"]], [run_of({"sd": BASE}, [cold])])
    assert finding.verdict == NOT_MEASURED
    greedy = read_selector("sd_chain sampling.temperature=0")
    (finding,) = judge(
        [replace(CLAIMS["chain_lossless"], better=greedy)], [run_of({"sd": BASE}, [cold])]
    )
    assert finding.verdict == FAILS


def test_speeds_at_an_equal_output_tv_are_read_from_curves():
    """COOL-SD's curve is 1.5 times as fast as lenience's at every TV."""

    def at(name: str, speed: float, tv: float) -> Entry:
        ends = Interval(speed, speed / 1.05, speed * 1.05)
        moved = Interval(tv, tv - 0.005, tv + 0.005)
        return changed(still(name, speed), speedup=ends, tv_output=moved)

    def lenient(value: float) -> dict[str, Any]:
        return BASE | {"acceptance": part("verify.cool_sd.Lenience", lenience=value)}

    specs = {"c1": cool(1.1), "c2": cool(2.0), "l5": lenient(0.5), "l2": lenient(0.2)}
    entries = [at("c1", 1.5, 0.1), at("c2", 3.0, 0.3), at("l5", 1.0, 0.1), at("l2", 2.0, 0.3)]
    (finding,) = judge([CLAIMS["cool_equal_tv"]], [run_of(specs, entries)])
    assert finding.verdict == HOLDS and finding.decisive.note == "at TV 0.20"
    said = "c1 (delta = 1.1 to 2) / l2 (l = 0.2 to 0.5)"
    assert claim_table([finding]).rows[0].cells[-1] == said, "a curve has all its settings"
    assert finding.decisive.effect.value == pytest.approx(1.5)
    apart = [at("c1", 1.5, 0.1), at("c2", 3.0, 0.2), at("l5", 1.0, 0.3), at("l2", 2.0, 0.4)]
    (finding,) = judge([CLAIMS["cool_equal_tv"]], [run_of(specs, apart)])
    assert finding.verdict == NOT_TOLD and "no output TV that both reach" in finding.decisive.note


def drafted(name: str, deep: float, moved: float, declared: float) -> Entry:
    """A decoder of chains of two drafts: of its steps half accept the first, a share `deep` of
    these the second; the output moves by `moved` at a tested code, p_A by `declared`."""
    made, rng = still(name, 1.0), np.random.default_rng(3)
    steps = [np.where(rng.random(40) < 0.5, 1 + (rng.random(40) < deep), 0) for _ in range(IMAGES)]
    rows = made.rows[made.rows.protocol == "quality"].assign(
        accepted=steps, tree_depth=2, kind=[[CodeKind.DRAFT] * 8 + [CodeKind.BONUS] * 8] * IMAGES,
        tv_output=[[moved + at / 1000] * 4 for at in range(IMAGES)],
        tv_declared_bound=[[declared] * 4] * IMAGES, tree_nodes=2, alpha=[[0.5] * 4] * IMAGES,
        drafter_mass=[[0.5] * 4] * IMAGES, tv_shift=[[declared] * 8 + [0.0] * 8] * IMAGES,
        bound=[[declared] * 8 + [0.0] * 8] * IMAGES,
    )  # fmt: skip
    return replace(made, line=Line(name, rows))


def test_acceptance_and_output_tv_are_compared_image_by_image():
    specs = {"mine": lantern(0.4), "other": lantern(0.2)}
    pair = [drafted("mine", 0.8, 0.3, 0.2), drafted("other", 0.5, 0.1, 0.2)]
    run, claim = run_of(specs, pair), CLAIMS["lantern_delta_codes"]
    (deeper,) = judge([replace(claim, figure="acceptance", depth=2, deeper=True)], [run])
    assert deeper.verdict == HOLDS and deeper.decisive.note == "depth 2"
    assert deeper.decisive.effect.value == pytest.approx(0.3, abs=0.05)
    (first,) = judge([replace(claim, figure="acceptance", depth=1)], [run])
    assert first.verdict == NOT_TOLD and first.decisive.effect.value == pytest.approx(0, abs=0.05)
    (moved,) = judge([CLAIMS["lantern_delta_tv"]], [run])
    assert moved.verdict == HOLDS  # half of the codes are tested
    assert moved.decisive.effect.value == pytest.approx(0.1)


def with_one_beyond(**columns: Any) -> Entry:
    """A decoder whose output moves by 0.1 where 0.2 is declared, and by 0.25 at one code."""
    made = drafted("mine", 0.5, 0.1, 0.2)
    moved = [[0.25, 0.1, 0.1, 0.1], *made.rows.tv_output[1:]]
    columns = {name: [value] * IMAGES for name, value in columns.items()}
    rows = made.rows.assign(tv_output=moved, **columns)
    return replace(made, line=Line("mine", rows))


@pytest.mark.parametrize(
    ("columns", "verdict", "note"),
    [
        ({}, FAILS, "beyond at 1 of 280 codes"),
        ({"tree_nodes": 7}, NOT_TOLD, "beyond at 1 of 280 codes, estimated"),
        ({"tree_nodes": 7, "drafter_mass": []}, FAILS, "beyond at 1 of 280 codes"),  # not drawn
        ({"tree_nodes": 7, "drafter_mass": [], "alpha": []}, NOT_TOLD,
         "beyond at 1 of 280 codes, estimated"),  # of an older run, which does not say
    ],
)  # fmt: skip
def test_one_enumerated_code_beyond_a_bound_refutes_it_whatever_the_mean(columns, verdict, note):
    run = run_of({"mine": lantern(0.2)}, [with_one_beyond(**columns)])
    stated, output = judge([CLAIMS["lantern_bound"], CLAIMS["lantern_output_bound"]], [run])
    assert (output.verdict, output.decisive.note) == (verdict, note)
    assert output.decisive.effect.value == pytest.approx(-0.05)
    assert stated.verdict == HOLDS, "of p_A it is kept"
    inside = run_of({"mine": lantern(0.2)}, [drafted("mine", 0.5, 0.1, 0.2)], "inside")
    (output,) = judge([CLAIMS["lantern_output_bound"]], [inside])
    assert output.verdict == HOLDS and output.decisive.effect.value == pytest.approx(0.031)
    (output,) = judge([CLAIMS["lantern_output_bound"]], [inside, run])
    assert output.verdict == verdict, "another run does not make up for it"


def test_a_bound_on_the_law_of_acceptance_is_refuted_by_that_law():
    made = drafted("mine", 0.5, 0.1, 0.2)
    shift = [[0.3] + [0.1] * 7 + [0.0] * 8, *made.rows.tv_shift[1:]]
    over = replace(made, line=Line("mine", made.rows.assign(tv_shift=shift)))
    (finding,) = judge([CLAIMS["lantern_bound"]], [run_of({"mine": lantern(0.2)}, [over])])
    assert (finding.verdict, finding.decisive.note) == (FAILS, "beyond at 1 of 560 codes")


def test_a_run_does_not_overrule_a_counterexample_that_was_enumerated():
    claim, specs = CLAIMS["lantern_released_bound"], {"mine": lantern(0.2, residual="released")}
    (finding,) = judge([claim], [run_of(specs, [drafted("mine", 0.5, 0.1, 0.2)])])
    assert finding.verdict == REFUTED and [one.verdict for one in finding.pairs] == [HOLDS]
    assert claim.once in [cell for row in claim_table([finding]).rows for cell in row.cells]
    (finding,) = judge([claim], [run_of(specs, [with_one_beyond()])])
    assert finding.verdict == FAILS, "a run that refutes it is named"


# ---- the command and the report -----------------------------------------------------------------


def test_the_command_judges_several_runs_and_writes_the_grounds(tmp_path, monkeypatch, capsys):
    """One run or several; the page counts the verdicts and names run and decoders of each."""
    specs = {"plain": BASE, "d1": cool(1.1), "d2": cool(2.0)}
    made = {
        name: run_of(each, [still("plain", 1.0), still("d1", speed), still("d2", 1.6)], name)
        for name, each, speed in (("first", specs, 1.3), ("second", longer(specs), 1.2))
    }
    made = {k: replace(v, rows=pd.DataFrame({"model": ["tiny"]})) for k, v in made.items()}
    monkeypatch.setattr(command, "load", lambda folder: made[folder.name])
    assert command.cmd_compare(["first", "second", f"out={tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"claims: of {len(CLAIMS)} claims of ")
    assert "not measured here, and the study that does: " in shown and "exact (" in shown
    assert CLAIMS["scd_gs_released"].once in shown, "what is counted is listed"
    page = (tmp_path / "out" / "claims.md").read_text()
    assert "python -m bench compare first second out=" in page
    (line,) = [text for text in page.splitlines() if CLAIMS["cool_codes"].says in text]
    assert line.startswith("| COOL-SD at delta 1.1") and "| 1.20 " in line
    worst, best = (f"d1 (depth = {depth}, delta = 1.1) / plain" for depth in (5, 4))
    assert line.endswith(f"| second | worst of 2: {worst}; best: {best} 1.30 in first |")
    assert "refuted without a run" in page and "published figures" not in shown
    written = pd.read_csv(tmp_path / "out" / "claims.csv")
    assert {*written.id} == {*CLAIMS}
    assert len(written[written.id == "cool_codes"]) == 2, "one line per pair"


def test_a_report_has_the_claims_that_its_run_can_judge():
    specs = {"ar": AR, "plain": BASE, "d1": cool(1.1)}
    entries = [still("ar", 1, verdict="exact"), still("plain", 1.3), still("d1", 1.6)]
    block = claims_of(run_of(specs, entries))
    says = [row.cells[0] for row in block.tables[0].rows]
    assert CLAIMS["cool_codes"].says in says and CLAIMS["sjd_forwards"].says not in says
    assert block.notes[0].startswith(f"Of {len(says)} claims of ")
    assert claims_of(run_of({"ar": AR}, entries[:1])) is None
