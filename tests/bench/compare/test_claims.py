"""Claims of papers: rows are refused with their line, and selectors mean what they say."""

from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from bench.compare.claims import COLUMNS, Claim, comparable, load_claims, read_selector
from bench.config.compose import compose_study
from bench.store.facts import flat
from decoders.errors import DecoderError
from tests.bench.compare.made_runs import AR, BASE, EAGLE3, lantern, part

CLAIMS = {claim.id: claim for claim in load_claims()}


# ---- claims.csv ---------------------------------------------------------------------------------


def test_the_shipped_claims_have_a_source_and_most_a_size():
    claims = [*CLAIMS.values()]
    assert len(claims) >= 25 and len({claim.arxiv for claim in claims}) >= 16
    sized = [claim for claim in claims if claim.published == claim.published]
    assert len(sized) >= 25 and all(claim.source for claim in claims)
    assert all(claim.neutral < claim.by < claim.published for claim in sized)
    assert {claim.kind for claim in sized} <= {"ratio", "difference"}, "no other size is compared"
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
        if claim.figure == "not_worse" and "tree" not in claim.says:
            targets = {k: v for k, v in claim.better.targets.items() if k != "tree"}
            any_tree = replace(claim.better, targets=targets)
            assert first == [spec for spec in specs.values() if any_tree.matches(spec)], claim.id
        if claim.figure == "speedup_at_tv":
            assert len(first) > 1 < len(second), claim.id
            continue
        pairs = [
            (a, b) for a in first for b in second if comparable(claim.better, a, claim.than, b)
        ]
        assert pairs or (claim.than is None and first), claim.id


@pytest.mark.parametrize("study", ["lantern_table", "lantern_afternoon"])
def test_lanterns_claims_are_judged_by_its_own_table(study):
    """Its speed-ups by the rows of the stated delta alone."""
    specs = {one.name: flat(asdict(one.spec)) for one in compose_study([f"study={study}"]).decoders}
    for name in ("lantern_codes", "lantern_speed", "lantern_over_ar", "lantern_delta_codes"):
        claim = CLAIMS[name]
        better = {
            one
            for one, spec in specs.items()
            if claim.better.matches(spec)
            and any(
                claim.than.matches(other) and comparable(claim.better, spec, claim.than, other)
                for other in specs.values()
            )
        }
        assert "lantern_released_d0.3" in better, name
        fast = {"lantern_speed", "lantern_over_ar"} & {name}
        assert not fast or all(specs[one]["acceptance.delta"] >= 0.3 for one in better)


