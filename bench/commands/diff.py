"""`python -m bench diff A B`: two runs decoder by decoder, or two decoders of one run, by image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.compare.diff import changes_of, differences_of, notes_of, read_sides, require_one_version
from bench.config.arguments import folders, listed, settings
from bench.console import say
from bench.errors import ConfigError
from bench.files import prepare_file, write_text
from bench.report.table import Column, interval, table_of, terminal
from decoders.errors import unknown
from decoders.kinds import Within

USAGE = "write `diff A B` for two run folders, or `diff A decoders=x,y` for two decoders of one"

ADJUSTED = (
    "p and intervals allow for the number of decoders: of the differences found {:g} % or "
    "less are chance on average. An interval leaves out 1, of differences 0, where p < {:g}"
)


@dataclass(frozen=True)
class DiffSettings:
    decoders: str | None = None
    level: Annotated[float, Within(0, 1, above=True, below=True)] = 0.05
    out: Path | None = None


def cmd_diff(arguments: Sequence[str]) -> int:
    """Two runs, or two decoders of one, paired by image: diff RUN_A [RUN_B].
    On the images that both made. First what differs, then machines, commits, verdicts, and every
    figure: better, worse, equal or not told apart. Exit status 1 where B is slower or worse than A.

    settings:
      decoders=A,B  two decoders of one run folder
      level=X       share of false discoveries to allow (default: 0.05)
      out=FILE      the same as JSON

    example:
      python -m bench diff results/runs/main results/runs/main_again
    """
    places, arguments = folders(arguments)
    options = settings(DiffSettings, arguments)
    wanted = 1 if options.decoders else 2
    if len(places) != wanted:
        raise ConfigError(f"expected {wanted} run folders, found {len(places)}; {USAGE}")
    names = listed(options.decoders or "")
    if options.decoders is not None and (len({*names}) != 2 or len(names) != 2):
        raise ConfigError(
            f"decoders= takes two names that differ, as in decoders=ar,lantern; found {names!r}"
        )
    if options.out:
        prepare_file(options.out)
    runs = [read_sides(folder) for folder in places]
    require_one_version([next(iter(sides.values())).run.study for sides in runs])
    if options.decoders is None:
        pairs = [(side, runs[1][name]) for name, side in runs[0].items() if name in runs[1]]
    else:
        if missing := [name for name in names if name not in runs[0]]:
            raise ConfigError(unknown("decoder of this run", missing[0], runs[0]))
        pairs = [(runs[0][names[0]], runs[0][names[1]])]
    found, unpaired = differences_of(pairs, options.level)
    rows, notes = [*found.itertuples(index=False)], notes_of(places, runs, pairs)
    if rows and len(pairs) > 1:
        notes.insert(0, ADJUSTED.format(100 * options.level, options.level))
    table = terminal(table_of(COLUMNS, rows)) if rows else "the two have no figure in common"
    say("\n".join([*changes_of(pairs, rows, unpaired), table, *notes]))
    if options.out:
        lines = found.astype(object).where(found.notna(), None).to_dict("records")
        written = {"findings": lines, "notes": unpaired + notes}
        write_text(options.out, json.dumps(written, indent=1))
    return int(found.verdict.isin(["slower", "worse"]).any())


COLUMNS = (
    Column("decoder", lambda f: f.a if f.a == f.b else f"{f.a} -> {f.b}"),
    Column("figure", lambda f: f.figure),
    Column("B / A, or B - A", lambda f: interval(f, 3)),
    Column("images (of speed: blocks)", lambda f: f"{f.pairs or ''}"),
    Column("p", lambda f: "" if f.p != f.p else f"{f.p:.3f}" if f.p >= 0.001 else "< 0.001"),
    Column("B is", lambda f: f.verdict),
)
