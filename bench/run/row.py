"""A row of records.parquet, made here alone: of the run's constants for its decoder, the job, and
what was measured of the call. `bench.store.columns` says what each column means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from bench.config.schema import DecoderVariant, StudyConfig
from bench.measure.device import Provenance
from bench.measure.meter import Meter, now
from bench.prompts import Prompt
from bench.run.schedule import Job
from bench.store.columns import SCHEMA_VERSION, empty_measures
from bench.store.folder import Record
from decoders.api import AcceptRule, Generation, VerifiedPairs
from metrics.traces import from_trace, output_tv


def constants(
    config: StudyConfig,
    variant: DecoderVariant,
    labels: Mapping[str, str],
    code: str,
    origin: Provenance,
) -> Record:
    """What all rows of a decoder share. labels: its parts in words; code: the digest of its code
    and weights."""
    return {
        "schema_version": SCHEMA_VERSION,
        "study": config.name,
        "config_hash": config.hash,
        "model": config.model.name,
        "backend": config.backend.name,
        "device": config.backend.device,
        "dtype": config.backend.dtype,
        "decoder": variant.name,
        **vars(variant.sampling),
        **labels,
        "code": code,
        **vars(origin),
        "versions": json.dumps(origin.versions, sort_keys=True),
    }


def row(
    shared: Mapping[str, Any], job: Job, prompt: Prompt, index: int, columns: Mapping[str, Any]
) -> Record:
    """The row of an image that came out. shared: `constants`; columns: of `measured`."""
    return {
        **shared,
        "protocol": job.protocol,
        "prompt_index": index,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "category": prompt.category,
        "seed": job.seed,
        "batch": job.size,
        "block": job.block,
        "status": "ok",
        "error": "",
        **columns,
    }


def failed(error: str) -> dict[str, Any]:
    """The columns of an image that did not."""
    return {**empty_measures(), "started_at": now(), "status": "failed", "error": error}


def measured(
    generation: Generation, meter: Meter, timed: bool, rule: AcceptRule | None
) -> list[dict[str, Any]]:
    """The columns of each image of a call that were measured.

    meter: has measured the call; timed: whether times of phases are recorded; else only
    seconds_batch says how long the call took. Raises MetricError where the trace contradicts
    itself.
    """
    trace, load = generation.trace, meter.load
    # A captured step is one launch: its phases are not known, only `step`.
    unknown = math.nan if "step" in trace.seconds else 0.0
    seconds = {"prefill": 0.0, **dict.fromkeys(("draft", "forward", "accept"), unknown)}
    seconds |= {name: trace.seconds[name] for name in seconds if name in trace.seconds}
    timings = {f"seconds_{name}": value for name, value in (seconds | meter.seconds).items()}
    timings |= {f"cpu_{name}": getattr(load, name) for name in ("own", "others", "steal")}
    timings |= {"disturbed": load.disturbed, "idle": trace.idle}
    tvs = tv_of_pairs(rule, trace.pairs, len(generation.codes))
    rows = []
    for b, accepted in enumerate(from_trace(trace)):
        steps = trace.accepted[b]  # [S]
        columns = {
            **empty_measures(),
            **(timings if timed else {}),
            **tvs[b],
            "started_at": meter.started,
            "seconds_batch": meter.seconds["total"],
            "mal": accepted.mal,
            "mal_no_bonus": accepted.mal_no_bonus,
            "mal_expected": math.nan if trace.expected is None else float(trace.expected[b]),
            "nfe": accepted.nfe,
            "drafter_calls": int(trace.drafter_calls[b]),
            "tree_depth": trace.tree_depth,
            "tree_nodes": trace.tree_nodes,
            "accepted": steps[steps >= 0].tolist(),
            "peak_memory_mb": meter.peak_mb,
            "path": ", ".join(f"{phase}={ran}" for phase, ran in trace.path.items()),
            "codes": generation.codes[b].tolist(),
        }
        for column in ("kind", "depth", "step", "tv_shift", "bound"):
            columns[column] = getattr(trace, column)[b].tolist()
        rows.append(columns)
    return rows


def tv_of_pairs(
    rule: AcceptRule | None, pairs: VerifiedPairs | None, batch: int
) -> list[dict[str, list[float]]]:
    """Computes output TV and its two bounds at recorded pairs, of each image of a batch; empty
    where there are none."""
    names = "tv_output", "tv_declared_bound", "tv_output_bound"
    rows: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in range(batch)]
    if rule is None or pairs is None:
        return rows
    for name, values in zip(names, output_tv(rule, pairs), strict=True):
        for image, value in zip(pairs.image.tolist(), values.tolist(), strict=True):
            rows[image][name].append(value)
    return rows
