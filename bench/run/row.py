"""A row of records.parquet, made here alone: of the run's constants for its decoder, the job, and
what was measured of the call. `bench.store.columns` says what each column means."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from bench.config.schema import DecoderVariant, StudyConfig
from bench.measure.card import CardState
from bench.measure.device import Provenance
from bench.measure.meter import Meter, now
from bench.prompts import Prompt
from bench.run.schedule import Job
from bench.store.columns import EMPTY, SCHEMA_VERSION, Row
from decoders.api import AcceptRule, Generation
from metrics.ambiguity import ambiguity
from metrics.output_law import output_tv
from metrics.traces import from_trace

TV = ("tv_output", "tv_declared_bound", "tv_output_bound")
MEANS = [(of, what) for of in ("target", "drafter") for what in ("mass", "entropy")]
PER_STEP = {
    "mal_expected": "expected",
    "drafted_depth": "drafted_depth",
    "drafted_nodes": "drafted_nodes",
}


def constants_of(
    config: StudyConfig, variant: DecoderVariant, labels: Row, code: str, origin: Provenance
) -> Row:
    """What all rows of a decoder share. labels: of its parts; code: the digest of its code and
    weights."""
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


def card_columns(card: CardState) -> Row:
    """What a timed row says of the card."""
    return {
        "gpu_clock": card.clock_mhz,
        "gpu_limits": card.limits,
        "gpu_use": card.use,
        "gpu_others": card.others,
    }


def row_of(constants: Row, job: Job, prompts: Sequence[Prompt], index: int) -> Row:
    """A row without what is measured. constants: of `constants_of`; prompts: the run's; index: of
    one."""
    prompt = prompts[index]
    return {
        **constants,
        **EMPTY,
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
    }


def failed_rows(constants: Row, job: Job, prompts: Sequence[Prompt], error: str) -> list[Row]:
    failed = {"started_at": now(), "status": "failed", "error": error}
    return [row_of(constants, job, prompts, index) | failed for index in job.indices]


def rows_of(
    constants: Row,
    job: Job,
    prompts: Sequence[Prompt],
    indices: Sequence[int],
    generation: Generation,
    meter: Meter,
    rule: AcceptRule | None,
) -> list[Row]:
    """The rows of the images of a call. constants, prompts: as in `row_of`; indices: of the prompts
    that the call decoded first; meter: has measured it. Of a job that is not timed only
    seconds_batch is recorded. Raises MetricError where the trace contradicts itself."""
    trace, load = generation.trace, meter.load
    rows = [row_of(constants, job, prompts, index) for index in indices]
    for row in rows:
        row |= {
            "started_at": meter.started,
            "seconds_batch": meter.seconds["total"],
            "tree_depth": trace.tree_depth,
            "tree_nodes": trace.tree_nodes,
            "peak_memory_mb": meter.peak_mb,
            "path": ", ".join([f"{phase}={ran}" for phase, ran in trace.path.items()]),
        }
    if job.timed:
        # A captured step is one launch: its phases are not known, only `step`.
        unknown = math.nan if "step" in trace.seconds else 0.0
        seconds = {"prefill": 0.0, **dict.fromkeys(("draft", "forward", "accept"), unknown)}
        seconds |= {name: trace.seconds[name] for name in seconds if name in trace.seconds}
        timings = {f"seconds_{name}": value for name, value in (seconds | meter.seconds).items()}
        timings |= {f"cpu_{name}": getattr(load, name) for name in ("own", "others", "steal")}
        timings |= card_columns(meter.card_state)
        for row in rows:
            row |= {**timings, "disturbed": load.disturbed, "idle": trace.idle}
    if rule is not None and trace.pairs is not None:
        at_pairs = dict(zip(TV, output_tv(rule, trace.pairs), strict=True))  # [M] each
        spread = ambiguity(trace.pairs)
        at_pairs |= {"alpha": spread.alpha, "alpha_depth": trace.pairs.depth + 1}
        means = {f"{of}_{what}": getattr(spread, f"{of}_{what}") for of, what in MEANS}
        for image, row in enumerate(rows):
            mine = (trace.pairs.image == image).nonzero()[:, 0]
            row |= {name: values[mine].tolist() for name, values in at_pairs.items()}
            if len(mine):
                row |= {n: x[mine].mean(0).tolist() for n, x in means.items() if len(x)}
    for b, (row, accepted) in enumerate(zip(rows, from_trace(trace), strict=False)):
        steps = trace.accepted[b]  # [S]
        row |= {
            "mal": accepted.mal,
            "mal_no_bonus": accepted.mal_no_bonus,
            "nfe": accepted.nfe,
            "drafter_calls": int(trace.drafter_calls[b]),
            "accepted": steps[steps >= 0].tolist(),
            "codes": generation.codes[b].tolist(),
        }
        for column, name in PER_STEP.items():
            mean = getattr(trace, name)
            row[column] = math.nan if mean is None else float(mean[b])
        for column in ("kind", "depth", "step", "tv_shift", "bound"):
            row[column] = getattr(trace, column)[b].tolist()
    return rows
