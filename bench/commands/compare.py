"""`python -m bench compare`: a run and the papers' numbers (`bench.compare.compare`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.analyse.analyse import load
from bench.compare.compare import (
    COLUMNS,
    LEGEND,
    NOT_COMPARABLE,
    VERDICTS,
    compare,
    require_current,
)
from bench.compare.published import load_names, load_published
from bench.config.arguments import RUNS, settings
from bench.console import say
from bench.data.errors import ConfigError
from bench.data.files import prepare_folder, write_text
from bench.report.table import table_of, terminal
from decoders.kinds import Within


@dataclass(frozen=True)
class CompareSettings:
    study: str | None = None
    run_dir: Path | None = None
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(arguments: Sequence[str]) -> int:
    """A run and the papers' numbers: reproduced, or not, or not told, or why not comparable.
    With out=DIR it writes compare.csv, with the grounds of every verdict.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where compare.csv goes; without it nothing is written

    example:
      python -m bench compare run_dir=results/runs/main tolerance=0.05
    """
    options = settings(CompareSettings, arguments)
    if options.study and options.run_dir:
        raise ConfigError("study and run_dir each name a run; keep one of them")
    run = load(options.run_dir or RUNS / (options.study or "main"))
    require_current(run)
    names = load_names()
    found = compare(load_published(names["figures"]), run, names, options.tolerance)
    if options.out:
        prepare_folder(options.out)
    counts = ", ".join(f"{(found.verdict == word).sum()} {word}" for word in VERDICTS)
    say(f"{run.study}: {run.folder}\npublished figures: {counts}\n")
    apart = found.verdict == NOT_COMPARABLE
    if not apart.all():
        say(f"{terminal(table_of(COLUMNS, found[~apart].itertuples()))}\n{LEGEND}")
    models = sorted({*run.rows.model})
    named = [n for model in models for n in names["models"].get(model, {"names": ()})["names"]]
    if not found.model.isin(named).any():
        say(f"not comparable: no paper measured {', '.join(models)}, the model of this run")
    else:
        by_reason = found[apart].groupby(found.why.str.partition(";")[0])
        for why, group in sorted(by_reason, key=lambda item: -len(item[1])):
            say(f"not comparable, {len(group)} of {', '.join(group.paper.unique())}: {why}")
    if options.out:
        text = found.drop(columns=["line", "entry", "parts"]).to_csv(index=False)
        say(f"grounds and sources: {write_text(options.out / 'compare.csv', text)}")
    else:
        say("out=DIR writes the grounds and sources of all verdicts")
    return 0
