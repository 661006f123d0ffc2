"""Several runs of one study on one machine as one. Speed-ups get the machine's interval; that of a
single run is of its hour (METHODS4, 5). All but speed-ups and seconds per image is of the first
run, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd

from bench.analyse.paired import paired_speedup
from bench.analyse.run import Entry, Role, Run
from bench.data.errors import ConfigError
from bench.data.files import write_text
from decoders.errors import DecoderError
from decoders.files import read_object
from decoders.kinds import NotNegative
from metrics.speedup import Speedup, Spread, over_runs

APART = 3600  # seconds from the start of a run to that of the next
MACHINE = "machine.json"
KINDS = {"study": str, "machine": dict[str, str], "deviation": NotNegative, "runs": list[str]}


def several(runs: Sequence[Run]) -> Run:
    """Joins two or more runs. Raises ConfigError where they are not runs of one version of a study,
    with one configuration, on one machine, started at least an hour apart."""
    for what, value in (
        ("version of a study", [run.study for run in runs]),
        ("configuration (config_hash of study.json)", [r.identity["config_hash"] for r in runs]),
        ("machine", [json.dumps(run.identity["machine"], sort_keys=True) for run in runs]),
    ):
        if len({*value}) > 1:
            raise ConfigError(
                f"expected runs of one {what}, found {' and '.join(dict.fromkeys(value))}; name "
                "runs that differ in their hour alone"
            )
    starts = pd.to_datetime([run.rows.started_at.min() for run in runs], utc=True).sort_values()
    near = [(later - first).total_seconds() for first, later in pairwise(starts)]
    if len(runs) < 2 or min(near) < APART:
        raise ConfigError(
            "expected two runs or more that start at least an hour apart, found "
            + (f"two that start {min(near) / 60:.0f} minutes apart" if near else "one")
            + ": an hour of the machine moves all decoders alike"
        )
    speedups = {
        entry.name: found
        for section in runs[0].sections
        for entry in section.decoders
        if entry.role is Role.DECODER and (found := _speedups(runs, entry.name))
    }
    if not speedups:
        raise ConfigError("no decoder has a speed-up that counts in all of these runs")
    intervals, spread = over_runs([*speedups.values()])
    machines = dict(zip(speedups, intervals, strict=True))

    def change(entry: Entry) -> Entry:
        if entry.role is Role.RESEED:
            return entry
        everywhere = [_entry(run, entry.name) for run in runs]
        seconds = [one.number("latency_mean_s") for one in everywhere if one is not None]
        line = entry.line | {"latency_mean_s": sum(seconds) / len(seconds)}
        if entry.role is Role.DECODER:
            line |= dict.fromkeys(("speedup", "speedup_lo", "speedup_hi"), float("nan"))
        if (whole := machines.get(entry.name)) is not None:
            line |= {"speedup": whole.value, "speedup_lo": whole.lo, "speedup_hi": whole.hi}
        return replace(entry, line=line)

    sections = [replace(s, entries=[*map(change, s.entries)]) for s in runs[0].sections]
    study, places = f"{runs[0].study}, {len(runs)} runs", tuple(run.folder for run in runs)
    return replace(runs[0], study=study, sections=sections, spread=spread, folders=places)


def _speedups(runs: Sequence[Run], name: str) -> list[Speedup]:
    """The speed-ups of a decoder, one per run; [] where one does not count."""
    found = []
    for run in runs:
        entry = _entry(run, name)
        section = next((s for s in run.sections if entry in s.entries), None)
        if entry is None or section is None or section.baseline is None or run.unmeasured(entry):
            return []
        ratio = paired_speedup(section.baseline.rows, entry.rows)
        if ratio is None:
            return []
        found.append(ratio)
    return found


def _entry(run: Run, name: str) -> Entry | None:
    return next((one for one in run.entries if one.name == name), None)


def write_spread(folder: Path, runs: Sequence[Run], whole: Run) -> None:
    """Writes machine.json: how far runs of this study lie apart on this machine. whole: `several`
    of them."""
    facts = {
        "study": runs[0].study, "machine": whole.identity["machine"],
        "deviation": None if whole.spread is None else whole.spread.deviation,
        "runs": [f"{place}" for place in whole.folders],
    }  # fmt: skip
    write_text(folder / MACHINE, json.dumps(facts, indent=1))


def read_spread(folder: Path, runs: Sequence[Run]) -> Spread:
    """Reads machine.json of a report of several runs. Raises ConfigError where there is none, or it
    is of another study or machine than these runs."""
    try:
        facts = read_object(folder / MACHINE, KINDS)
    except (DecoderError, OSError) as error:
        raise ConfigError(
            f"machine={folder} has no readable {MACHINE} ({error}); make it: python -m bench "
            f"report RUN RUN RUN out={folder}"
        ) from error
    for run in runs:
        here = {"study": run.study, "machine": run.identity["machine"]}
        if other := [name for name in here if here[name] != facts[name]]:
            raise ConfigError(
                f"machine={folder} is of another {other[0]} ({facts[other[0]]}) than {run.folder} "
                f"({here[other[0]]}); name a report of runs of this study on this machine"
            )
    return Spread(facts["deviation"], len(facts["runs"]))