ROW = {"id": "mine", "paper": "P", "arxiv": "1", "says": "A beats B", "figure": "speedup",
       "better": "lantern tree=chain", "than": "eagle2 tree=chain",
       "published": "1.5", "within": "", "source": "table 1", "needs": "main",
       "once": ""}  # fmt: skip


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
        ("figure", "acceptance", "must be acceptance@DEPTH"),
        ("figure", "speedup@2", "must be acceptance@DEPTH"),
        ("better", "lanterne", "unknown decoder 'lanterne'; did you mean 'lantern'"),
        ("better", "tree=chains", "unknown tree 'chains'; did you mean 'chain'"),
        ("better", "drafter>=any", "expected drafter=option, found 'drafter>=any'"),
        ("better", "acceptance.detla=0.2", "did you mean 'acceptance.delta'"),
        ("better", "lantern acceptance.lam=2", "unknown setting 'acceptance.lam'"),
        (
            "better",
            "acceptance.delta=abc",
            "valid number, found 'abc' (str) (known too: larger, smaller, any)",
        ),
        ("better", "acceptance.delta=[", "acceptance.delta: Input should be a valid number"),
        (
            "better",
            "acceptance.metric=l3",
            "acceptance.metric: Input should be 'l2', 'cosine', 'raw' or 'random', found 'l3'",
        ),
        ("better", "proposer.window>=65", "proposer.window: Input should be less than or equal"),
        ("better", "acceptance.delta>=x", "expected a number in acceptance.delta, found '>=x'"),
        ("better", "acceptance.metric=larger", "'raw' or 'random', found 'larger'"),
        ("better", "acceptance.metric>=l2", "expected = in acceptance.metric, found '>=l2'"),
        ("better", "loop.parallel=maybe", "found 'maybe' (str); write true or false"),
        ("better", "acceptance.delta=larger", None),
        ("better", "lantern fast", "expected part=option or part.setting=value, found 'fast'"),
        ("better", "", "must be a selector, where `once` does not say what was found"),
        ("than", "", "must be a selector: what it is better than, found ''"),
        ("published", "abc", "must be empty or a number above 1, found 'abc'"),
        ("published", "0.9", "must be empty or a number above 1, found '0.9'"),
        ("published", "nan", "must be empty or a number above 1, found 'nan'"),
        ("within", "-", "must be empty or a number above 0, found '-'"),
        ("within", "0", "must be empty or a number above 0, found '0'"),
        ("within", "0.05", "must be empty where a size is published, found '0.05'"),
        ("needs", "mian", "unknown study 'mian'; did you mean 'main'"),
        ("needs", "", "must be the study that measures it"),
        ("id", "a b", "must be letters, digits and _, found 'a b'"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, column, value, said):
    other = ROW | {"id": "other", column: value}
    if said is None:
        column, said = "than", "must be a selector that says smaller where `better` says larger"
    with pytest.raises(DecoderError, match=rf"claims.csv:3\.{column} ") as error:
        written(tmp_path, ROW, other)
    assert said in str(error.value) and "correct it in" in str(error.value)


def test_two_claims_of_one_name_and_other_columns_are_refused(tmp_path):
    with pytest.raises(DecoderError, match=r"claims.csv:3.id must be new, found 'mine'.* line 2"):
        written(tmp_path, ROW, ROW)
    with pytest.raises(DecoderError, match=r"claims.csv:1 must have the columns id, paper"):
        written(tmp_path, {"id": "mine"})
    for before in (0, 1):
        rows = [",".join(COLUMNS), *[",".join(COLUMNS)] * before, "a," * len(COLUMNS) + "b,c"]
        (tmp_path / "claims.csv").write_text("\n".join(rows))
        with pytest.raises(DecoderError, match=r"a table of \d+ columns .* a comma in quotes"):
            load_claims(tmp_path / "claims.csv")


@pytest.mark.parametrize(("line", "column"), [("", "id"), ("mine,P,1", "says")])
def test_a_line_of_too_few_cells_is_named(tmp_path, line, column):
    path = tmp_path / "claims.csv"
    path.write_text("\n".join([",".join(COLUMNS), line, ",".join("a" for _ in COLUMNS)]))
    with pytest.raises(DecoderError, match=rf"claims.csv:2\.{column} must be given, found ''"):
        load_claims(path)


def test_a_figure_of_one_decoder_has_no_other_side_and_no_size(tmp_path):
    alone = ROW | {"figure": "lossless", "than": "", "published": ""}
    assert written(tmp_path, alone)[0].than is None
    with pytest.raises(DecoderError, match="than must be empty for lossless"):
        written(tmp_path, alone | {"than": "ar"})
    with pytest.raises(DecoderError, match="published must be empty for lossless"):
        written(tmp_path, alone | {"published": "1.2"})


@pytest.mark.parametrize(
    ("figure", "published", "least"),
    [("speedup", "4", 2), ("clip", "0.4", 0.2), ("speedup", "", 1), ("clip", "", 0)],
)
def test_the_least_size_is_half_of_the_published_one(tmp_path, figure, published, least):
    (claim,) = written(tmp_path, ROW | {"figure": figure, "published": published})
    assert claim.by == pytest.approx(least)


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
