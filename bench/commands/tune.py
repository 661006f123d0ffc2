"""`python -m bench tune`: searches trees and rules, measures the best, writes the winner.

Why the runner measures: the winner's figure must be one that any study would have found. AR and the
chosen decoders take turns prompt by prompt, warmed up, on prompts that nothing was recorded on. Why
the winner's file is checked before the search: one that cannot be written, or that no command could
choose afterwards, must not cost the minutes of a search first.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from bench.config.catalogue import groups
from bench.config.describe import PARTS, as_yaml
from bench.config.hydra_edge import parse_override
from bench.config.schema import DecoderEntry, StudyConfig
from bench.config.words import split
from bench.console import complain, say
from bench.data.errors import ConfigError
from bench.data.files import ready_folder, write_text
from bench.judge.paired import latency_rows, paired_speedup
from bench.predict.search import (
    Candidate,
    Search,
    begin,
    choose,
    eligible,
    entry_of,
    explore,
    frontier,
)
from bench.predict.settings import TuneStudy, compose_tune
from bench.report.plots.predict import frontier_plot
from bench.report.table import Column, csv_text, figures, filled, interval, percent, terminal
from bench.run.runner import run_study
from bench.run.session import opened
from metrics.stats import UNKNOWN, Interval

GROUP = "decoder"  # the folder in which Hydra finds decoders
CONF = Path(str(files("conf"))) / GROUP
MARK = "Found by `bench tune`"  # in a comment of every file that a search writes
CARRIED = ("model", "backend", "prompts", "seed", "sampling")  # words that a run of it needs too
SHOWN = 16  # frontier points printed
CLASS = {"exact": "exact", "relaxed": "exact or relaxed"}  # tune.exactness in words
ACCEPTANCE = {True: "derived", False: "recorded"}
FRONTIER = (
    Column("rule", "rule", lambda rule: rule.label),
    Column("tree", "tree", lambda tree: tree.label),
    Column("prediction", "codes a step", lambda made: f"{made.codes:.2f}"),
    Column("prediction", "predicted speed-up", lambda made: f"{made.speedup:.2f}"),
    Column("seen", "mass moved", lambda seen: figures(3)(seen.moved)),
    Column("seen", "output TV", lambda seen: figures(3)(seen.tv)),
    Column("derived", "acceptance", lambda own: ACCEPTANCE[own]),
)
MEASURED = (
    Column("decoder", "decoder"),
    Column("speedup", "predicted", figures(2)),
    Column("measured", "measured", lambda v: "failed" if math.isnan(v.value) else interval(v, 2)),
    Column("error", "error", lambda value: percent(value, sign="+")),
    Column("codes_a_step", "codes predicted", figures(2)),
    Column("measured_codes", "measured", figures(2)),
    Column("verdict", "verdict"),
)
Measured = tuple[Interval, float]  # a paired speed-up over AR; codes committed a target forward
NOT_MEASURED: Measured = (UNKNOWN, math.nan)


def cmd_tune(words: Sequence[str]) -> int:
    """Search trees and rules for a model and machine, measure the best against AR.
    Default: study=tune. Writes the winner as a decoder's YAML. `list settings` explains all
    settings.
    Settings: run_dir ...
        tune.*      conf/tune_config.yaml
        model=NAME  the model (`list model`)
    Example: tune tune.exactness=exact 'tune.trees=[{tree: chain, depth: [1, 2, 3, 4]}]'

    1 where nothing is in the class asked for, or nothing could be measured.
    """
    asked = compose_tune(words)
    folder = Path(asked.study.run_dir)
    out = Path(asked.tune.out) if asked.tune.out else folder / "decoder" / "tuned.yaml"
    claim(out)
    ready_folder(folder)
    measured_on = asked.study.latency.prompts  # others are recorded on
    own = opened(asked.study, measured_on + asked.tune.prompts)
    search, prompts = begin(asked, own.model), [p.text for p in own.prompts[measured_on:]]
    candidates = explore(search, prompts)
    kept = eligible(search, candidates)
    front = frontier(kept)
    head = f"{len(candidates)} candidates, {len(kept)} within the limits"
    if front:
        shown = terminal(filled(FRONTIER, [*reversed(front)][:SHOWN]))
        head += f"; not beaten in speed and quality:\n{shown}"
    say(head)
    chosen = choose(search, kept)
    entries, verdicts = [entry_of(search, c) for c in chosen], search.verdicts
    if not chosen:
        complain(_nothing(search, candidates, kept))
    del search, own  # the runner loads a model of its own
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    measured = measure(asked.study, entries, folder) if entries else {}
    lines = [
        line_of(c, c in kept, c in front, verdicts.get(c.name, ""), measured.get(c.name))
        for c in sorted(candidates, key=lambda c: -c.prediction.speedup)
    ]
    path = write_text(folder / "tune.csv", csv_text(lines))
    plot = frontier_plot(pd.read_csv(path), f"Search on {asked.study.model.name}", folder)[0]
    say(f"\nsaved: {path}, {plot}")
    if not chosen:
        return 1
    names = [entry.name for entry in entries]
    say("\n" + terminal(filled(MEASURED, [line for line in lines if line["decoder"] in names])))
    if not measured:
        complain(f"no chosen decoder could be measured; the rows below {folder / 'measured'} say "
                 "why (column error)")  # fmt: skip
        return 1
    best = max(measured, key=lambda name: measured[name][0].value)
    entry = next(entry for entry in entries if entry.name == best)
    _winner(asked, entry, measured[best][0], verdicts[best], out)
    return 0


def line_of(
    candidate: Candidate, kept: bool, front: bool, verdict: str, measured: Measured | None
) -> dict[str, Any]:
    """Of tune.csv. kept: within the limits; front: none beats it; error: predicted over measured,
    less 1."""
    made, seen, tree = candidate.prediction, candidate.seen, candidate.tree.built
    ratio, codes = measured or NOT_MEASURED
    return {
        "decoder": candidate.name, "rule": candidate.rule.label, "tree": candidate.tree.label,
        "nodes": tree.nodes, "depth": tree.depth, "codes_a_step": made.codes,
        "seconds_image": made.seconds, "speedup": made.speedup,
        "acceptance": ACCEPTANCE[candidate.derived], "moved_mean": seen.moved,
        "output_tv": seen.tv, "bound_max": seen.bound, "eligible": kept,
        "frontier": front, "verdict": verdict, "measured": ratio,
        "error": made.speedup / ratio.value - 1, "measured_codes": codes,
    }  # fmt: skip


def measure(
    study: StudyConfig, entries: Sequence[DecoderEntry], folder: Path
) -> dict[str, Measured]:
    """Runs the latency protocol of `study` (AR alone) with `entries` added; by entry's name.

    The rows lie in `folder`/measured/<configuration hash>, so that a search that comes to the same
    choice resumes. Entries that fail are left out. Raises what `run_study` raises.
    """
    config = dataclasses.replace(study, decoders=(*study.decoders, *entries))
    config = dataclasses.replace(config, run_dir=str(folder / "measured" / config.hash))
    rows = run_study(config).rows
    (baseline,) = (e.name for e in study.decoders if e.baseline)
    found = {}
    for entry in entries:
        own = rows[rows.decoder == entry.name]
        ratio = paired_speedup(rows[rows.decoder == baseline], own)
        if ratio is not None:
            mine = latency_rows(own)
            mal = float((mine.mal * mine.nfe).sum() / mine.nfe.sum())
            found[entry.name] = ratio, mal
    return found


def _nothing(search: Search, candidates: Sequence[Candidate], kept: Sequence[Candidate]) -> str:
    """Why no candidate is left, and what to change."""
    tune = search.asked.tune
    if not kept:
        least = min(c.seen.tv for c in candidates)
        return (
            f"no candidate's output TV is at most tune.tv={tune.tv:g}, the least is "
            f"{least:.3f}; raise tune.tv or add milder rules to tune.rules"
        )
    judged = "; ".join(f"{name}: {words}" for name, words in sorted(search.verdicts.items()))
    return (
        f"the exactness gate finds no candidate {CLASS[tune.exactness]} ({judged}); add "
        "milder rules to tune.rules or widen tune.exactness"
    )


def claim(path: Path) -> None:
    """Makes sure that the winner can be written to `path` and chosen from there; makes its folder.

    Raises ConfigError: not in a folder called decoder, no name, the name of another decoder, a file
    that no search wrote, a folder that cannot be made.
    """
    if path.parent.name != GROUP or not re.fullmatch(r"[\w-]+", path.stem):
        raise ConfigError(
            f"tune.out={path}: decoders are found as DIR/{GROUP}/NAME.yaml, so write "
            f"conf/{GROUP}/NAME.yaml or a folder of your own, NAME in letters, digits, _ and -"
        )
    if path.parent.resolve() != CONF.resolve() and path.stem in groups()[GROUP]:
        raise ConfigError(f"tune.out={path}: there is a decoder {path.stem} already; rename yours")
    try:
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise ConfigError(
                f"tune.out={path} exists and no search wrote it; choose another name or remove it"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"tune.out={path} cannot be written: {error}") from error


def _winner(asked: TuneStudy, entry: DecoderEntry, ratio: Interval, words: str, path: Path) -> None:
    """Writes an entry as an option of conf/decoder: `decoder=<the file's name>` composes it again.
    words: the gate's verdict, which becomes what `bench check` expects."""
    study, verdict = asked.study, words.split(" (")[0]
    content: dict[str, Any] = {name: as_yaml(getattr(entry.spec, name)) for name in PARTS}
    sampling = {k: v for k, v in dataclasses.asdict(entry.sampling).items() if v is not None}
    if sampling:
        content["sampling"] = sampling
    if verdict in ("exact", "relaxed", "broken"):
        content["expect"] = verdict
    head = [
        "# @package _global_",
        f"# {entry.name}: {ratio.value:.2f} times AR [{ratio.lo:.2f}, {ratio.hi:.2f}], {words}.",
        f"# {MARK} for {study.model.name} on {study.backend.device} "
        f"({study.backend.dtype}, {study.backend.name}).",
    ]
    write_text(path, "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False))
    run = command(path, asked.words)
    say(f"winner: {entry.name}, written to {path}; to run it:\n  {run}")


def command(path: Path, words: Sequence[str]) -> str:
    """The command line that runs the decoder at `path` and AR, with those words of the search
    that say on what: model, backend, prompts, seed, sampling."""
    places: list[str] = []
    carried: list[str] = []
    for word in words:
        if split(word).key == "hydra.searchpath":
            value = parse_override(word).value()
            places += map(str, value if isinstance(value, list) else [value])
        elif split(word).group in CARRIED:
            carried.append(word)
    if path.parent.resolve() != CONF.resolve():
        places.append(f"file://{path.parent.parent.resolve()}")
    search = [f"hydra.searchpath=[{','.join(places)}]"] if places else []
    run = ["python", "-m", "bench", "run", f"name={path.stem}", f"decoders=[ar,{path.stem}]"]
    return shlex.join([*run, *carried, *search])
