"""Projected speed-ups on a made-up run, and a run packed to be sent."""

import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from bench.analyse.analyse import load
from bench.analyse.floors import forwards
from bench.analyse.projection import cost_at, costs_of, projected
from bench.commands.report import cmd_report
from bench.errors import ConfigError
from bench.report.tables import projected_tables
from tests.bench.report.synthetic import DECODERS, altered, write_run


@pytest.fixture
def run(run):
    return altered(run, "lantern", lambda rows: rows.assign(tree_nodes=58))


def test_a_projection_is_codes_over_cost_and_drafting(run):
    (line,) = projected(run, costs_of("59:1.2"))
    entry = next(e for e in run.entries if e.name == "lantern")
    mal, rows = entry.number("mal"), entry.line.timed
    draft = (rows.seconds_draft / rows.nfe).median() / 8.25e-3  # AR's step of `synthetic`
    assert (line["decoder"], line["codes"], line["at_most"]) == ("lantern", 59, False)
    assert line["speedup"] == pytest.approx(mal / (1.2 + draft))
    assert line["break_even_ar_steps"] == pytest.approx(mal - draft)
    even = costs_of(f"59:{line['break_even_ar_steps']}")
    assert next(projected(run, even))["speedup"] == pytest.approx(1)
    untimed = replace(run, tables=run.tables | {"roofline": pd.DataFrame()})
    (line,) = projected(untimed, costs_of("59:1.2"))
    shown = replace(run, tables={"projected": pd.DataFrame([line])})
    ((row,),) = [table.rows for table in projected_tables(shown)]
    assert row.cells[1:3] == ["relaxed, projected", f"≤ {row.cells[2][2:]}"]
    assert line["at_most"] and line["speedup"] == pytest.approx(mal / 1.2)


def test_an_ar_step_is_the_baseline_s_whatever_else_takes_one_code(run):
    made = {"ar": (1, 2.0), "eagle2": (1, 3.0), "lantern": (5, 4.0)}
    lines = [
        {"decoder": name, "codes": codes, "forward_ms": ms, "step_ms": ms}
        for name, (codes, ms) in made.items()
    ]
    found = [
        (line["codes"], line["ar_steps"], line["decoders"])
        for line in forwards(run, pd.DataFrame(lines))
    ]
    assert found == [(1, 1.0, ["ar"]), (5, 2.0, ["lantern"])]


def test_costs_are_interpolated_and_nothing_is_guessed_beyond_them(run):
    assert cost_at(costs_of("5:1.4,9:2"), 7) == pytest.approx(1.7)
    assert cost_at(costs_of("5:1.4"), 3) == pytest.approx(1.2)
    assert math.isnan(cost_at(costs_of("5:1.4"), 6))
    (line,) = projected(run, costs_of("5:1.4"))
    assert math.isnan(line["speedup"]) and math.isfinite(line["break_even_ar_steps"])
    assert costs_of("1:1, 60:1.2") == {1: 1.0, 60: 1.2}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", "codes: .* integer.*'a'"), ("0:1", "codes: .* 1, found '0'"),
        ("60:0", "AR steps: .* 0, found '0'"), ("60:-1", "AR steps: .* 0, found '-1'"),
        ("60:nan", "AR steps: .* finite"), ("60:abc", "AR steps: .* number.*'abc'"),
        ("5:1.4,60", "'60' AR steps: "),
    ],
)  # fmt: skip
def test_a_cost_that_cannot_be_is_refused_with_what_is_expected_and_an_example(text, found):
    with pytest.raises(ConfigError, match=rf"cost={text}: in .*{found}.*; write cost=60:1\.2"):
        costs_of(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.2", "a run's folder or costs, found neither; write cost=60:1.2"),
        ("no/run", "a run's folder or costs, found neither; .*, or cost=RUN"),
        ("60:1.2, 1:2", "sizes above 1 code, .* found '1:2': .*; write cost=60:1.2"),
        ("60:1.2,60:1.3", "one cost of each size, .* found 60:1.2 and 60:1.3; correct"),
        ("60:0.5,9:1.2", "one cost .* no less of a larger one .* found 9:1.2 and 60:0.5; correct"),
        ("60:0.5", "one cost .* no less of a larger one .* found 1:1 and 60:0.5; correct"),
    ],
)
def test_costs_grow_with_the_size_from_the_unit_on(text, found):
    with pytest.raises(ConfigError, match=f"cost={text}: expected {found}"):
        costs_of(text)


def test_a_folder_that_is_no_run_has_no_costs(tmp_path):
    with pytest.raises(ConfigError, match=f"cost={tmp_path}: .* holds no run; .*cost=RUN"):
        costs_of(str(tmp_path))


def test_a_projected_table_has_the_fastest_first_and_every_verdict(run):
    run = altered(run, "eagle2", lambda rows: rows.assign(tree_nodes=9))
    orders = []
    for costs in ("10:1.1,59:1.2", "10:1.1,59:9", "10:1.1"):
        shown = replace(run, tables={"projected": pd.DataFrame(projected(run, costs_of(costs)))})
        ((first, second),) = [table.rows for table in projected_tables(shown)]
        assert {(row.cells[0], row.cells[1]) for row in (first, second)} == {
            ("lantern", "relaxed, projected"), ("eagle2", "exact, projected")
        }  # fmt: skip
        orders.append(first.cells[0])
    assert orders == ["lantern", "eagle2", "eagle2"], "without a cost lantern is not known"


def test_a_pack_is_a_run_by_itself_without_a_dead_link(tmp_path):
    few = tuple(made for made in DECODERS if made.name in ("ar", "eagle2", "lantern"))
    folder, out = write_run(tmp_path / "run", few, prompts=2), tmp_path / "pack"
    (folder / "summary.csv").write_text("decoder")
    assert cmd_report([str(folder), f"out={out}", "pack=true", "cost=60:1.2"]) == 0
    folder.rename(tmp_path / "gone")
    for page in (out / "index.html", *out.glob("prompts/*.html")):
        for link in re.findall(r'href="([^"#]+)', page.read_text()):
            assert (page.parent / link).resolve().is_relative_to(out)
            assert (page.parent / link).is_file()
    assert len([*out.glob("images/*/quality/*.png")]) == 2 * 3
    assert {entry.name for entry in load(out).entries} >= {"ar", "lantern"}
    for words in ([], [f"out={out / 'more'}"]):  # nowhere, and in the run itself
        with pytest.raises(ConfigError, match="out=DIR"):
            cmd_report([str(out), "pack=true", *words])
