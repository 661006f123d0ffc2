"""From an outcome (or a failure) of one call to the result rows of its images.

Why apart from the runner: what a row says is the schema's business, when it is written the
runner's. Tensors become plain numbers and lists here and nowhere else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.config.schedule import Batch
from bench.config.schema import StudyConfig, digest
from bench.measure.device import Provenance
from bench.prompts import Prompt
from bench.records.rows import SCHEMA_VERSION, empty_measures
from bench.records.study import identity_of
from bench.run.outcome import Outcome
from decoders.api import AcceptRule, VerifiedPairs
from metrics.traces import from_trace, output_tv


@dataclass(frozen=True)
class Context:
    """What all rows of a run share."""

    config: StudyConfig
    provenance: Provenance
    prompts: Sequence[Prompt]
    labels: Mapping[str, Mapping[str, str]]  # of each cell: loop, drafter, tree, acceptance
    sources: Mapping[str, Mapping[str, str]]  # of each cell: file -> digest of its code
    weights: Mapping[str, Mapping[str, str]]  # of each cell: file -> SHA-256

    def identity(self, batch: Batch, index: int) -> dict[str, Any]:
        """The columns that are known before anything runs."""
        sampling, prompt = batch.cell.sampling, self.prompts[index]
        made = self.provenance
        return {
            "schema_version": SCHEMA_VERSION,
            "study": self.config.name,
            "protocol": batch.protocol,
            "model": self.config.model.name,
            "decoder": batch.cell.entry.name,
            **self.labels[batch.cell.key],
            "backend": self.config.backend.name,
            "device": self.config.backend.device,
            "dtype": self.config.backend.dtype,
            "temperature": float(sampling.temperature),
            "cfg": float(sampling.cfg),
            "top_k": int(sampling.top_k),
            "top_p": float(sampling.top_p),
            "prompt_index": index,
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "category": prompt.category,
            "seed": batch.seed,
            "batch": batch.size,
            "block": batch.block,
            "repeat": batch.repeat,
            "git_commit": made.git_commit,
            "git_dirty": made.git_dirty,
            "versions": json.dumps(made.versions, sort_keys=True),
            "cpu": made.cpu,
            "gpu": made.gpu,
            "threads": made.threads,
            "config_hash": self.config.hash,
            "weights_hash": json.dumps(self.weights[batch.cell.key], sort_keys=True),
            "sources": json.dumps(self.sources[batch.cell.key], sort_keys=True),
            "prompt_hash": digest(prompt.text),
        }

    def expected(self, batches: Sequence[Batch]) -> dict[tuple[str, str], dict[str, Any]]:
        """(cell, stem) of every row -> what is expected of it (`bench.records.study`)."""
        return {
            (batch.cell.key, batch.stem(i)): identity_of(self.identity(batch, i))
            for batch in batches
            for i in batch.indices
        }

    def failed(self, batch: Batch, index: int, error: str, started: str) -> dict[str, Any]:
        """The row of an image that did not come to be."""
        state = {"status": "failed", "error": error, "started_at": started}
        return {**self.identity(batch, index), **empty_measures(), **state}


def measured(outcome: Outcome, latency: bool, rule: AcceptRule | None) -> list[dict[str, Any]]:
    """The measured columns of each image of a call.

    latency: whether the times are those of single images (a batch of one); else they are NaN and
    only seconds_batch says how long the call took, and nothing of idle rows. Raises MetricError
    where the trace contradicts itself.
    """
    trace = outcome.generation.trace
    nan = math.nan
    # A recorded step is one launch: its phases are not known, only `step`.
    unknown = nan if "step" in trace.seconds else 0.0
    stages = {key: trace.seconds.get(key, unknown) for key in ("draft", "forward", "accept")}
    stages = {"prefill": trace.seconds.get("prefill", 0.0), **stages}
    times = {f"seconds_{key}": value if latency else nan for key, value in stages.items()}
    times["seconds_text"] = outcome.seconds_text if latency else nan
    times["seconds_vq"] = outcome.seconds_vq if latency else nan
    times["seconds_total"] = outcome.seconds_total if latency else nan
    load = {f"cpu_{name}": getattr(outcome.load, name) for name in ("own", "others", "steal")}
    at_nodes = output(rule, trace.pairs, len(outcome.generation.codes))
    rows = []
    for b, accepted in enumerate(from_trace(trace)):
        steps = trace.accepted[b]  # [S]
        row = {
            **empty_measures(),
            **times,
            **(load if latency else {}),
            **at_nodes[b],
            "seconds_batch": outcome.seconds_total,
            "mal": accepted.mal,
            "mal_no_bonus": accepted.mal_no_bonus,
            "mal_expected": nan if trace.expected is None else float(trace.expected[b]),
            "nfe": accepted.nfe,
            "idle": trace.idle if latency else nan,
            "drafter_calls": int(trace.drafter_calls[b]),
            "tree_depth": trace.tree_depth,
            "tree_nodes": trace.tree_nodes,
            "accepted": steps[steps >= 0].tolist(),
            "peak_memory_mb": outcome.peak_mb,
            "path": ", ".join(f"{phase}={ran}" for phase, ran in trace.path.items()),
            "codes": outcome.generation.codes[b].tolist(),
        }
        for column in ("kind", "depth", "step", "moved", "bound"):
            row[column] = getattr(trace, column)[b].tolist()
        rows.append(row)
    return rows


def output(
    rule: AcceptRule | None, pairs: VerifiedPairs | None, batch: int
) -> list[dict[str, list[float]]]:
    """True output TV and its two bounds at recorded pairs, of each image of a batch; empty where
    there are none."""
    names = "tv_output", "tv_declared_bound", "tv_output_bound"
    rows: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in range(batch)]
    if rule is None or pairs is None:
        return rows
    found = [values.tolist() for values in output_tv(rule, pairs)]
    images = [0] * len(pairs.p) if pairs.image is None else pairs.image.tolist()
    for image, *values in zip(images, *found, strict=True):
        for name, value in zip(names, values, strict=True):
            rows[image][name].append(value)
    return rows
