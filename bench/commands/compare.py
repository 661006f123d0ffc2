"""`python -m bench compare`: which claims of papers hold in runs, and the published figures beside
those of one run; as text and, in out=DIR, as Markdown and CSV."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml

from bench.analyse.analyse import load
from bench.analyse.run import Run
from bench.compare.claim_tables import LEGEND as CLAIMS_LEGEND
from bench.compare.claim_tables import claim_page, claim_rows, claim_table, count
from bench.compare.claims import load_claims
from bench.compare.compare import NOT_COMPARABLE, VERDICTS, compare
from bench.compare.judging import NOT_MEASURED, judge
from bench.compare.published import load_names, load_published
from bench.config.arguments import RUNS, folders, groups, settings
from bench.console import say
from bench.errors import ConfigError
from bench.files import prepare_folder, write_text
from bench.report.table import Column, interval, number, table_of, terminal
from bench.report.texts import fill
from decoders.kinds import Within

LEGEND = """reproduced: our whole 95 % interval is within the tolerance around the published figure
not reproduced: no part of it is. not told: a part of it is, or there is no interval
*: the source leaves something unstated, and the verdict assumes it (compare.csv)
Papers measure over an eager AR without warm-up; AR is fast here: expect smaller speed-ups."""


@dataclass(frozen=True)
class CompareSettings:
    study: str | None = None
    run_dir: Path | None = None
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(arguments: Sequence[str]) -> int:
    """Papers and runs: do claims hold, are figures reproduced? compare [RUN RUN ...].
    Claims are judged on one run or several, whatever the model. Of one run the figures are compared
    with published ones too: reproduced, or not, or not told, or why not comparable.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where claims.md, claims.csv and, of one run, compare.csv go, with the grounds
                      of every verdict; without it nothing is written

    example:
      python -m bench compare results/runs/main results/runs/exact out=results/compared
      python -m bench compare study=lantern_table tolerance=0.05
    """
    places, rest = folders(arguments)
    options = settings(CompareSettings, rest)
    if len([*filter(None, (options.study, options.run_dir, places))]) > 1:
        raise ConfigError("folders, study and run_dir each name runs; keep one of them")
    places = places or [options.run_dir or RUNS / (options.study or "main")]
    runs = [load(place) for place in places]
    if options.out:
        prepare_folder(options.out)
    say_claims(runs, options.out, shlex.join(["python", "-m", "bench", "compare", *arguments]))
    if len(runs) == 1:
        say_figures(runs[0], options)
    if not options.out:
        say("out=DIR writes the grounds and sources of all verdicts")
    return 0


def say_claims(runs: Sequence[Run], out: Path | None, command: str) -> None:
    """Says which claims of papers hold in these runs, and which study measures the others."""
    findings = judge(load_claims(), runs)
    say(f"claims: {count(findings)}\n")
    judged = [one for one in findings if one.verdict != NOT_MEASURED]
    if judged:
        say(f"{terminal(claim_table(judged, len(runs)))}\n{fill(CLAIMS_LEGEND)}\n")
    missing = Counter(one.claim.needs for one in findings if one.verdict == NOT_MEASURED)
    if missing:
        studies = ", ".join(f"{name} ({number})" for name, number in missing.most_common())
        say(f"not measured here, and the study that does: {studies}\n")
    if out:
        write_text(out / "claims.csv", claim_rows(findings).to_csv(index=False))
        say(f"claims: {write_text(out / 'claims.md', claim_page(findings, runs, command))}")


def say_figures(run: Run, options: CompareSettings) -> None:
    """Says which published figures a run reproduces, if its study is as it was."""
    if reason := outdated(run):
        say(f"published figures are not compared: {reason}")
        return
    names = load_names()
    figures = compare(load_published(names["figures"]), run, names, options.tolerance)
    counts = ", ".join(f"{(figures.verdict == word).sum()} {word}" for word in VERDICTS)
    say(f"{run.study}: {run.folder}\npublished figures: {counts}\n")
    apart = figures.verdict == NOT_COMPARABLE
    if not apart.all():
        say(f"{terminal(table_of(COLUMNS, figures[~apart].itertuples()))}\n{LEGEND}")
    models = sorted({*run.rows.model})
    named = [n for model in models for n in names["models"].get(model, {"names": ()})["names"]]
    if not figures.model.isin(named).any():
        say(f"not comparable: no paper measured {', '.join(models)}, the model of this run")
    else:
        by_reason = figures[apart].groupby(figures.why.str.partition(";")[0])
        for why, rows in sorted(by_reason, key=lambda item: -len(item[1])):
            say(f"not comparable, {len(rows)} of {', '.join(rows.paper.unique())}: {why}")
    if options.out:
        text = figures.drop(columns=["line", "entry", "parts"]).to_csv(index=False)
        say(f"grounds and sources: {write_text(options.out / 'compare.csv', text)}")


def outdated(run: Run) -> str:
    """Says that a run is of another version of its study than this program has; "" where not."""
    name, _, version = run.study.rpartition("@")
    text = groups()["study"].get(name)
    current = version if text is None else f"{yaml.safe_load(text).get('version', 1)}"
    if version == current:
        return ""
    return (
        f"expected a run of {name}@{current}, found {run.study} in {run.folder}: the study has "
        f"changed since; run it again (python -m bench run study={name})"
    )


def _row_text(one: Any) -> str:
    text = f"{one.paper}, {one.evidence}: {one.method}" + f" ({one.params})" * bool(one.params)
    return text + f", temperature {one.temperature}" * bool(one.temperature) + f" ↔ {one.decoder}"


COLUMNS = (
    Column("published row", _row_text),
    Column("figure", lambda one: one.figure),
    Column("published", lambda one: number(one.published, 3)),
    Column("measured", lambda one: interval(one, 3)),
    Column("difference", lambda one: f"{one.value - one.published:+z.3f}"),
    Column("verdict", lambda one: f"{one.verdict}{'*' * bool(one.assumed)}"),
)
