"""Several runs of one study on one machine as one. Speed-ups get the machine's interval; that of a
single run is of its hour (METHODS4, 5). All but speed-ups and seconds per image is of the first
run, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from bench.analyse.run import Entry, Role, Run
from bench.analyse.tables import tables_of
from bench.errors import ConfigError
from metrics.speedup import Speedup, over_runs
from metrics.stats import NO_INTERVAL

APART_SECONDS = 3600  # from the start of a run to that of the next


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
    if len(runs) < 2 or min(near) < APART_SECONDS:
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
        figures = {**entry.figures, "latency_mean_s": sum(seconds) / len(seconds)}
        if entry.role is Role.DECODER:
            figures["speedup"] = machines.get(entry.name, NO_INTERVAL)
        return replace(entry, figures=figures)

    whole = replace(
        runs[0],
        study=f"{runs[0].study}, {len(runs)} runs",
        sections=[replace(s, entries=[*map(change, s.entries)]) for s in runs[0].sections],
        spread=spread,
        folders=tuple(run.folder for run in runs),
    )
    made = {name: runs[0].tables[name] for name in ("roofline", "clip_pairs")}
    return replace(whole, tables=tables_of(whole, **made))


def _speedups(runs: Sequence[Run], name: str) -> list[Speedup]:
    """The speed-ups of a decoder, one per run; [] where one does not count."""
    entries = [_entry(run, name) for run in runs]
    found = [None if entry is None else entry.line.speedup for entry in entries]
    return [one for one in found if one] if all(found) else []


def _entry(run: Run, name: str) -> Entry | None:
    return next((one for one in run.entries if one.name == name), None)
