"""Replicates of a study as one run: their rows and scores are pooled, and every figure is of all.

Replicates differ in their prompts and seeds (`replicate=k`), so their images are independent, and
images stay the units of all intervals over images. A speed-up is measured in each replicate, and
its interval is over these (`metrics.replicates`). FID and other figures of a set of pictures are no
means over pictures: of these the mean over replicates is shown, and how it differs between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from bench.analyse.paired import REPLICATE
from bench.errors import ConfigError
from bench.measure.roofline import MOST_APART, MachineRates
from bench.store.facts import STUDY, Findings, Verdict, differences
from metrics.scores import Score, Scores

FROM_WORST = ("broken", "not checked", "no", "synthetic", "relaxed", "exact")  # words of verdicts


@dataclass(frozen=True)
class Facts:
    """What a run folder holds."""

    folder: Path
    rows: pd.DataFrame
    study: dict[str, Any]
    findings: Findings

    @property
    def replicate(self) -> int:
        return replicate_of(self.study)


def replicate_of(study: Mapping[str, Any]) -> int:
    """Which replicate a run is, by its study.json."""
    return int(study.get("config", {}).get(REPLICATE, 0))


def replicates_in(folder: Path) -> list[Path]:
    """The runs of a folder that holds replicates in folders named 0, 1, 2, ...; [] for others."""
    if (folder / STUDY).exists():
        return []
    every = [path.parent for path in folder.glob(f"*/{STUDY}") if path.parent.name.isdecimal()]
    return sorted(every, key=lambda path: int(path.name))


def pool(every: Sequence[Facts], folder: Path) -> Facts:
    """Two or more replicates as one run. folder: where it is. Raises ConfigError on what is not of
    one study on one machine, or not on other prompts each."""
    require_replicates(every)
    every = sorted(every, key=lambda one: one.replicate)
    study = {**every[0].study, "config": shared_config(every[0])}
    study["command"] = "; ".join(filter(None, (one.study.get("command") for one in every)))
    step = prompts_of_a_run(every)
    rows = pd.concat(
        [
            one.rows.assign(
                prompt_index=one.rows.prompt_index + one.replicate * step,
                # As objects: a string column takes no byte of a name that is no UTF-8.
                image=pd.Series(
                    [path and str(one.folder.absolute() / path) for path in one.rows.image],
                    one.rows.index,
                    dtype=object,
                ),
                **{REPLICATE: one.replicate},
            )
            for one in every
        ],
        ignore_index=True,
    )
    return Facts(folder, rows, study, pooled_findings([one.findings for one in every]))


def shared_config(one: Facts) -> dict[str, Any]:
    """The configuration that replicates have in common."""
    return {k: v for k, v in one.study.get("config", {}).items() if k != REPLICATE}


def prompts_of_a_run(every: Sequence[Facts]) -> int:
    """How many numbers of prompts each replicate has to itself: whole calls of every batch size."""
    latency = every[0].study.get("config", {}).get("latency", {})
    sizes = [size for size in latency.get("batch", [1]) if size > 1]
    calls = math.lcm(1, *(latency.get("requests") or size for size in sizes))
    return calls * math.ceil((1 + max(one.rows.prompt_index.max() for one in every)) / calls)


def require_replicates(every: Sequence[Facts]) -> None:
    """Raises ConfigError where runs cannot be pooled, and says why."""
    for one, other in combinations(every, 2):
        sides = f"in {one.folder}", f"in {other.folder}"
        if text := differences(shared_config(one), shared_config(other), sides):
            raise ConfigError(
                f"expected replicates of one study, found runs with other settings: {text}; name "
                "runs that differ in replicate= alone"
            )
        if one.replicate == other.replicate:
            raise ConfigError(
                f"{one.folder} and {other.folder} are of the same prompts "
                f"(replicate={one.replicate}), whose luck does not shrink with more runs, so they "
                "cannot be pooled. Run the study on other prompts: the same command with "
                f"replicate={one.replicate + 1}"
            )
        for what in ("machine", "weights"):
            if text := differences(one.study.get(what, {}), other.study.get(what, {}), sides):
                raise ConfigError(
                    f"expected runs on one machine with the same weights, found others ({what}): "
                    f"{text}; name runs of one machine"
                )
        rates = one.findings.machine, other.findings.machine
        if rates[0] and rates[1] and (apart := rates[0].apart(rates[1])) > MOST_APART:
            raise ConfigError(
                f"expected runs on one machine, whose rates differ by less than {MOST_APART:g} "
                f"times, found {apart:.2f} times: {sides[0]} it {rates[0]}, {sides[1]} it "
                f"{rates[1]}; run the slower one again"
            )
        ways = one.findings.scores, other.findings.scores
        for name in ways[0].keys() & ways[1].keys():
            if text := differences(ways[0][name].protocol, ways[1][name].protocol, sides):
                raise ConfigError(
                    f"expected pictures that were scored in one way, found {text} ({name}); run "
                    "one again with the metric= of the other"
                )


def pooled_findings(every: Sequence[Findings]) -> Findings:
    """The best rates of the machine, as of one run; of verdicts the worst; the scores of all."""
    rates = [astuple(one.machine) for one in every if one.machine]
    machine = MachineRates(*map(max, zip(*rates, strict=True))) if rates else None
    gates = _by_name([one.gate for one in every])
    scores = _by_name([one.scores for one in every])
    return Findings(
        machine,
        every[0].work,
        {name: min(some, key=_goodness) for name, some in gates.items()},
        {name: pooled_scores(some) for name, some in scores.items() if len(some) == len(every)},
        done=True,
    )


def _by_name(every: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for one in every for name in one)
    return {name: [one[name] for one in every if name in one] for name in names}


def _goodness(verdict: Verdict) -> tuple[int, float]:
    """Less for a worse verdict, and for one that samples left more open."""
    word = verdict.word.removesuffix(" rule")
    return FROM_WORST.index(word), -verdict.sampled


def pooled_scores(every: Sequence[Scores]) -> Scores:
    """Of pictures in the order of replicates. A figure that is no mean over pictures is the mean
    over replicates, with the interval of these (`Score.mean`)."""
    figures = dict[str, Score]()
    for name in every[0].figures:
        some = [one[name] for one in every if name in one.figures]
        if len(some) == len(every) and all(math.isfinite(one.value) for one in some):
            each = [x for one in some for x in one.each] if all(one.each for one in some) else []
            mean = some[0].again(each or [one.value for one in some])
            figures[name] = replace(mean, each=tuple(each))
    return Scores(figures, every[0].protocol)
