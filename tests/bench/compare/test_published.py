"""published.csv and names.yaml: what is refused, and which published numbers disagree."""

import pytest

from bench.compare import published as table
from bench.compare.published import COLUMNS, PublishedError, disagreements, load_names
from tests.bench.compare.files import write

GOOD = {
    "paper": "A", "arxiv": "2410.03355", "evidence": "table 2", "model": "M", "temperature": "1",
    "method": "LANTERN", "params": "k=1000 delta=0.3", "baseline": "AR", "speedup": "1.5",
}  # fmt: skip


def test_the_shipped_numbers_load_and_keep_their_sources():
    rows = table.load()
    assert len(rows) == len(table.DEFAULT.read_text().splitlines()) - 1
    assert all(row.evidence and row.arxiv for row in rows)
    (headline,) = [r for r in rows if r.evidence == "abstract v3" and r.temperature == 1]
    assert (headline.baseline, headline.figures) == ("EAGLE-2", {"speedup": 1.82})
    vvs = next(r for r in rows if r.paper == "VVS" and r.params.get("delta") == 0.3)
    assert vvs.figures["recall"] == 0.6438 and vvs.params == {"k": 1000, "delta": 0.3}
    assert headline.cfg is None, "an empty cell is not stated, not zero"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("speedup", "fast", "must be a number, found 'fast'"),
        ("arxiv", "hep-th/9711200", "expected an id such as"),
        ("params", "k=1 k=2", "each key once"),
        ("baseline", "", "a speed-up needs what it is over"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(tmp_path, column, value, said):
    path = write(tmp_path / "p.csv", GOOD, GOOD | {"paper": "B", column: value})
    with pytest.raises(PublishedError) as error:
        table.load(path)
    assert f"line 3, column {column}" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        ([GOOD | {"speed_up": "2"}], ("paper", "speed_up"), "did you mean 'speedup'"),
        ([GOOD, GOOD], COLUMNS, "line 3: the same as line 2"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, rows, columns, said):
    known = [{key: row[key] for key in row if key in columns} for row in rows]
    with pytest.raises(PublishedError, match=said):
        table.load(write(tmp_path / "a.csv", *known, columns=columns))


def test_contradictions_in_the_shipped_numbers_are_found():
    found = {item.title: item for item in disagreements(table.load(), load_names().families)}
    eagle = found["speed-up over AR of EAGLE-2 on LlamaGen-XL stage I, temperature 1"]
    assert eagle.text == "published numbers disagree: 0.87..0.93 (LANTERN, VVS)"
    abstract = found["speed-up over EAGLE-2 of LANTERN on LlamaGen-XL stage I, temperature 1"]
    assert "1.76..1.82" in abstract.text and abstract.sure
    fid = found["FID of EAGLE-2 on LlamaGen-XL stage II, temperature 1"]
    assert not fid.sure, "one of the two papers states no temperature"
