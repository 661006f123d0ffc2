"""Measured beside published: `python -m bench compare`.

    table.py      results/published/published.csv (in a wheel: data/published.csv), validated
    names.py      results/published/names.yaml: what the papers' models and methods are called here
    measured.py   a run's summary.csv, with its records where they are there
    match.py      which measured rows a published row speaks of, and what keeps them apart
    judge.py      the verdict on one figure: reproduced, not reproduced, not comparable and why
    disagree.py   published rows of one thing that give several numbers
    write.py, plot.py, command.py

Why a room: the papers' numbers contradict each other, leave settings out and were taken on other
GPUs against other baselines; a table that only puts two numbers side by side misleads.
"""
