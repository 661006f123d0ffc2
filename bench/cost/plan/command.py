"""`python -m bench plan study=...`: what a study needs, before anything is fetched or started.

Models and their parts with what is still to download, GPU memory, images and hours. Nothing is
loaded: sizes come from shapes (`decoders.models.sizes`), hours from the rows of an earlier run of
the same study (`bench.cost.plan.hours`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.plugins import call_prompts
from bench.console import say
from bench.cost.plan import checkpoints as known
from bench.cost.plan.hours import launch_lines, projected_lines, time_lines, work_lines
from bench.cost.plan.parts import (
    GB,
    Part,
    metric_parts,
    model_parts,
    no_tokenizer,
    parts_table,
)
from bench.cost.plan.plan import Call, Load, Moment, Plan

if TYPE_CHECKING:
    from bench.config.schema import DecoderEntry, StudyConfig


def cmd_plan(words: Sequence[str]) -> int:
    """What a study needs before it starts: downloads, GPU memory, images, hours.
    With launch= also shards and hours of workers. Loads no model and fetches nothing.
    Settings: study decoders run_dir ...
        launch=NAME    and its settings, as `run` takes them
        hardware=NAME  hours on a machine that is not here (`list hardware`), projected from its
                       data sheet
    Example: plan study=lantern_table

    Raises ConfigError as `run` would.
    """
    from bench.config.compose import compose_study
    from bench.cost.project.settings import machine_of
    from bench.run.launch.task import asked

    machine, words = machine_of(words)
    mine = asked(words)
    plan = make(compose_study(mine.words))
    config = plan.config
    say(
        f"{config.name}: {config.model.name} on {config.backend.device} ({config.backend.dtype}), "
        f"{len(config.decoders)} decoders, into {config.run_dir}"
    )
    say("\n" + parts_table(plan.parts))
    say("\n" + "\n".join(_download_lines(plan)))
    say("\n" + "\n".join(_memory_lines(plan)))
    say("\n" + "\n".join(work_lines(plan)))
    say("\n" + "\n".join(time_lines(plan)))
    if machine is not None:
        say("\n" + "\n".join(projected_lines(plan, machine)))
    if mine.launch is not None:
        say("\n" + "\n".join(launch_lines(plan, mine.launch)))
    for note in plan.notes:
        say(f"note: {note}")
    return 0


def make(config: StudyConfig) -> Plan:
    """The plan of a study; looks at the disk, not at the network."""
    notes: list[str] = []
    source, usual, embedded = known.source_of(config.model)
    shape = known.shape_of_source(config.model, source, usual.shape if usual else None)
    vq = usual.vq if usual else None
    if shape is None:
        notes.append(
            f"the shape of {config.model.name} is not known, so its memory is not either; public "
            "models are in bench/cost/plan/checkpoints.py"
        )
    parts = model_parts(config, source, shape, usual, embedded) + metric_parts(config)
    notes += no_tokenizer(config, source, usual)
    calls = _calls(config, usual.cfg if usual else 2.0, notes)
    notes += _files(config)
    if Path(str(config.prompts.kwargs.get("path") or "")).is_file():  # what `run` would refuse
        call_prompts(config.prompts, config.prompts_needed)
    return Plan(config, shape, vq, parts, calls, notes)


def _calls(config: StudyConfig, usual_cfg: float, notes: list[str]) -> list[Call]:
    """Every entry in every protocol that runs."""
    found = []
    for entry in config.decoders:
        cfg = entry.sampling.cfg if entry.sampling.cfg is not None else usual_cfg
        nodes, depth, session = _tree(entry, notes)
        for protocol, batch, count in (
            ("latency", max(config.latency.batch), config.latency.prompts),
            ("quality", min(config.quality.batch, config.quality.images), config.quality.images),
        ):
            if count:
                load = Load(batch, 1 if cfg == 1 else 2, nodes, depth, session)
                found.append(Call(entry.name, protocol, load))
    return found


def _tree(entry: DecoderEntry, notes: list[str]) -> tuple[int, int, int]:
    """(nodes, depth, session nodes) of an entry's draft tree; zeros without one. A tree needs no
    model to be built; one that does is counted as none, with a note."""
    from bench.config.plugins import tree_of
    from bench.run.outcome import Failure

    tree = tree_of(entry)
    if tree is None:
        return 0, 0, 0
    if isinstance(tree, Failure):
        notes.append(f"the tree of {entry.name} cannot be built without its model ({tree.error})")
        return 0, 0, 0
    return tree.nodes, tree.depth, tree.session_nodes


def _files(config: StudyConfig) -> list[str]:
    """Files and folders named by prompts and metric that are not there."""
    found = []
    for group, loader in (("prompts", config.prompts), ("metric", config.metric)):
        for key, value in (loader.kwargs if loader else {}).items():
            path = isinstance(value, str) and ("/" in value) and not key.endswith("dir")
            if path and not Path(value).expanduser().exists():
                if known.HUB_ID.fullmatch(value) and not Path(value).suffix:
                    continue
                found.append(
                    f"{group}.{key}: {value} is not there; put it there before the run, or set "
                    f"{group}.{key}= to where it is"
                )
    return found


def _download_lines(plan: Plan) -> list[str]:
    total = f"to download: {plan.download / GB:.1f} GB"
    if any(part.estimated for part in plan.parts):
        total += " (~ estimated: parameters x bytes; float32 where the dtype is not published)"
    lines = [total]
    unknown = [part.source for part in plan.parts if part.download is None]
    if unknown:
        lines.append(f"size not known, not counted: {', '.join(unknown)}")
    by_hand = [part for part in plan.parts if part.by_hand and part.missing]
    lines += [f"by hand: {part.missing[0]} ({_origin(part)})" for part in by_hand]
    return lines


def _origin(part: Part) -> str:
    release = "Meta's Chameleon release, after its form is signed"
    return part.source if part.role == "metric" else release


def _memory_lines(plan: Plan) -> list[str]:
    """The fullest moment of each protocol."""
    device = "GPU memory" if plan.config.backend.device.startswith("cuda") else "memory"
    moments = plan.fullest().values()
    if not moments:
        return [f"{device}: not known"]
    lines = [f"{device} (estimated): weights {plan.weights / GB:.1f} GB"]
    return lines + [_moment_line(moment) for moment in moments]


def _moment_line(moment: Moment) -> str:
    call, states = moment.call, moment.states
    line = f"  {moment.peak / GB:.1f} GB at most in "
    line += f"{call.decoder}, {call.protocol} (batch {call.load.batch})"
    if states:
        line += (
            f": caches of {states} recorded step{'s' if states > 1 else ''} "
            f"{moment.caches / GB:.1f} GB, their pool {moment.pool / GB:.1f} GB"
        )
    return line
