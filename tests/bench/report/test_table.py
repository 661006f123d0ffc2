"""The table writer: one set of columns and rows in every format."""

import math
from typing import Any

from bench.report.table import (
    APART,
    Column,
    Row,
    Table,
    csv_text,
    figures,
    filled,
    intervals,
    latex,
    markdown,
    number,
    percent,
    terminal,
)
from metrics.stats import Interval

NAN = math.nan
ROWS: list[dict[str, Any]] = [
    {"name": "a_b", "seconds": Interval(1.0, 0.5, 1.5), "share": 0.123},
    {"name": "c|d", "seconds": Interval(NAN, NAN, NAN), "share": NAN},
    {"name": "e", "seconds": Interval(2.0, NAN, NAN), "share": 1.0},
]
COLUMNS = (
    Column("name", "decoder", words=True),
    Column("seconds", "s", intervals(2)),
    Column("", "ms", lambda row: figures(0, 1e3)(row["seconds"].value)),
    Column("share", "share", percent),
)


def test_one_table_reads_the_same_in_the_terminal_and_in_files():
    table = filled(COLUMNS, ROWS, "Times")
    title, head, _, *lines = terminal(table).splitlines()
    assert (title, head.split()) == ("Times", ["decoder", "s", "ms", "share"])
    assert lines[0].split("  ")[0] == "a_b" and "1.00 [0.50, 1.50]" in lines[0]
    assert lines[1].split() == ["c|d", "—", "—", "—"] and "[" not in lines[2]
    text = markdown(table)
    assert text.startswith("**Times**\n\n| decoder | s | ms | share |\n|:--|--:|--:|--:|\n")
    assert r"| a\_b | 1.00 [0.50, 1.50] | 1000 | 12.3 % |" in text and r"c\|d" in text
    page = latex(table, "All & more")
    assert r"a\_b & 1.00 [0.50, 1.50] & 1000 & 12.3 \% \\" in page and r"All \& more" in page


def test_a_failed_row_keeps_its_error_and_a_reseed_stands_apart():
    rows = [Row(["a", ""], "failed", "failed: no_weights"), Row(["b", "1"], APART)]
    table = Table("", [Column("", "decoder"), Column("", "s")], rows)
    assert terminal(table).splitlines()[2] == "a        failed: no_weights"
    text = markdown(table)
    assert r"| a | **failed**: no\_weights |" in text and "| *b* | *1* |" in text
    assert r"\multicolumn{1}{l}{\emph{failed: no\_weights}}" in latex(table, "")


def test_a_csv_has_full_precision_and_the_ends_of_intervals():
    text = csv_text([{"name": "a,b", "speedup": Interval(1 / 3, 0.25, 0.5), "mal": 2.0}])
    assert text == f'name,speedup,speedup_lo,speedup_hi,mal\n"a,b",{1 / 3},0.25,0.5,2.0\n'


def test_an_absent_figure_is_a_dash_and_others_have_sensible_decimals():
    shown = {NAN: "—", 0.0: "0.000", 0.00213: "0.0021", 123.456: "123.5"}
    assert {value: number(value) for value in shown} == shown
