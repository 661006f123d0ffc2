"""Claims of papers: rows are refused with their line, selectors mean what they say, verdicts are
right on runs whose truth is known."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.analyse.fairness import Fairness
from bench.analyse.line import Line
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Role, Run, Section
from bench.compare.claim_tables import claim_rows, count
from bench.compare.claims import TABLE, Claim, comparable, load_claims, read_selector
from bench.compare.contrasts import difference, log_ratio
from bench.compare.judging import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    NOT_TOLD,
    SMALLER,
    judge,
    same_verdict,
    verdict_of,
)
from bench.config.compose import compose_study
from bench.store.facts import flat
from decoders.errors import DecoderError
from metrics.stats import UNKNOWN, Interval

CLAIMS = {claim.id: claim for claim in load_claims()}
NAN = math.nan
SPECULATIVE = {"target": "decoders.loops.speculative.Speculative", "kwargs": {}}
EAGLE = {"target": "decoders.propose.drafters.eagle.Eagle", "kwargs": {"checkpoint": None}}


def part(name: str, /, **kwargs: object) -> dict[str, Any]:
    return {"target": f"decoders.{name}", "kwargs": kwargs}


EAGLE3 = part("propose.drafters.eagle3.Eagle3", checkpoint="x")
CHAIN, EXACT = part("propose.trees.chain.Chain", depth=4), part("verify.exact.Exact")
AR = {"loop": part("loops.autoregressive.Autoregressive"), "drafter": None, "tree": None,
      "acceptance": None, "proposer": None}  # fmt: skip
BASE = {"loop": SPECULATIVE, "drafter": EAGLE, "tree": CHAIN, "acceptance": EXACT, "proposer": None}


def lantern(delta: float, **more: object) -> dict[str, Any]:
    rule = {"k": 64, "delta": delta, "residual": "paper", "metric": "l2"} | more
    return BASE | {"acceptance": part("verify.lantern.Lantern", **rule)}


def cool(delta: float) -> dict[str, Any]:
    return BASE | {"acceptance": part("verify.cool_sd.CoolSD", delta=delta, decay=0.7)}


# ---- claims.csv ---------------------------------------------------------------------------------


def test_the_shipped_claims_have_a_source_and_most_a_size():
    claims = [*CLAIMS.values()]
    assert len(claims) >= 25 and len({claim.arxiv for claim in claims}) >= 16
    sized = [claim for claim in claims if claim.published == claim.published]
    assert len(sized) >= 25 and all(claim.source for claim in claims)
    for claim in sized:
        if claim.by == claim.by and claim.kind == "ratio":
            assert claim.neutral <= claim.by < claim.published, claim.id
    released = [claim for claim in claims if claim.once]
    assert {"SJD", "SCD", "SJD-PAC", "PathSpec", "SSD", "LANTERN", "VVS"} <= {
        claim.paper for claim in released
    }, "what the released code does not keep"


STUDIES = sorted({claim.needs for claim in CLAIMS.values() if claim.needs})


@pytest.mark.parametrize("study", STUDIES)
def test_the_study_that_a_claim_names_has_a_pair_for_it(study):
    specs = {one.name: flat(asdict(one.spec)) for one in compose_study([f"study={study}"]).decoders}
    for claim in (claim for claim in CLAIMS.values() if claim.needs == study):
        first, second = (
            [spec for spec in specs.values() if side is not None and side.matches(spec)]
            for side in (claim.better, claim.than)
        )
        if claim.figure == "speedup_at_tv":
            assert len(first) > 1 < len(second), claim.id
            continue
        pairs = [
            (a, b) for a in first for b in second if comparable(claim.better, a, claim.than, b)
        ]
        assert pairs or (claim.than is None and first), claim.id


ROW = {"id": "mine", "paper": "P", "arxiv": "1", "says": "A beats B", "figure": "speedup",
       "better": "lantern tree=chain", "than": "eagle2 tree=chain", "by": "1.2",
       "published": "1.5", "source": "table 1", "needs": "main", "once": ""}  # fmt: skip


def written(tmp_path: Path, *rows: dict[str, str]) -> list[Claim]:
    path = tmp_path / "claims.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return load_claims(path)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("source", "", "must be given, found ''"),
        ("figure", "speed_up", "did you mean 'speedup'"),
        ("figure", "acceptance@deep", "must be acceptance@DEPTH"),
        ("better", "lanterne", "unknown decoder 'lanterne'; did you mean 'lantern'"),
        ("better", "tree=chains", "unknown tree 'chains'; did you mean 'chain'"),
        ("better", "acceptance.delt=0.2", "unknown setting 'acceptance.delt'"),
        ("better", "lantern fast", "expected part=option or part.setting=value, found 'fast'"),
        ("better", "", "must be a selector, where `once` does not say what was found"),
        ("than", "", "must be a selector: what it is better than, found ''"),
        ("by", "0.5", "must be a ratio of 1 or more, or `within X`, found '0.5'"),
        ("by", "", "must be a ratio of 1 or more, or `within X`, found ''"),
        ("by", "within 0", "must be `within X`, X above 0"),
        ("by", "much", "must be a number, found 'much'"),
        ("published", "1.5x", "must be a number, found '1.5x'"),
        ("needs", "mian", "unknown study 'mian'; did you mean 'main'"),
        ("needs", "", "must be the study that measures it"),
        ("id", "a b", "must be letters, digits and _, found 'a b'"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, column, value, said):
    other = ROW | {"id": "other", column: value}
    with pytest.raises(DecoderError, match=rf"claims.csv:3\.{column} ") as error:
        written(tmp_path, ROW, other)
    assert said in str(error.value) and "correct it in" in str(error.value)


def test_two_claims_of_one_name_and_other_columns_are_refused(tmp_path):
    with pytest.raises(DecoderError, match=r"claims.csv:3.id must be new, found 'mine'.* line 2"):
        written(tmp_path, ROW, ROW)
    with pytest.raises(DecoderError, match=r"claims.csv:1 must have the columns id, paper"):
        written(tmp_path, {"id": "mine"})


def test_a_figure_of_one_decoder_has_no_other_side_and_no_size(tmp_path):
    alone = ROW | {"figure": "lossless", "than": "", "by": ""}
    assert written(tmp_path, alone)[0].than is None
    with pytest.raises(DecoderError, match="than must be empty for lossless"):
        written(tmp_path, alone | {"than": "ar"})
    with pytest.raises(DecoderError, match="by must be empty"):
        written(tmp_path, alone | {"by": "1.2"})


# ---- selectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "spec", "meant"),
    [
        ("lantern_chain", lantern(0.2), True),
        ("lantern", lantern(0.2), False),  # it is on a dynamic tree
        ("lantern tree=any", lantern(0.2), True),
        ("lantern_chain acceptance.delta>=0.3", lantern(0.2), False),
        ("lantern_chain acceptance.delta>=0.3", lantern(0.3), True),
        ("lantern_chain acceptance.residual=released", lantern(0.2), False),
        ("acceptance=lantern", lantern(0.2) | {"loop": part("loops.vvs.Vvs", interval=4)}, True),
        ("lantern_chain", lantern(0.2) | {"loop": part("loops.vvs.Vvs", interval=4)}, False),
        ("lantern_chain", lantern(0.2) | {"drafter": EAGLE3}, False),
        ("lantern_chain drafter=any", lantern(0.2) | {"drafter": EAGLE3}, True),
        ("sd_chain tree.depth=4", BASE, True),
        ("ar", AR, True),
        ("ar", BASE, False),
        ("par loop.target=par",
         AR | {"loop": part("loops.grouped.Grouped", target="coral")}, False),
        ("par loop.target=par", AR | {"loop": part("loops.grouped.Grouped", target="par")}, True),
    ],
)  # fmt: skip
def test_a_selector_means_decoders_by_their_parts_and_settings(selector, spec, meant):
    assert read_selector(selector).matches(flat(spec | {"name": "whatever"})) == meant


@pytest.mark.parametrize(
    ("better", "one", "than", "other", "alike"),
    [
        ("acceptance=lantern", lantern(0.2), "acceptance=exact", BASE, True),
        ("acceptance=lantern", lantern(0.2), "acceptance=exact",
         BASE | {"tree": part("propose.trees.chain.Chain", depth=3)}, False),
        ("acceptance=lantern", lantern(0.2) | {"loop": part("loops.vvs.Vvs", interval=4)},
         "acceptance=exact", BASE, False),
        ("acceptance=lantern acceptance.delta=larger", lantern(0.4),
         "acceptance=lantern acceptance.delta=smaller", lantern(0.2), True),
        ("acceptance=lantern acceptance.delta=larger", lantern(0.2),
         "acceptance=lantern acceptance.delta=smaller", lantern(0.4), False),
        ("acceptance=lantern acceptance.delta=larger", lantern(0.4, k=8),
         "acceptance=lantern acceptance.delta=smaller", lantern(0.2), False),
        ("drafter=eagle3", BASE | {"drafter": EAGLE3}, "drafter=eagle", BASE, True),
        ("sd_chain", BASE, "ar", AR, True),
    ],
)  # fmt: skip
def test_two_decoders_compare_where_they_differ_in_what_the_claim_names(
    better, one, than, other, alike
):
    one, other = flat(one | {"name": "a"}), flat(other | {"name": "b"})
    assert comparable(read_selector(better), one, read_selector(than), other) == alike


# ---- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lo", "hi", "by", "published", "verdict"),
    [
        (1.05, 1.20, 1, NAN, HOLDS),
        (0.95, 1.20, 1, NAN, NOT_TOLD),
        (0.80, 0.95, 1, NAN, FAILS),
        (1.40, 2.00, 1.35, 1.8, HOLDS),
        (1.05, 1.30, 1.35, 1.8, SMALLER),
        (1.20, 1.50, 1.35, 1.8, SMALLER),
        (1.20, 1.90, 1.35, 1.8, NOT_TOLD),  # the least size, or the paper's, or less
        (0.95, 1.10, 1.35, 1.8, FAILS),  # half of the paper's size is ruled out
        (0.95, 1.60, 1.35, 1.8, NOT_TOLD),
        (NAN, NAN, 1, NAN, NOT_TOLD),
    ],
)
def test_an_effect_is_judged_by_its_whole_interval(lo, hi, by, published, verdict):
    assert verdict_of(Interval((lo + hi) / 2, lo, hi), by, 1, published) == verdict


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [(0.97, 1.04, HOLDS), (0.97, 1.07, NOT_TOLD), (1.06, 1.2, FAILS), (NAN, NAN, NOT_TOLD)],
)
def test_two_that_do_the_same_stay_within_the_stated_distance(lo, hi, verdict):
    assert same_verdict(Interval((lo + hi) / 2, lo, hi), 1, 0.05) == verdict


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

IMAGES, BLOCKS = 70, 10  # as in study=main


def entry(
    name: str, rng, prompts: np.ndarray, speed: float, codes: float, moments, verdict="relaxed"
) -> Entry:
    """A decoder that takes 1 / speed seconds and commits so many codes per forward: timed in blocks
    whose moments slow all decoders alike, and measured on images, whose prompts do so too."""
    scatter = np.exp(prompts + rng.normal(0, 0.06, IMAGES)) if codes > 1 else np.ones(IMAGES)
    nfe = 255 / (codes * scatter)
    shared = {
        "status": "ok",
        "decoder": name,
        "seed": 0,
        "prompt": "",
        "image": "",
        "disturbed": False,
    }
    timed = pd.DataFrame({
        "protocol": "latency", "prompt_index": range(BLOCKS), "block": range(BLOCKS),
        "seconds_prefill": 0.0, "nfe": nfe[:BLOCKS], "mal": 255 / nfe[:BLOCKS],
        "seconds_total": moments * rng.normal(1, 0.03, BLOCKS) / speed
        * nfe[:BLOCKS] / nfe.mean(),
    })  # fmt: skip
    drawn = {"protocol": "quality", "prompt_index": range(IMAGES), "nfe": nfe, "mal": 255 / nfe}
    rows = pd.concat([timed, pd.DataFrame(drawn)]).assign(**shared)
    rows.index += len(name) * 1000  # as in a table of all decoders
    figures = {"status": "ok", "exactness": verdict, "temperature": 1.0, CLIP_LESS: UNKNOWN}
    role = Role.BASELINE if name == "ar" else Role.DECODER
    return Entry(name, role, Line(name, rows), figures)


def changed(made: Entry, **figures: Any) -> Entry:
    return replace(made, figures={**made.figures, **figures})


def run_of(specs: dict[str, dict[str, Any]], entries: list[Entry], name: str = "made") -> Run:
    decoders = [
        {"name": key, "spec": spec | {"name": key}, "sampling": {}} for key, spec in specs.items()
    ]
    section = Section("sampling", entries, "FID", "CLIP", margin=2.0)
    return Run(Path(name), "made@1", [section], pd.DataFrame(), {"config": {"decoders": decoders}})


def simulated(seed: int, effect: float) -> Run:
    """COOL-SD at delta 2 and 1.1 on one chain; the first is so many times as good in everything."""
    rng = np.random.default_rng(seed)
    prompts, moments = rng.normal(0, 0.15, IMAGES), np.exp(rng.normal(0, 0.1, BLOCKS))
    entries = [
        entry("mine", rng, prompts, 1.2 * effect, 2.1 * effect, moments=moments),
        entry("other", rng, prompts, 1.2, 2.1, moments=moments),
    ]
    return run_of({"mine": cool(2.0), "other": cool(1.1)}, entries)


def share_that_holds(claims: list[Claim], effect: float, runs: int) -> dict[str, float]:
    held = dict.fromkeys((claim.figure for claim in claims), 0)
    for seed in range(runs):
        for finding in judge(claims, [simulated(seed, effect)]):
            held[finding.claim.figure] += finding.verdict == HOLDS
    return {figure: number / runs for figure, number in held.items()}


def of_figures(by: float, published: float) -> list[Claim]:
    """The shipped claim about the two, in three figures."""
    claim = replace(CLAIMS["cool_delta"], by=by, published=published)
    return [replace(claim, figure=name) for name in ("speedup", "codes_per_forward", "forwards")]


def test_a_claim_of_no_effect_holds_in_at_most_one_run_of_twenty():
    for figure, share in share_that_holds(of_figures(1, 1.22), 1.0, runs=100).items():
        assert share <= 0.05, figure


def test_a_claim_of_the_published_size_holds_in_four_runs_of_five():
    claim = CLAIMS["cool_delta"]
    for figure, share in share_that_holds(
        of_figures(claim.by, claim.published), claim.published, runs=40
    ).items():
        assert share >= 0.8, figure


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


def still(name: str, speed: float, **more: Any) -> Entry:
    """A decoder whose figures do not scatter."""
    rng = np.random.default_rng(0)
    return entry(name, rng, np.zeros(IMAGES), speed, 2 * speed, moments=np.ones(BLOCKS), **more)


def test_of_several_pairs_and_runs_the_worst_verdict_counts():
    claim = replace(CLAIMS["cool_codes"], better=read_selector("acceptance=cool_sd"))
    specs = {"plain": BASE, "d1": cool(1.1), "d2": cool(2.0)}
    good = [still("plain", 1.0), still("d1", 1.1), still("d2", 1.4)]
    bad = [still("plain", 1.0), still("d1", 0.9), still("d2", 1.4)]
    (finding,) = judge([claim], [run_of(specs, good)])
    assert finding.verdict == HOLDS and [p.better for p in finding.pairs] == ["d1", "d2"]
    (finding,) = judge([claim], [run_of(specs, good), run_of(specs, bad, "again")])
    assert finding.verdict == FAILS
    assert (finding.decisive.run, finding.decisive.pair) == ("again", "d1 / plain")
    assert {*claim_rows([finding]).pair} == {HOLDS, FAILS}


def test_a_run_without_intervals_does_not_outvote_one_that_has_them():
    claim, specs = CLAIMS["cool_speed"], {"plain": BASE, "d2": cool(2.0)}
    pair = [still("plain", 1.0), still("d2", 1.4)]
    short = [e.rows[(e.rows.protocol != "latency") | (e.rows.block < 3)] for e in pair]
    few = [replace(e, line=Line(e.name, rows)) for e, rows in zip(pair, short, strict=True)]
    (finding,) = judge([claim], [run_of(specs, few)])
    assert (
        finding.verdict == NOT_TOLD and finding.decisive.note == "3 blocks a minute apart, not 10"
    )
    (finding,) = judge([claim], [run_of(specs, few), run_of(specs, pair)])
    assert finding.verdict == HOLDS


def test_a_speed_over_an_unfair_baseline_does_not_make_a_claim_hold():
    claim, specs = CLAIMS["eagle1_speed"], {"ar": AR, "mine": BASE}
    claim = replace(claim, better=read_selector("sd_chain"))
    ar = still("ar", 1.0, verdict="exact")
    for verdict, speed, judged in (
        ("fair", 2.0, HOLDS), ("unfair", 2.0, NOT_TOLD), ("unfair", 0.9, FAILS),
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
    assert by["traversal_codes"] == NOT_MEASURED and by["scd_gs_released"] == FAILS
    measured = replace(CLAIMS["sjd_released"], once="")
    assert "of 73 claims" in count([*findings, *judge([measured], [run])])


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
    assert finding.decisive.effect.value == pytest.approx(1.5)
    apart = [at("c1", 1.5, 0.1), at("c2", 3.0, 0.2), at("l5", 1.0, 0.3), at("l2", 2.0, 0.4)]
    (finding,) = judge([CLAIMS["cool_equal_tv"]], [run_of(specs, apart)])
    assert finding.verdict == NOT_TOLD and "no output TV that both reach" in finding.decisive.note


def test_an_unknown_effect_is_not_told():
    assert verdict_of(UNKNOWN, 1, 1, NAN) == NOT_TOLD and TABLE.is_file()
