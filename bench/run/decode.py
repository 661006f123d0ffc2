"""From prompts to rows: decodes a job by one call, timed and checked. `bench.store.columns` says
what each column means.

Why the checks: a plug-in that returns a code outside the codebook, a trace of another shape or a
NaN image must become a failed row that says so, not a figure in a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bench.measure.card import CardState
from bench.measure.meter import Meter, now
from bench.prompts import Prompt
from bench.run.contender import Study
from bench.run.schedule import Job
from bench.store.columns import BATCHED, EMPTY, QUALITY, Row
from decoders.api import (
    TRACE_COLUMNS,
    Decoder,
    DecoderError,
    Generation,
    ImageModel,
    NumericalError,
    RefillError,
)
from decoders.models.pictures import decode_pictures
from decoders.noise import Noise
from metrics.ambiguity import ambiguity
from metrics.output_law import output_tv
from metrics.traces import from_trace

TV_COLUMNS = ("tv_output", "tv_declared_bound", "tv_output_bound")


def decode_job(study: Study, job: Job, decoder: Decoder) -> list[Row]:
    """Decodes a job; returns its rows, with the `picture` where images are kept. Raises what the
    decoder raises, and as `generate` does."""
    quality, variant = study.config.quality, job.contender.variant
    # At temperature 0 there is no output law.
    has_pairs = job.protocol == QUALITY and not variant.sampling.greedy
    pairs = quality.pairs / quality.images if has_pairs else 0
    decode_pixels = job.protocol != BATCHED and not job.contender.synthetic

    def decode(indices: Sequence[int], size: int) -> list[Row]:
        texts = [study.prompts[index].text for index in indices]
        generation, pictures = generate(
            study.model,
            decoder,
            texts,
            job.seed,
            study.meter,
            pairs=pairs,
            rows=size,
            decode_pixels=decode_pixels,
        )
        rows = rows_of(job, study.prompts, indices, generation, study.meter, decoder)
        if pictures is not None and study.config.keep_images:
            for row, picture in zip(rows, pictures, strict=False):
                row["picture"] = Image.fromarray(picture)
        return rows

    try:
        return decode(job.indices, job.size)
    except RefillError:
        if job.timed:
            raise
    rows, size = list[Row](), job.size
    for first in range(0, len(job.indices), size):  # each as slow as its slowest image
        batch = job.indices[first : first + size]
        rows += decode(batch, len(batch))
    return rows


@torch.inference_mode()
def generate(
    model: ImageModel,
    decoder: Decoder,
    prompts: list[str],
    seed: int,
    meter: Meter,
    *,
    pairs: float = 0,
    rows: int | None = None,
    decode_pixels: bool = True,
) -> tuple[Generation, Any]:
    """Decodes one image per prompt, `rows` at once (None: all); returns the codes with their trace,
    and the pictures, an array [B, H, W, 3] uint8 or None. The noise tables are made before the
    clock starts: they stand for the random numbers of a (seed, prompt) and are the same for every
    decoder. meter: measures the call and its parts, text, total (prefill and decoding) and vq;
    pairs: verified (p, q) pairs to record per image, on average; decode_pixels: whether pictures
    are made.
    Raises DecoderError where the decoder's answer is not what the contract says."""
    noise = Noise.for_prompts(seed, prompts, model.target.length).to(model.device)
    refill = {} if rows is None or rows >= len(prompts) else {"rows": rows}
    if refill and not decoder.refills:
        raise RefillError(
            f"{type(decoder).__name__} does not say `refills = True`: that its `generate` has "
            "`rows`, and goes on with the next image where one is done (`decoders.api.Decoder`). "
            "Time it with latency.requests=null"
        )
    pixels = images = None
    with meter.call():
        with meter.time("text"):
            text = model.text.encode(prompts)
        with meter.time("total"):
            generation = decoder.generate(text, noise, pairs=pairs, **refill)
        check(generation, len(prompts), model)
        codes = generation.codes.to(model.device)  # [B, L]
        with meter.time("vq"):
            if decode_pixels and model.draws:
                pixels = decode_pictures(model.tokenizer, codes)  # [B, 3, H, W]
        if pixels is not None:
            if not bool(torch.isfinite(pixels).all()):
                raise NumericalError("the tokenizer decoded NaN or infinite pixels")
            images = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    return generation, None if images is None else images.permute(0, 2, 3, 1).numpy()


