"""A report of a machine that does not say what other programs take of it."""

from dataclasses import replace

from bench.report.texts import summarise, terminal


def test_timings_that_nobody_knows_to_be_quiet_are_called_so(run):
    rows = run.rows.assign(cpu_others=float("nan"), cpu_steal=float("nan"), disturbed=False)
    said = " ".join(terminal(summarise(replace(run, rows=rows))).split())
    assert "nobody knows which of the 40 timings they disturbed" in said
    known = run.rows.assign(cpu_others=0.02, cpu_steal=0.0)
    assert "nobody knows" not in terminal(summarise(replace(run, rows=known)))
