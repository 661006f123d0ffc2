"""A report of a machine that does not say what other programs take of it."""

from bench.analyse.analyse import analyse
from bench.report.texts import plain, summarise
from bench.store.facts import Findings


def test_timings_that_nobody_knows_to_be_quiet_are_called_so(run):
    unknown = run.rows.assign(cpu_others=float("nan"), cpu_steal=float("nan"), disturbed=False)
    known = run.rows.assign(cpu_others=0.02, cpu_steal=0.0)
    says = [
        " ".join(plain(summarise(analyse(run.folder, rows, run.identity, Findings()))).split())
        for rows in (unknown, known)
    ]
    assert "nobody knows which of the 40 timings they disturbed" in says[0]
    assert "nobody knows" not in says[1] and "others took 2 % of the cores" in says[1]
