"""A report of a machine that does not say what other programs take of it."""

from dataclasses import replace

import pandas as pd

from bench.analyse.run import Run
from bench.analyse.tables import load
from bench.report.texts import plain, summarise


def said(run: Run, **columns: object) -> str:
    run = replace(run, rows=run.rows.assign(**columns))
    tables = run.tables | {"load": pd.DataFrame([*load(run)])}
    return " ".join(plain(summarise(replace(run, tables=tables))).split())


def test_timings_that_nobody_knows_to_be_quiet_are_called_so(run):
    unknown = said(run, cpu_others=float("nan"), cpu_steal=float("nan"), disturbed=False)
    assert "nobody knows which of the 40 timings they disturbed" in unknown
    assert "nobody knows" not in said(run, cpu_others=0.02, cpu_steal=0.0)
