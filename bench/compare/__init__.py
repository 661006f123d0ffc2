"""Compares runs with other numbers: the papers' and another run's.

    published.py    published.csv, its contradictions, and what its names are called here
    pairs.py, verdicts.py, compare.py                 `bench compare`
    significance.py, diff.py                          `bench diff`

Why a folder: the papers' numbers contradict each other, leave settings out and were taken on other
GPUs against other baselines; two runs differ in their hour and machine. A table that only puts two
numbers in one line misleads, so each figure is compared, or left out with the reason.
"""
