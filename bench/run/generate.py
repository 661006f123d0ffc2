"""Decodes a job by one call, timed and checked, and keeps its pictures.

Why the checks: a plug-in that returns a code outside the codebook, a trace of another shape or a
NaN image must become a failed row that says so, not a figure in a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bench.config.schema import StudyConfig
from bench.measure.meter import Meter
from bench.prompts import Prompt
from bench.run.row import rows_of
from bench.run.schedule import Job
from bench.store.columns import BATCHED, QUALITY, Row
from decoders.api import (
    CodeKind,
    Decoder,
    DecoderError,
    Generation,
    ImageModel,
    NumericalError,
    RefillError,
)
from decoders.compose import is_synthetic
from decoders.models.pictures import decode_pictures
from decoders.noise import Noise


def decode_job(
    config: StudyConfig,
    model: ImageModel,
    decoder: Decoder,
    job: Job,
    prompts: Sequence[Prompt],
    constants: Row,
    meter: Meter,
) -> list[Row]:
    """Decodes a job; returns its rows, with the `picture` where images are kept. prompts: the
    run's; constants: the columns that all rows of the decoder share. Raises what the decoder
    raises, and as `generate` does."""
    quality = config.quality
    # At temperature 0 there is no output law.
    has_pairs = job.protocol == QUALITY and not job.variant.sampling.greedy
    pairs = quality.pairs / quality.images if has_pairs else 0
    decode_pixels = job.protocol != BATCHED and not is_synthetic(job.variant.entry.spec)

    def decode(indices: Sequence[int], size: int) -> list[Row]:
        texts = [prompts[index].text for index in indices]
        generation, pictures = generate(
            model,
            decoder,
            texts,
            job.seed,
            meter,
            pairs=pairs,
            rows=size,
            decode_pixels=decode_pixels,
        )
        rule = getattr(decoder, "rule", None)
        rows = rows_of(constants, job, prompts, indices, generation, meter, rule)
        if pictures is not None and config.keep_images:
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
    if refill and "rows" not in inspect.signature(decoder.generate).parameters:
        raise RefillError(
            f"{type(decoder).__name__}.generate has no `rows`: it cannot go on with the next image "
            "where one is done (`decoders.api.Decoder`); time it with latency.requests=null"
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
    length, vocab = model.target.length, model.target.vocab_size
    codes, trace = generation.codes, generation.trace
    _require("codes", codes, (batch, length), vocab - 1)
    largest = {"kind": len(CodeKind) - 1, "step": 2**31 - 1, "depth": 255}
    for name in ("kind", "step", "depth", "tv_shift", "bound"):
        _require(f"trace.{name}", getattr(trace, name), (batch, length), largest.get(name))
    for name in ("target_calls", "drafter_calls"):
        _require(f"trace.{name}", getattr(trace, name), (batch,), 2**31 - 1)
    if trace.accepted.dim() != 2 or trace.accepted.shape[0] != batch:
        raise DecoderError(
            f"trace.accepted must be [{batch}, S], found {list(trace.accepted.shape)}"
        )


def _require(name: str, values: Tensor, shape: tuple[int, ...], largest: int | None) -> None:
    """Raises DecoderError unless `values` has the shape and holds whole numbers in 0..largest;
    where that is None, floating numbers without NaN."""
    if tuple(values.shape) != shape:
        raise DecoderError(f"{name} must be {list(shape)}, found {list(values.shape)}")
    if values.is_floating_point() != (largest is None):
        kind = "floating numbers" if largest is None else "whole numbers"
        raise DecoderError(f"{name} must hold {kind}, found {values.dtype}")
    if largest is None:
        if bool(values.isnan().any()):
            raise NumericalError(f"{name} holds NaN")
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > largest:
        raise DecoderError(f"{name} must lie in 0..{largest}, found {low}..{high}")
