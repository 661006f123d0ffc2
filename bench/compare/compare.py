"""`python -m bench compare [study=NAME | run_dir=DIR] [tolerance=0.1] [out=DIR]`: a run and the
published numbers, as text and CSV.

Why no Hydra: a finished run is compared, and its study may need settings (a caption file) that are
not at hand where it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd

from bench.analyse.analyse import load
from bench.analyse.run_data import RunData
from bench.compare.published import load as load_published
from bench.compare.published import load_names
from bench.compare.verdicts import Comparison, Reproduction, compare_rows
from bench.config.arguments import settings
from bench.console import say
from bench.data.errors import ConfigError, did_you_mean
from bench.data.files import prepare_folder, write_text
from bench.report import table
from bench.report.table import Column
from bench.store.columns import MERGED
from decoders.kinds import Within

RUNS = Path("results/runs")
DIGITS = {"clip": 2, "precision": 3, "recall": 3, "image_reward": 4}
LEGEND = """reproduced: the published figure lies in our 95 % interval, or within the tolerance
*: the source leaves something unstated, and the verdict assumes it (compare.csv)
Papers measure speed-ups over an eager AR without warm-up, and LANTERN with its released code. Here
AR is as fast as the machine allows, so that a smaller speed-up is expected."""


@dataclass(frozen=True)
class CompareSettings:
    """The settings of `cmd_compare`."""

    study: str | None = None
    run_dir: Path | None = None
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(words: Sequence[str]) -> int:
    """A run and the papers' numbers: reproduced, or not, or why not comparable.
    Writes compare.csv, with the grounds of every verdict.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where the files go (default: compare/ in the run's folder)

    example:
      python -m bench compare run_dir=results/runs/main tolerance=0.05
    """
    options = settings(CompareSettings, words)
    folder = _run_folder(options)
    run = load(folder)
    every = compare_rows(load_published(), run, load_names(), options.tolerance)
    out = options.out or folder / "compare"
    prepare_folder(out)
    say(terminal(run, every))
    rows = pd.DataFrame(map(_csv_row, every))
    path = write_text(out / "compare.csv", rows.to_csv(index=False))
    say(f"grounds and sources: {path}")
    return 0


def _run_folder(options: CompareSettings) -> Path:
    """Finds the run's folder; study= means results/runs/NAME, the default is study=main."""
    if options.study and options.run_dir:
        raise ConfigError("study and run_dir each name a run; keep one of them")
    if options.run_dir:
        return options.run_dir
    name = options.study or "main"
    if not (RUNS / name / MERGED).is_file():
        finished = sorted(p.parent.name for p in RUNS.glob(f"*/{MERGED}"))
        hint = did_you_mean(name, finished) or "."
        raise ConfigError(
            f"study {name!r} has no finished run in {RUNS}{hint} Finished here: "
            f"{', '.join(finished) or '(none)'}. Run it first (python -m bench run study={name}), "
            "or name a folder with run_dir="
        )
    return RUNS / name


def _published_row(one: Comparison) -> str:
    """Names `LANTERN, abstract v3: LANTERN, τ 1` and the decoder that it is compared with."""
    row, tau = one.row, one.row.temperature
    text = f"{row.paper}, {row.evidence}: {row.label}"
    text += "" if tau is None else f", τ {tau:g}"
    return f"{text} ↔ {one.decoder}" if one.decoder else text


def _digits(one: Comparison) -> int:
    return DIGITS.get(one.metric, 2)


COLUMNS = (
    Column("published row", _published_row, words=True),
    Column("figure", lambda one: one.label, words=True),
    Column("published", lambda one: table.number(one.published, _digits(one))),
    Column("measured", lambda one: table.interval(one.figure, _digits(one))),
    Column("difference", lambda one: f"{one.difference:+z.{_digits(one)}f}"),
    # An asterisk marks a verdict that rests on what the source does not state.
    Column("verdict", lambda one: f"{one.verdict}{'*' * bool(one.assumed)}", words=True),
)


def terminal(run: RunData, every: Sequence[Comparison]) -> str:
    """Formats the comparable figures as a table, and the obstacles of others by frequency."""
    counts = (f"{sum(c.verdict is verdict for c in every)} {verdict}" for verdict in Reproduction)
    lines = [f"{run.study}: {run.folder}", ", ".join(counts), ""]
    compared = [c for c in every if not c.obstacles]
    if compared:
        lines += [table.terminal(table.table_of(COLUMNS, compared)), LEGEND]
    groups: dict[str, list[Comparison]] = {}
    for one in every:
        if one.obstacles:
            groups.setdefault(one.obstacles[0], []).append(one)
    for why, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        papers = ", ".join(dict.fromkeys(one.row.paper for one in group))
        figures = f"{len(group)} figure{'s' * (len(group) > 1)}"
        lines.append(f"not comparable, {figures} of {papers}: {why}")
    return "\n".join(lines)


def _csv_row(one: Comparison) -> dict[str, object]:
    """Makes a line of compare.csv, which has every published figure. why: the grounds of the
    verdict, and what qualifies it."""
    row = one.row
    assumed = f"assumes {', '.join(one.assumed)}" if one.assumed else ""
    return {
        **{name: getattr(row, name) for name in ("paper", "arxiv", "evidence", "model", "gpu")},
        "method": row.label,
        "temperature": row.temperature,
        "figure": one.label,
        "published": one.published,
        "decoder": one.decoder,
        "acceptance": one.measured and one.measured.entry.text("acceptance"),
        "device": one.measured and one.measured.device,
        "measured": one.figure.value,
        "measured_lo": one.figure.lo,
        "measured_hi": one.figure.hi,
        "verdict": str(one.verdict),
        "why": ". ".join(filter(None, [one.why, assumed, *one.contradictions])),
    }
