"""The committed runs give the figures that were committed with them, to the last digits."""

from pathlib import Path

import pandas as pd
import pytest

from bench.analyse.analyse import load

TABLES = Path(__file__).parents[3] / "results" / "tables"
RUNS = sorted(path.parent for path in TABLES.rglob("study.json"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder.relative_to(TABLES)))
def test_the_facts_of_a_run_give_its_committed_summary(folder: Path) -> None:
    wanted = pd.read_csv(folder / "summary.csv", keep_default_na=False)
    found = {entry.name: entry for entry in load(folder).entries}
    assert [*found] == [*wanted.decoder]
    for line in wanted.to_dict("records"):
        entry = found[line["decoder"]]
        for column, value in line.items():
            if isinstance(entry.line[column], str):
                assert entry.text(column) == str(value), column
            else:
                number = float("nan") if value == "" else float(value)
                assert entry.number(column) == pytest.approx(number, rel=1e-9, nan_ok=True), column


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder.relative_to(TABLES)))
def test_no_decoder_of_a_committed_run_is_broken(folder: Path) -> None:
    assert "broken" not in {entry.word for entry in load(folder).entries}