def check(generation: Generation, batch: int, model: ImageModel) -> None:
    """Raises DecoderError unless codes and trace have the contract's shapes, kinds and ranges."""
    if not isinstance(generation, Generation):
        raise DecoderError(
            f"`generate` must return a Generation, found {type(generation).__name__}"
        )
    per_code, trace = (batch, model.target.length), generation.trace
    _require("codes", generation.codes, per_code, model.target.vocab_size - 1)
    _require("trace.target_calls", trace.target_calls, (batch,), 2**31 - 1)
    for name, column in TRACE_COLUMNS.items():
        values = getattr(trace, name)
        if values is not None or not column.optional:
            largest = None if column.dtype.is_floating_point else column.largest
            shape = per_code if column.per_code else (batch,)
            _require(f"trace.{name}", values, shape, largest, nan=column.optional)
    if trace.accepted.dim() != 2 or trace.accepted.shape[0] != batch:
        raise DecoderError(
            f"trace.accepted must be [{batch}, S], found {list(trace.accepted.shape)}"
        )


def _require(
    name: str, values: Tensor, shape: tuple[int, ...], largest: int | None, nan: bool = False
) -> None:
    """Raises DecoderError unless `values` has the shape and holds whole numbers in 0..largest;
    where that is None, floating numbers, without NaN unless `nan`."""
    if tuple(values.shape) != shape:
        raise DecoderError(f"{name} must be {list(shape)}, found {list(values.shape)}")
    if values.is_floating_point() != (largest is None):
        kind = "floating numbers" if largest is None else "whole numbers"
        raise DecoderError(f"{name} must hold {kind}, found {values.dtype}")
    if largest is None:
        if not nan and bool(values.isnan().any()):
            raise NumericalError(f"{name} holds NaN")
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > largest:
        raise DecoderError(f"{name} must lie in 0..{largest}, found {low}..{high}")


# ---- rows ---------------------------------------------------------------------------------------


def row_of(job: Job, prompts: Sequence[Prompt], index: int) -> Row:
    """A row without what is measured. prompts: the run's; index: of one."""
    prompt = prompts[index]
    return {
        **job.contender.constants,
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


def failed_rows(job: Job, prompts: Sequence[Prompt], error: str) -> list[Row]:
    failed = {"started_at": now(), "status": "failed", "error": error}
    return [row_of(job, prompts, index) | failed for index in job.indices]


def card_columns(card: CardState) -> Row:
    """What a timed row says of the card."""
    return {
        "gpu_clock": card.clock_mhz,
        "gpu_limits": card.limits,
        "gpu_use": card.use,
        "gpu_others": card.others,
    }


def rows_of(
    job: Job,
    prompts: Sequence[Prompt],
    indices: Sequence[int],
    generation: Generation,
    meter: Meter,
    decoder: Decoder,
) -> list[Row]:
    """The rows of the images of a call. prompts: the run's; indices: of those that the call decoded
    first; meter: has measured it. Of a job that is not timed only seconds_batch is recorded. Raises
    MetricError where the trace contradicts itself."""
    trace, load = generation.trace, meter.load
    call = {  # what its images share
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
        call |= {f"seconds_{name}": value for name, value in (seconds | meter.seconds).items()}
        call |= {f"cpu_{name}": getattr(load, name) for name in ("own", "others", "steal")}
        call |= {"disturbed": load.disturbed, "idle": trace.idle}
        call |= card_columns(meter.card_state)
    rows = [row_of(job, prompts, index) | call for index in indices]
    if decoder.rule is not None and trace.pairs is not None:
        at_pairs = dict(zip(TV_COLUMNS, output_tv(decoder.rule, trace.pairs), strict=True))  # [M]
        means = ambiguity(trace.pairs)
        at_pairs["alpha"] = means.pop("alpha")
        for image, row in enumerate(rows):
            mine = (trace.pairs.image == image).nonzero()[:, 0]
            row |= {name: values[mine].tolist() for name, values in at_pairs.items()}
            if len(mine):
                row |= {n: x[mine].mean(0).tolist() for n, x in means.items() if len(x)}
    for b, (row, accepted) in enumerate(zip(rows, from_trace(trace), strict=False)):
        steps = trace.accepted[b]  # [S]
        row |= accepted
        row |= {"accepted": steps[steps >= 0].tolist(), "codes": generation.codes[b].tolist()}
        for name, column in TRACE_COLUMNS.items():
            values = getattr(trace, name)
            noted = values is not None and not (
                column.per_code and column.optional and bool(values[b].isnan().all())
            )
            row[name] = values[b].tolist() if noted else EMPTY[name]
    return rows
