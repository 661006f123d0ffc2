"""`python -m bench leaderboard`: checked records of two machines on one page."""

import csv
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.compare.leaderboard import Line, read_lines, sections
from bench.records.load import load
from tests.bench.compare.made import finished


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("records")
    finished(root / "first")
    finished(root / "deep" / "second", cpu="<script>x</script>", ungated="eagle2", antialias="no")
    return root


@pytest.fixture(scope="module")
def lines(both) -> list[Line]:
    return read_lines(both)[0]


def rows(section) -> list[tuple[str, str]]:
    return [(row.cells[0], row.cells[1]) for row in section.table.rows]


def test_what_compares_shares_a_table_and_the_rest_stands_apart(lines):
    speed, relaxed, one, two, apart, records = sections(lines, [])
    assert [row.cells[0] for row in records.table.rows] == ["deep/second", "first"]
    assert records.table.rows[0].cells[1].startswith("<script>x</script>")
    assert speed.title.startswith("Speed: ") and "temperature 1" in speed.title
    assert speed.title.endswith("exact division")
    assert relaxed.title == speed.title.replace("exact", "relaxed")
    assert {name for name, _ in rows(relaxed)} == {"lantern"}
    assert "quality" in relaxed.table.headings and "quality" not in speed.table.headings
    assert ("eagle2", "first") in rows(speed) and ("eagle2", "deep/second") not in rows(speed)
    assert {record for _, record in rows(one)} == {"deep/second"}
    assert {record for _, record in rows(two)} == {"first"}
    assert "antialias: no" in one.notes[0] and "antialias: yes" in two.notes[0]
    reasons = {key: row.cells[3] for key, row in zip(rows(apart), apart.table.rows, strict=True)}
    assert reasons["eagle2", "deep/second"] == "not checked"
    assert reasons["lantern_released", "first"].startswith("broken")
    assert len(reasons) == 3


def test_a_speed_up_that_may_be_chance_keeps_its_mark(both, lines):
    marked = [line | {"speedup_is_noise": line["decoder"] == "lantern"} for line in lines]
    speed, relaxed, *_ = sections(marked, [])
    assert all("≈" in row.cells[2] for row in relaxed.table.rows)
    assert not any("≈" in row.cells[2] for row in speed.table.rows)
    assert any("chance can explain" in note for note in relaxed.notes)
    assert not any("chance can explain" in note for note in speed.notes)
    run = load(both / "first")
    (section,) = run.sections
    noise = {e.name: section.speed_is_noise(e) for e in section.decoders}
    first = [line for line in lines if line["record"] == "first"]
    assert {line["decoder"]: line["speedup_is_noise"] for line in first} == noise


def test_equal_protocols_share_a_table(lines):
    first = [line for line in lines if line["record"] == "first"]
    twice = [*first, *(line | {"record": "again"} for line in first)]
    quality = [s for s in sections(twice, []) if s.title.startswith("Quality")]
    assert len(quality) == 1 and {record for _, record in rows(quality[0])} == {"first", "again"}


def test_the_page_the_csv_and_the_markdown(both, tmp_path, capsys):
    for ending, part in (("html", both), ("csv", both), ("md", both / "first")):
        assert main(["leaderboard", str(part), f"out={tmp_path / f'board.{ending}'}"]) == 0
    page = (tmp_path / "board.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "2 records" in page
    lines = list(csv.DictReader((tmp_path / "board.csv").read_text().splitlines()))
    assert len(lines) == 8
    assert {line["protocol_antialias"] for line in lines} == {"yes", "no"}
    assert "## Speed" in (tmp_path / "board.md").read_text()
    assert "leaderboard:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected one folder of records, found 0"),
        (["nowhere"], "there is no folder nowhere"),
        (["."], "no run.json below"),
        ([".", "out=board.pdf"], ".html, .csv, .md"),
        ([".", "ot=x.csv"], "out"),
    ],
)
def test_bad_words_are_explained(capsys, words, expected):
    assert main(["leaderboard", *words]) == 2
    assert expected in capsys.readouterr().err
