"""published.csv and names.yaml: what is refused, and what contradicts a number."""

import pytest

from bench.compare import published as table
from bench.compare.published import PublishedError, others
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
    vvs = next(r for r in rows if r.paper == "VVS" and r.settings.get("delta") == 0.3)
    assert vvs.figures["recall"] == 0.6438 and vvs.settings == {"k": 1000, "delta": 0.3}
    assert headline.cfg is None, "an empty cell is not stated, not zero"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("speedup", "fast", "must be a number, found 'fast'"),
        ("params", "k=1 delta", "words such as k=1000"),
        ("baseline", "", "the baseline that it is over"),
        ("paper", "", "paper is missing"),
    ],
)
def test_a_bad_cell_is_named_by_its_line(tmp_path, column, value, said):
    path = write(tmp_path / "p.csv", GOOD, GOOD | {"paper": "B", column: value})
    with pytest.raises(PublishedError) as error:
        table.load(path)
    assert "line 3" in str(error.value) and said in str(error.value)


def test_a_column_that_is_not_known_is_named_with_the_nearest(tmp_path):
    path = write(tmp_path / "a.csv", {"paper": "A", "speed_up": "2"}, columns=("paper", "speed_up"))
    with pytest.raises(PublishedError, match=r"did you mean .*speedup"):
        table.load(path)


def test_a_contradiction_in_the_shipped_numbers_is_said():
    rows = table.load()
    vvs = next(r for r in rows if r.paper == "VVS" and r.method == "EAGLE-2")
    assert others(vvs, "speedup", rows) == ["other sources give 0.93 (LANTERN)"]
