"""`python -m bench diff A B`: two runs decoder by decoder, or two decoders of one run.

Exit status 1 where something of B is slower or worse than A, so that CI can stop on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from bench.compare.significance import (
    EQUAL,
    NOT_APART,
    RATIOS,
    Difference,
    Side,
    any_worse,
    differences_of,
    read_sides,
)
from bench.config.arguments import folders, settings
from bench.console import say
from bench.data.errors import ConfigError, unknown
from bench.data.files import prepare_file, write_text
from bench.report.table import Column, interval, table_of, terminal
from bench.store.study import differences
from decoders.kinds import Within

SIDES = ("in A", "in B")
USAGE = "write `diff A B` for two run folders, or `diff A decoders=x,y` for two decoders of one"


@dataclass(frozen=True)
class DiffSettings:
    """The settings of `cmd_diff`."""

    decoders: str | None = None
    level: Annotated[float, Within(0, 1, below=True)] = 0.05
    out: Path | None = None


def cmd_diff(words: Sequence[str]) -> int:
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
    places, words = folders(words)
    options = settings(DiffSettings, words)
    wanted = 1 if options.decoders else 2
    if len(places) != wanted:
        raise ConfigError(f"expected {wanted} run folders, found {len(places)}; {USAGE}")
    if options.out:
        prepare_file(options.out)
    runs = [read_sides(folder) for folder in places]
    pairs = _pair_up(runs, options.decoders)
    every, notes = differences_of(pairs, options.level), notes_of(places, runs, pairs)
    table = terminal(table_of(COLUMNS, every)) if every else "the two have no figure in common"
    say("\n".join([*describe_changes(pairs, every), *describe_runs(pairs), table, *notes]))
    if options.out:
        text = json.dumps({"findings": [asdict(f) for f in every], "notes": notes}, indent=1)
        write_text(options.out, text)
    return int(any_worse(every))


def _p_text(p: float | None) -> str:
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"


COLUMNS = (
    Column("decoder", lambda f: f.a if f.a == f.b else f"{f.a} -> {f.b}"),
    Column("figure", lambda f: f.figure),
    Column("B / A, or B - A", lambda f: interval(f, 3)),
    Column("images (of speed: blocks)", lambda f: f"{f.pairs or ''}"),
    Column("p", lambda f: _p_text(f.p)),
    Column("B is", lambda f: f.verdict),
)


def describe_changes(pairs: Sequence[tuple[Side, Side]], every: Sequence[Difference]) -> list[str]:
    """Says what differs beyond chance and by how much, and whether the images are equal."""
    lines = [
        f"{d.b} is {d.verdict} {'in B' if d.a == d.b else f'than {d.a}'}: {interval(d, 3)} "
        f"({'ratio' if d.figure in RATIOS else 'difference'} of {d.figure})"
        for d in every
        if d.verdict not in (NOT_APART, EQUAL)
    ] or ["no figure differs beyond chance"] * bool(every)
    lines += ["no speed was compared"] * all(d.figure not in RATIOS for d in every)
    # A committed run has left the codes out, to be small; its pictures have digests.
    whole = any(a.digests("codes") and b.digests("codes") for a, b in pairs)
    what, column = ("codes", "codes") if whole else ("pictures", "image_hash")
    count, differing = 0, []
    for a, b in pairs:
        in_a, in_b = a.digests(column), b.digests(column)
        shared = in_a.keys() & in_b.keys()
        count += len(shared)
        if unequal := sum(in_a[key] != in_b[key] for key in shared):
            differing.append(f"{b.entry.name} ({unequal} of {len(shared)} images)")
    images_line = f"A and B are equal in {what} ({len(pairs)} decoders, {count} images)"
    if differing or not count:
        images_line = f"A and B differ in {what}: {', '.join(differing) or 'they share no image'}"
    return [*lines, images_line]


def describe_runs(pairs: Sequence[tuple[Side, Side]]) -> list[str]:
    """Describes each run: folder, machine, code and gate verdicts."""
    runs = [*zip("AB", zip(*pairs, strict=True), strict=False)]
    if any(a.entry.name != b.entry.name for a, b in pairs):
        runs = [("A and B", pairs[0])]  # two decoders of one run
    lines = []
    for name, sides in runs:
        run = sides[0].run
        first, commits = run.records.iloc[0], sorted({c[:12] for c in run.records.git_commit})
        torch = run.identity.get("machine", {}).get("torch", "not recorded")
        lines.append(
            f"{name}: {run.folder}, on {first.gpu or first.cpu or first.device}, "
            f"{first.threads} threads, PyTorch {torch}, commit {', '.join(commits) or 'unknown'}"
            + (" (changed)" if run.records.git_dirty.any() else "")
            + ("" if run.machine is None else f", {run.machine}")
        )
        verdicts: dict[str, list[str]] = {}
        for side in sides:
            verdicts.setdefault(side.entry.word or "not judged", []).append(side.entry.name)
        lines += [f"   {verdict}: {', '.join(of)}" for verdict, of in verdicts.items()]
    return lines


def _pair_up(runs: Sequence[dict[str, Side]], names: str | None) -> list[tuple[Side, Side]]:
    """Pairs the decoders of both runs, or the two of one. Raises ConfigError."""
    if names is None:
        a, b = runs
        return [(a[name], b[name]) for name in a if name in b]
    pair = [name.strip() for name in names.strip("[]").split(",")]
    if len(pair) != 2:
        raise ConfigError(f"decoders= takes two names, found {len(pair)}: {names!r}")
    for name in pair:
        if name not in runs[0]:
            raise ConfigError(unknown("decoder of this run", name, sorted(runs[0])))
    return [(runs[0][pair[0]], runs[0][pair[1]])]


def notes_of(
    places: Sequence[Path], runs: Sequence[dict[str, Side]], pairs: Sequence[tuple[Side, Side]]
) -> list[str]:
    """Says what differs between two runs, what is therefore not compared, and what failed."""
    lines = [
        f"only in {place}: {', '.join(sorted(run.keys() - other.keys()))}"
        for place, run, other in zip(places, runs, reversed(runs), strict=True)
        if run.keys() - other.keys()
    ]
    configs = [next(iter(sides.values())).run.identity.get("config", {}) for sides in runs]
    if text := differences(configs[0], configs[-1], SIDES):
        lines.append(f"settings differ: {text}")
    apart: dict[str, list[str]] = {}
    for a, b in pairs:
        for figure in ("CLIP", "FID"):
            one, other = a.protocol(figure), b.protocol(figure)
            if one != other:
                why = f"{figure} was measured in two ways, {differences(one, other, SIDES)}"
                apart.setdefault(why, []).append(b.entry.name)
    lines += [f"not compared: {why} ({', '.join(names)})" for why, names in apart.items()]
    sides = [side for pair in pairs for side in pair]
    lines += dict.fromkeys(
        f"not compared: times of {side.entry.name} in {side.folder}: {side.unmeasured}"
        for side in sides
        if side.unmeasured
    )
    return lines + [
        f"{s.entry.name} in {s.folder}: {s.entry.failures} of {len(s.entry.records)} rows failed"
        for s in sides
        if s.entry.failures
    ]
