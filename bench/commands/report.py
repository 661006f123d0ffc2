"""`python -m bench report`: table, plots and page of a run, or of several, again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bench.analyse.analyse import load, pooled
from bench.analyse.projection import costs_of, projected
from bench.analyse.replicates import replicate_of, replicates_in
from bench.analyse.run import Run
from bench.analyse.tables import EXPORTED
from bench.compare.claim_tables import claims_of
from bench.config.arguments import RUNS, divided, folders, listed
from bench.config.compose import compose_study
from bench.console import say
from bench.errors import ConfigError
from bench.report.page import PlaceSettings, check_place, write_report
from bench.run.study import read_unfinished
from bench.store.columns import MERGED
from bench.store.facts import FINDINGS, STUDY, read_study, require_same
from metrics.replicates import narrower

MANY = 5  # replicates of a table to publish


def cmd_report(arguments: Sequence[str]) -> int:
    """Table, plots and page again, also while a run goes on: report [RUN RUN ...].
    Takes the arguments of a run, or its folder. Several folders, of finished replicates of a study
    on one machine (replicate=1, ...), make one report, whose figures are of all of them.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME   which study (`list study`; default: main)
      run_dir=DIR  the run's folder (default: results/runs/<study>)
      name=X       the run in results/runs/X
      out=DIR      where the report goes; nothing is then written into the run's folder
      columns=[A]  columns of table.tex, by their headings: columns=[speed-up,output TV]
      cost=N:X,... projects speed-ups: a forward of N codes costs X AR steps; or the folder of a run
                   that measured it (study=gpu_costs)
      pack=true    with out=DIR: puts the run's pictures and facts there too, to give it away; of
                   replicates each one's

    example:
      python -m bench report results/runs/main results/runs/main-1 out=results/pooled
      python -m bench report results/runs/main out=results/runs/projected cost=60:1.2
      python -m bench report study=smoke
    """
    place, arguments = divided(PlaceSettings, arguments)
    check_place(place.out)
    places, arguments = folders(arguments)
    key, _, value = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    folder = {"run_dir": Path(value), "name": RUNS / value}.get(key)
    if folder is not None and ((folder / STUDY).is_file() or replicates_in(folder)):
        places, arguments = [*places, folder], []
    if places and arguments:
        raise ConfigError(
            f"expected run folders or the settings of a run, found both: {' '.join(arguments)}"
        )
    if not places:
        config = compose_study(arguments)
        places = [Path(config.run_dir)]
        require_same(places[0], {"config_hash": config.hash, "config": config.measured()})
    if len(places) == 1:
        run = read_unfinished(places[0]) or load(places[0])
    else:
        if place.out is None:
            raise ConfigError("a report of several runs belongs to none of them: say out=DIR")
        run = pooled(places, place.out)
    if place.cost is not None:
        lines = projected(run, costs_of(place.cost))
        run = replace(run, tables=run.tables | {"projected": pd.DataFrame([*lines])})
    if place.pack:
        run = packed(run, place.out)
    show_report(run, place.out, None if place.columns is None else listed(place.columns))
    if 1 < (count := len(run.folders)) < MANY:
        share = narrower(count, MANY)
        say(f"with {MANY} replicates intervals of speed-ups would be {share:.2f} times as wide")
    return 0


def packed(run: Run, out: Path | None) -> Run:
    """Copies the facts, exports and pictures of a finished run to where its report goes, those of
    replicates into folders named by their numbers, so that the folder is read as the run is;
    returns the run there. Raises ConfigError."""
    sources, place = run.folders or (run.folder,), (out or Path()).resolve()
    apart = not any(
        place.is_relative_to(source) or source.is_relative_to(place)
        for source in map(Path.resolve, sources)
    )
    if out is None or not apart or not all((source / MERGED).is_file() for source in sources):
        raise ConfigError(
            "pack=true packs a finished run, or replicates: name it, and with out=DIR a folder "
            "that is not in it and does not hold it"
        )
    names = (STUDY, FINDINGS, MERGED, *(f"{name}.csv" for name in EXPORTED))
    copies, pictures = list[Path](), 0
    for source in sources:
        copies.append(out / f"{replicate_of(read_study(source))}" if run.folders else out)
        drawn = [*source.glob("images/*/*/*")]
        pictures += len(drawn)
        for file in filter(Path.is_file, [*(source / name for name in names), *drawn]):
            copy = copies[-1] / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    if not pictures:
        say("packed without pictures: the run's folder holds none")
    return replace(run, folder=out, folders=tuple(copies) if run.folders else ())


def show_report(run: Run, folder: Path | None = None, columns: Sequence[str] | None = None) -> None:
    """Writes the report of a run and shows its text."""
    written = write_report(run, folder, columns, [*filter(None, [claims_of(run)])])
    say((written / "table.txt").read_text(encoding="utf-8"))
    say(f"report: {written / 'index.html'}")
