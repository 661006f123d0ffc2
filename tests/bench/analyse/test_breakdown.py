"""Acceptance by depth and figures by category, on rows with known answers."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.analyse.analyse import analyse
from bench.analyse.breakdown import by_category, by_confidence, by_depth
from bench.report.plots import reliability
from bench.report.style import inline
from bench.report.tables import category_tables, reliability_tables
from bench.store.facts import read_findings
from decoders.api import CodeKind
from tests.bench.report.synthetic import altered


def test_depths_count_whole_steps(run):
    def change(rows):
        return rows.iloc[:3].assign(
            tree_depth=2, seed=[0, 1, 2], protocol="quality",
            accepted=[[2, 0, 1], [1, 2, 0, -1, -1], [0, 0]],
        )  # fmt: skip

    table = pd.DataFrame(by_depth(altered(run, "lantern", change)))
    first, second = (line for _, line in table[table.decoder == "lantern"].iterrows())
    assert (first.depth, first.steps) == (1, 5) and first.accepted == pytest.approx(3 / 5)
    assert 0 <= first.accepted_lo <= first.accepted <= first.accepted_hi <= 1
    assert (second.depth, second.steps) == (2, 3) and second.accepted == pytest.approx(2 / 3)
    assert "ar" not in {*table.decoder}


def labelled(run, choose):
    """The run analysed anew, with categories of prompts by their indices."""
    rows = run.rows.assign(category=choose(run.rows.prompt_index))
    return analyse(run.folder, rows, run.identity, read_findings(run.folder))


def test_categories_pair_the_prompts_of_each(run):
    assert not [*by_category(run)], "prompts of one category"
    run = labelled(run, lambda index: np.where(index % 2, "odd", "even"))
    table = run.tables["categories"]
    assert {*table.category} == {"even", "odd"}
    odd = table[(table.decoder == "lantern") & (table.category == "odd")].iloc[0]
    lantern = next(e for e in run.entries if e.name == "lantern")
    rows = lantern.line.images[lantern.line.images.prompt_index % 2 == 1]
    assert odd.mal == pytest.approx((rows.mal * rows.nfe).sum() / rows.nfe.sum())
    assert 1.5 < odd.speedup < 3.5, "2.4 s against 1.02 s"
    assert (table[table.decoder == "ar"].speedup == 1).all(), "as in the main table"


def test_a_category_of_one_image_has_its_figure_without_an_interval(run):
    run = labelled(run, lambda index: np.where(index == 3, "alone", "other"))
    table = run.tables["categories"]
    alone = table[(table.decoder == "lantern") & (table.category == "alone")].iloc[0]
    assert math.isfinite(alone.mal) and math.isnan(alone.mal_lo) and math.isfinite(alone.speedup)
    (shown,) = category_tables(run)
    row = next(r.cells for r in shown.rows if r.cells[:2] == ["lantern", "alone"])
    assert row[shown.headings.index("codes per forward")] == f"{alone.mal:.2f}"


def test_confidences_are_compared_with_what_was_accepted(run):
    """One draft per step: those of confidence 0.8 are accepted in 3 of 4, those of 0.3 in none."""
    assert not [*by_confidence(run)] and not reliability_tables(run) and reliability(run) is None
    sure = [math.nan, *[0.8, 0.3] * 40]
    drafts = [CodeKind.DRAFT, CodeKind.CORRECTED] * 30 + [CodeKind.CORRECTED] * 20

    def change(rows):
        return rows.iloc[:2].assign(
            seed=[0, 1], protocol="quality", kind=[[CodeKind.TARGET, *drafts]] * 2,
            step=[[*range(81)]] * 2, confidence=[sure, []],
        )  # fmt: skip

    lines = [*by_confidence(altered(run, "lantern", change))]
    found = replace(run, tables={"reliability": pd.DataFrame(lines)})
    ((table,), plot) = reliability_tables(found), reliability(found)
    assert [row.cells for row in table.rows] == [["lantern", "1", "80", "0.550", "0.375", "0.175"]]
    assert plot is not None and ">depth 1<" in inline(plot)
