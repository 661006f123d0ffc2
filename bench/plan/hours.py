"""The hours of a study: counts of images, and seconds per image as measured.

The seconds come from the rows in the study's own folder: of a run that is not finished, or of a
small one on the same model and backend. Without any, a plan has no hours but those projected to a
machine by its data sheet. Text encoding, the gate, writing images and quality metrics are not
included.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config import schedule
from bench.config.schema import StudyConfig
from bench.plan.plan import Plan
from bench.predict.machines import Hardware
from bench.predict.recorded import Recorded
from bench.predict.there import of_shape, project
from bench.records import rows as records
from bench.records.study import read_study
from bench.run.launch.task import LaunchConfig
from decoders.api import Sampling
from metrics.stats import UNKNOWN

log = logging.getLogger(__name__)
SAMPLE = 16  # rows read of each cell and protocol
COLUMNS = ("decoder", "protocol", "status", "batch", "seconds_total", "seconds_batch")
BYTES_A_PIXEL = 1.6  # of a PNG of a generated image
PROTOCOLS = ("latency", "batched", "quality", "reseed")
TIMED = PROTOCOLS[:2]
NOTHING = (
    "time: nothing is measured yet; the first block of a run measures it, or a small run with "
    "latency.prompts=1 latency.blocks=1 quality.images=1"
)
LEFT_OUT = "  without text encoding, the gate, writing images and quality metrics"


@dataclass(frozen=True)
class Seen:
    """Rows of one decoder and protocol in an earlier run: how many, seconds per image, and how many
    of them this study need not do again."""

    rows: int
    seconds: float
    done: int


def calls_of(config: StudyConfig) -> Counter[tuple[str, str, int, int]]:
    """(decoder, protocol, images at once, images of a call) -> calls, warm-up not counted."""
    every = schedule.cells(config, Sampling())  # who is decoded again under another seed
    timed, quality = (
        schedule.latency_batches(config, every),
        schedule.quality_batches(config, every),
    )
    return Counter(
        (b.cell.entry.name, b.protocol, b.size, len(b.indices)) for b in (*timed, *quality)
    )


def images(config: StudyConfig) -> Counter[tuple[str, str]]:
    """Images by decoder and protocol, each once however often it is timed."""
    found = Counter[tuple[str, str]]()
    for (name, protocol, _, each), calls in calls_of(config).items():
        times = config.latency.repeats if protocol in TIMED else 1
        found[name, protocol] += calls * each // times
    return found


def warm_ups(config: StudyConfig, left: float = 1.0) -> int:
    """Images that a decoder decodes untimed, at most: until stable, then one before each further
    block. left: the share of the timed images that is still to do."""
    latency = config.latency
    blocks = math.ceil(left * latency.parts) if latency.prompts else 0
    return latency.warmup_max + blocks - 1 if blocks else 0


def work_lines(plan: Plan) -> list[str]:
    """How many images, and what they take on disk."""
    config = plan.config
    counts = dict.fromkeys(PROTOCOLS, 0)
    for (_, protocol), count in images(config).items():
        counts[protocol] += count
    warm = warm_ups(config) * len(config.decoders)
    repeats = config.latency.repeats
    again = f", {repeats} times each" if repeats > 1 else ""
    sizes = ", ".join(str(size) for size in config.latency.sizes if size > 1)
    batched = f", {counts['batched']:,} in batches of {sizes}" if sizes else ""
    lines = [
        f"work: {len(config.decoders)} decoders; {counts['latency']:,} timed images"
        f"{again} (batch 1, and at most {warm} to warm up){batched}, {counts['quality']:,} for "
        f"quality (batch {config.quality.batch}), {counts['reseed']:,} for reseeds"
    ]
    if plan.shape is not None and config.keep_images:
        total = (sum(counts.values()) - counts["batched"]) * (plan.shape.side**2 * BYTES_A_PIXEL)
        lines.append(f"  pictures: about {total / 1e9:.1f} GB in {config.run_dir}/images")
    return lines


def time_lines(plan: Plan) -> list[str]:
    """Hours by protocol, from what was measured; what was not is named and not counted."""
    config = plan.config
    seen = earlier(Path(config.run_dir), config)
    if not seen:
        return [NOTHING]
    hours, rest, missing = _each(config, seen)
    if rest["latency"]:
        warm = warm_ups(config, rest["latency"] / hours["latency"])
        rest["latency"] += warm / config.latency.timings * hours["latency"]
    parts = ", ".join(f"{p} {_hours(rest[p])}" for p in PROTOCOLS if hours[p])
    rows = sum(found.rows for found in seen.values())
    lines = [f"time: about {_hours(sum(rest.values()))} ({parts})"]
    lines.append(f"  measured: seconds of {rows} rows in {config.run_dir}")
    lines += [f"  not measured yet, not counted: {p} of {', '.join(n)}" for p, n in missing.items()]
    return [*lines, LEFT_OUT]


def projected_lines(plan: Plan, machine: Hardware) -> list[str]:
    """Hours on a machine by its data sheet. How many drafts are accepted is not known before a run,
    so they lie between every one and none."""
    if plan.shape is None:
        return [f"time on {machine.gpu}: not projected, as the model's shape is not known"]
    sizes = of_shape(plan.config.model.name, plan.shape)
    loads = {call.decoder: call.load for call in plan.calls}
    least = most = 0.0
    every = calls_of(plan.config)
    for name in loads:
        every[name, "warm-up", 1, 1] = warm_ups(plan.config)
    for (name, _, size, each), calls in every.items():
        load = loads[name]
        ends = [
            Recorded(
                name, "", 1.0, load.guidance_rows * size, 0, (accepted,) * load.depth, load.nodes,
                float(load.depth), UNKNOWN,
            )
            for accepted in (1.0, 0.0)
        ]  # fmt: skip
        fast, slow = (project(end, sizes, machine).prediction.seconds for end in ends)
        hours = calls * math.ceil(each / size) / 3600
        least, most = least + hours * fast, most + hours * slow
    alone = [e.name for e in plan.config.decoders if not (e.baseline or loads[e.name].nodes)]
    span = f"{_hours(least)} with every draft accepted, {_hours(most)} with none"
    return [
        f"time on {machine.gpu}, projected: {span if most > least else _hours(most)}",
        f"  floors of its data sheet in bfloat16 ({machine}); real steps are slower",
        *([f"  their drafts are not known, counted as AR: {', '.join(alone)}"] if alone else []),
        LEFT_OUT,
    ]


def launch_lines(plan: Plan, launch: LaunchConfig) -> list[str]:
    """Shards, workers and hours of a launch: quality images and reseeds are the workers'."""
    config = plan.config
    each = -(-config.quality.images // launch.count)
    rounds = -(-launch.count // launch.workers)
    lines = [
        f"launch={launch.name}: {launch.count} shards of at most {each:,} images per decoder, on "
        f"{launch.workers} workers (at most {rounds} for each worker)"
    ]
    if config.latency.prompts:
        lines.append("  timed images are not the workers': they need a quiet machine, afterwards")
    seen = earlier(Path(config.run_dir), config)
    if not seen:
        return [*lines, "  " + NOTHING]
    _, rest, missing = _each(config, seen)
    work = rest["quality"] + rest["reseed"]
    lines.append(
        f"  about {_hours(work)} of one such machine, {_hours(work / launch.count * rounds)} until "
        "the last worker is done, and for each shard the time that the model takes to load"
    )
    if launch.where == "local":
        lines.append("  workers share this machine's cores: measured is what one run alone takes")
    both = [p for p in missing if p not in TIMED]
    return lines + [f"  not counted: {p} of {', '.join(missing[p])}" for p in both]


def _each(
    config: StudyConfig, seen: Mapping[tuple[str, str], Seen]
) -> tuple[dict[str, float], dict[str, float], dict[str, list[str]]]:
    """Of each protocol: hours in all, hours still to do, decoders that were never measured."""
    hours, rest = dict.fromkeys(PROTOCOLS, 0.0), dict.fromkeys(PROTOCOLS, 0.0)
    missing: dict[str, list[str]] = {}
    every = images(config)
    for entry in config.decoders:
        for protocol in PROTOCOLS:
            once = every[entry.name, protocol]
            batched = "latency" if protocol == "latency" else "quality"
            own = seen.get((entry.name, protocol))
            found = own or seen.get((entry.name, batched))
            count = once * (config.latency.repeats if protocol in TIMED else 1)
            if found is None:
                if count:
                    missing.setdefault(protocol, []).append(entry.name)
                continue
            hours[protocol] += count * found.seconds / 3600
            rest[protocol] += max(count - (own.done if own else 0), 0) * found.seconds / 3600
    return hours, rest, missing


def _hours(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} h"
    if value >= 1:
        return f"{value:.1f} h"
    return f"{60 * value:.1f} min" if value >= 1 / 60 else f"{3600 * value:.0f} s"


def earlier(folder: Path, config: StudyConfig) -> dict[tuple[str, str], Seen]:
    """(decoder, protocol) -> what a run in this folder recorded of the study's decoders, on the
    same model and backend. Rows of other counts, seeds or prompts tell seconds, but `run` does not
    resume them, so none of them is done."""
    study = folder / "study.json"
    if not study.is_file():
        return {}
    there, here = read_study(study), json.loads(json.dumps(config.measured()))
    made = there.get("config", {})
    if any(made.get(key) != here[key] for key in ("model", "backend")):
        log.warning("%s holds another model or backend; its rows are not used", folder)
        return {}
    own = there.get("config_hash") == config.hash
    recorded = {_identity(entry) for entry in made.get("decoders", [])}
    found = {}
    for entry in here["decoders"]:
        if _identity(entry) not in recorded:
            continue
        for protocol in PROTOCOLS:
            paths = sorted(folder.glob(f"rows/{entry['name']}-????????/{protocol}[-0-9]*.parquet"))
            seconds = _seconds(paths[-SAMPLE:])
            if seconds is not None:
                done = len(paths) if own else 0
                found[entry["name"], protocol] = Seen(len(paths), seconds, done)
    return found


def _identity(entry: Mapping[str, Any]) -> str:
    """A decoder's name, parts and sampling."""
    return json.dumps([entry["name"], entry["spec"], entry["sampling"]], sort_keys=True)


def _seconds(paths: list[Path]) -> float | None:
    """Mean seconds per image of the rows that came out; None without any."""
    found = []
    for path in paths:
        table = records.read(path)  # None: damaged, which says nothing of times
        row = {} if table is None else table.select(list(COLUMNS)).to_pylist()[0]
        if row.get("status") == "ok":
            alone = row["protocol"] == "latency"
            whole = row["seconds_total"] if alone else row["seconds_batch"] / row["batch"]
            found.append(float(whole))
    return sum(found) / len(found) if found else None
