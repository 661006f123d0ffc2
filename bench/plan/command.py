"""`python -m bench plan study=...`: what a study needs, before anything is fetched or started.

What must lie on this disk, with where it is looked for, GPU memory, images and hours. Nothing is
loaded: sizes come from shapes (`decoders.models.sizes`), hours from the rows of an earlier run of
the same study (`bench.plan.hours`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.config.catalogue import groups
from bench.config.compose import compose_study
from bench.config.plugins import tree_of
from bench.config.schema import StudyConfig
from bench.config.words import apart, given, split
from bench.console import say
from bench.data.errors import BenchError, ConfigError, Failure
from bench.data.files import ready_file, write_text
from bench.plan.hours import launch_lines, projected_lines, time_lines, work_lines
from bench.plan.parts import (
    COLUMNS,
    EVERY,
    GB,
    Need,
    file_needs,
    merged,
    metric_parts,
    model_parts,
    no_tokenizer,
)
from bench.plan.plan import Call, Load, Plan
from bench.predict import checkpoints as known
from bench.predict.machines import machine_of
from bench.prompts import call_prompts
from bench.report.table import csv_text, filled, markdown, terminal
from bench.run.launch.task import asked
from decoders.models.sizes import RELEASED


def cmd_plan(words: Sequence[str]) -> int:
    """What a study needs before it starts: downloads, GPU memory, images, hours.
    Lists weights, tokenizers, text encoders, networks of the metrics, captions and reference
    pictures: what is found, and where the rest is looked for. With launch= also shards and hours
    of workers. Loads no model and fetches nothing.
    Settings: study decoders run_dir ...
        study=all      what all studies need on this disk, and nothing else
        out=FILE       the list as .csv or .md
        launch=NAME    and its settings, as `run` takes them
        hardware=NAME  hours on a machine that is not here (`list hardware`), projected from its
                       data sheet
    Example: plan study=lantern_table

    Raises ConfigError as `run` would.
    """
    own, words = apart(words, ("out",))
    named = given(own, ("out",), "plan").get("out")
    out = None if named is None else Path(named)
    if out is not None:
        if out.suffix not in (".csv", ".md"):
            raise ConfigError(f"out={out} must end in .csv or .md: that says the format")
        ready_file(out)
    if any((word.key, word.value) == ("study", "all") for word in map(split, words)):
        found, notes = of_all([word for word in words if split(word).key != "study"])
        say(terminal(filled(EVERY, found)))
        say("\n".join([f"\n{_lacking(found)}", *notes]))
        _write(out, found)
        return 0
    machine, words = machine_of(words)
    mine = asked(words)
    plan = make(compose_study(mine.words))
    config = plan.config
    say(
        f"{config.name}: {config.model.name} on {config.backend.device} ({config.backend.dtype}), "
        f"{len(config.decoders)} decoders, into {config.run_dir}"
    )
    needs = [*plan.parts, *plan.others]
    say("\n" + terminal(filled(COLUMNS, needs)))
    lines = [[_lacking(needs), *_download_lines(plan)], _memory_lines(plan)]
    lines += [work_lines(plan), time_lines(plan)]
    lines += [] if machine is None else [projected_lines(plan, machine)]
    lines += [] if mine.launch is None else [launch_lines(plan, mine.launch)]
    for part in lines:
        say("\n" + "\n".join(part))
    for note in plan.notes:
        say(f"note: {note}")
    _write(out, needs)
    return 0


def _write(out: Path | None, needs: Sequence[Need]) -> None:
    if out is None:
        return
    rows = [
        {"role": n.role, "source": n.source, "where": n.where, "revision": n.revision,
         "setting": n.setting, "state": n.state, "studies": " ".join(n.studies),
         "gigabytes": None if n.bytes is None else n.bytes / GB}
        for n in needs
    ]  # fmt: skip
    text = csv_text(rows) if rows and out.suffix == ".csv" else ""
    write_text(out, markdown(filled(EVERY, needs)) + "\n" if out.suffix == ".md" else text)
    say(f"written: {out}")


def _lacking(needs: Sequence[Need]) -> str:
    lacking = [need for need in needs if need.missing]
    return f"{len(lacking)} of {len(needs)} are missing" if lacking else "all is there"


def of_all(words: Sequence[str]) -> tuple[list[Need], list[str]]:
    """What all studies need under these words, and notes: studies that need nothing or cannot be
    read."""
    found: list[Need] = []
    nothing, notes = [], []
    for name in groups()["study"]:
        try:
            plan = make(config := compose_study([*words, f"study={name}"]))
        except BenchError as error:
            notes.append(f"{name}: {error}")
            continue
        own = [*([] if known.embedded(config.model) else plan.parts), *plan.others]
        found += [replace(need, studies=(config.name,)) for need in own]
        nothing += [] if own else [config.name]
    if nothing:
        notes.insert(0, f"need nothing but what is embedded: {', '.join(nothing)}")
    return merged(found), notes


def make(config: StudyConfig) -> Plan:
    """The plan of a study; looks at the disk, not at the network."""
    notes: list[str] = []
    shape = known.shape_of(config.model)
    _, vq = RELEASED.get(config.model.name, (None, None))
    if shape is None:
        notes.append(
            f"the shape of {config.model.name} is not known, so its memory is not either; public "
            "models are in decoders/models/sizes.py"
        )
    parts = model_parts(config, shape, vq) + metric_parts(config)
    unset, files = no_tokenizer(config), file_needs(config)
    notes += [
        f"model.tokenizer is not set, so nothing makes pictures or finds neighbours; set "
        f"model.tokenizer={need.source}"
        for need in unset
    ]
    calls = _calls(config, notes)
    notes += [
        f"{need.setting}: {need.source} is not there; put it there before the run, or set "
        f"{need.setting}= to where it is"
        for need in files
        if need.missing
    ]
    if Path(str(config.prompts.kwargs.get("path") or "")).is_file():  # what `run` would refuse
        call_prompts(config.prompts, config.prompts_needed)
    return Plan(config, shape, vq, parts, calls, notes, [*unset, *files])


def _calls(config: StudyConfig, notes: list[str]) -> list[Call]:
    """Every entry in every protocol that runs. A tree needs no model to be built; one that does is
    counted as none, with a note."""
    found, latency, quality = [], config.latency, config.quality
    batches = {
        "latency": max(latency.batch) if latency.prompts else 0,
        "quality": min(quality.batch, quality.images),
    }
    for entry in config.decoders:
        cfg, tree = entry.sampling.cfg, tree_of(entry)
        usual = config.model.kwargs.get("cfg", 2.0)
        if isinstance(tree, Failure):
            notes.append(
                f"the tree of {entry.name} cannot be built without its model ({tree.error})"
            )
            tree = None
        sizes = () if tree is None else (tree.nodes, tree.depth, tree.session_nodes)
        rows = 1 if (usual if cfg is None else cfg) == 1 else 2
        found += [
            Call(entry.name, protocol, Load(batch, rows, *sizes))
            for protocol, batch in batches.items()
            if batch
        ]
    return found


def _download_lines(plan: Plan) -> list[str]:
    total = f"to download: {plan.download / GB:.1f} GB"
    if any(part.estimated for part in plan.parts):
        total += " (~ estimated: parameters x bytes; float32 where the dtype is not published)"
    unknown = [part.source for part in plan.parts if part.download is None]
    lines = [total, *([f"size not known, not counted: {', '.join(unknown)}"] if unknown else [])]
    for part in (part for part in plan.parts if part.by_hand and part.missing):
        release = "Meta's Chameleon release, after its form is signed"
        origin = part.source if part.role == "metric" else release
        lines.append(f"by hand: {part.missing[0]} ({origin})")
    return lines


def _memory_lines(plan: Plan) -> list[str]:
    """The fullest moment of each protocol."""
    device = "GPU memory" if plan.config.backend.device.startswith("cuda") else "memory"
    moments = plan.fullest().values()
    if not moments:
        return [f"{device}: not known"]
    lines = [f"{device} (estimated): weights {plan.weights / GB:.1f} GB"]
    for moment in moments:
        call, states = moment.call, moment.states
        line = f"  {moment.peak / GB:.1f} GB at most in "
        line += f"{call.decoder}, {call.protocol} (batch {call.load.batch})"
        if states:
            line += (
                f": caches of {states} recorded step{'s' if states > 1 else ''} "
                f"{moment.caches / GB:.1f} GB, their pool {moment.pool / GB:.1f} GB"
            )
        lines.append(line)
    return lines
