"""The hours of a study: counts of images, and seconds an image, measured or assumed.

Measured: the rows of an earlier, perhaps unfinished run in the study's own folder. Assumed: the
formulas of `bench.plan.costs` with the speed and the codes a step of `bench.plan.speed`, which are
stated. Text encoding, the gate, writing images and quality metrics are not included.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.plan.checkpoints import read_object
from bench.plan.costs import ASSUMED_MAL, BYTES, Speed, image_seconds
from bench.plan.speed import Committed, assumption_lines, committed, speed_of

if TYPE_CHECKING:
    from bench.config.schema import DecoderEntry, StudyConfig
    from bench.plan.command import Plan

log = logging.getLogger(__name__)
SAMPLE = 16  # rows read of each cell and protocol
COLUMNS = ("decoder", "protocol", "status", "batch", "seconds_total", "seconds_batch")
BYTES_A_PIXEL = 1.6  # of a PNG of a generated image
PROTOCOLS = ("latency", "quality", "floor")


@dataclass(frozen=True)
class Seen:
    """Rows of one decoder and protocol in an earlier run: how many, and seconds an image."""

    rows: int
    seconds: float


def images(config: StudyConfig, entry: DecoderEntry, protocol: str) -> int:
    """Images of an entry, each once however often it is timed, warm-up not counted. The floor:
    baselines that sample."""
    if protocol == "latency":
        return config.latency.prompts
    if protocol == "quality":
        return config.quality.images
    floor = config.quality.floor and entry.baseline and entry.sampling.temperature != 0
    return len(config.floor_seeds) * config.quality.images if floor else 0


def decodings(config: StudyConfig, entry: DecoderEntry, protocol: str) -> int:
    """How often an entry decodes an image of a protocol: as `images`, each as often as timed."""
    if protocol == "latency":
        return config.latency.timings
    return images(config, entry, protocol)


def warm_ups(config: StudyConfig, left: float = 1.0) -> int:
    """Images that a decoder decodes untimed, at most: until stable, then one before each further
    block. left: the share of the timed images that is still to do."""
    latency = config.latency
    blocks = math.ceil(left * latency.parts) if latency.prompts else 0
    return latency.warmup_max + blocks - 1 if blocks else 0


def work_lines(plan: Plan) -> list[str]:
    """How many images, and what they take on disk."""
    config = plan.config
    counts = {p: sum(images(config, e, p) for e in config.decoders) for p in PROTOCOLS}
    warm = warm_ups(config) * len(config.decoders)
    repeats = config.latency.repeats
    again = f", {repeats} times each" if repeats > 1 else ""
    lines = [
        f"work: {len(config.decoders)} decoders; {counts['latency']:,} timed images"
        f"{again} (batch 1, and at most {warm} to warm up), {counts['quality']:,} for quality "
        f"(batch {config.quality.batch}), {counts['floor']:,} for the reseed floor"
    ]
    if plan.shape is not None and config.keep_images:
        total = sum(counts.values()) * (plan.shape.side**2 * BYTES_A_PIXEL)
        lines.append(f"  pictures: about {total / 1e9:.1f} GB in {config.run_dir}/images")
    return lines


def time_lines(plan: Plan, assumed: Mapping[str, Speed]) -> list[str]:
    """Hours by protocol, from what was measured or what is assumed."""
    config = plan.config
    seen = earlier(Path(config.run_dir), config)
    hours, rest, guessed = dict.fromkeys(PROTOCOLS, 0.0), dict.fromkeys(PROTOCOLS, 0.0), False
    speed, drawn = speed_of(config, plan.shape, assumed), committed(config)
    for entry in config.decoders:
        for protocol in PROTOCOLS:
            count = decodings(config, entry, protocol)
            batched = (entry.name, "latency" if protocol == "latency" else "quality")
            found = seen.get((entry.name, protocol)) or seen.get(batched)
            done = seen.get((entry.name, protocol), Seen(0, 0.0)).rows
            if count and found is None:
                guessed = True
                if plan.shape is None:
                    return ["time: not known; the model's shape is not, and nothing was measured"]
            if found:
                seconds = found.seconds
            else:
                seconds = _assumed(plan, entry.name, protocol, speed, drawn.get(entry.name))
            hours[protocol] += count * seconds / 3600
            rest[protocol] += max(count - done, 0) * seconds / 3600
    if rest["latency"]:
        warm = warm_ups(config, rest["latency"] / hours["latency"])
        rest["latency"] += warm / config.latency.timings * hours["latency"]
    parts = ", ".join(f"{p} {_hours(rest[p])}" for p in PROTOCOLS if hours[p])
    lines = [f"time: about {_hours(sum(rest.values()))} ({parts})"]
    if seen:
        lines.append(f"  measured: seconds of {sum(s.rows for s in seen.values())} rows there")
    if guessed:
        trees = sum(entry.spec.tree is not None for entry in config.decoders)
        waiting = any(call.load.batch > 1 for call in plan.calls)
        lines += assumption_lines(speed, drawn, trees, waiting)
    lines.append("  without text encoding, the gate, writing images and quality metrics")
    return lines


def _assumed(
    plan: Plan, decoder: str, protocol: str, speed: Speed, drawn: Committed | None
) -> float:
    """Seconds an image by formula; 0 where the protocol does not run."""
    wanted = (decoder, "latency" if protocol == "latency" else "quality")
    size, mal = BYTES[plan.config.backend.dtype], drawn.mal if drawn else ASSUMED_MAL
    for call in plan.calls:
        if plan.shape is not None and (call.decoder, call.protocol) == wanted:
            return image_seconds(plan.shape, call.load, size, speed, mal)
    return 0.0


def _hours(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} h"
    return f"{value:.1f} h" if value >= 1 else f"{60 * value:.1f} min"


def earlier(folder: Path, config: StudyConfig) -> dict[tuple[str, str], Seen]:
    """(decoder, protocol) -> what an earlier run of this very configuration recorded there. A
    folder of another configuration would be refused by `run`, so it tells nothing."""
    study = folder / "study.json"
    if not study.is_file():
        return {}
    if read_object(study).get("config_hash") != config.hash:
        log.warning("%s holds another configuration; its rows are not used", folder)
        return {}
    found = {}
    for entry in config.decoders:
        for protocol in PROTOCOLS:
            paths = sorted(folder.glob(f"rows/{entry.name}-????????/{protocol}-*.parquet"))
            seconds = _seconds(paths[-SAMPLE:])
            if seconds is not None:
                found[entry.name, protocol] = Seen(len(paths), seconds)
    return found


def _seconds(paths: list[Path]) -> float | None:
    """Mean seconds an image of the rows that came out; None without any."""
    from bench.records import schema as records

    found = []
    for path in paths:
        table = records.read(path)  # None: damaged, which says nothing of times
        row = {} if table is None else table.select(list(COLUMNS)).to_pylist()[0]
        if row.get("status") == "ok":
            alone = row["protocol"] == "latency"
            whole = row["seconds_total"] if alone else row["seconds_batch"] / row["batch"]
            found.append(float(whole))
    return sum(found) / len(found) if found else None
