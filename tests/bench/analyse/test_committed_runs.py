"""The committed runs give the figures that were committed with them, to the last digits."""

from pathlib import Path

import pandas as pd
import pytest

from bench.analyse.analyse import load

TABLES = Path(__file__).parents[3] / "results" / "tables"
RUNS = sorted(path.parent for path in TABLES.rglob("study.json"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder.relative_to(TABLES)))
def test_a_run_gives_its_committed_summary_and_none_is_broken_by_surprise(
    folder: Path,
) -> None:
    wanted = pd.read_csv(folder / "summary.csv", dtype=str, keep_default_na=False)
    run = load(folder)
    broken = {entry.name for entry in run.entries if entry.word == "broken"}
    assert broken == {name for name, one in run.gate.items() if one.expected == "broken"}
    found = run.tables["summary"]
    assert [*found.decoder] == [*wanted.decoder]
    for column in wanted.columns.drop("mal_expected", errors="ignore"):  # no figure any more
        values = found[column]
        if values.dtype == float:
            numbers = [float(cell or "nan") for cell in wanted[column]]
            assert [*values] == pytest.approx(numbers, rel=1e-9, nan_ok=True), column
        else:
            assert [*values] == [*wanted[column]], column
