"""One call of a decoder: timed, checked, with its images.

Why the checks: a plug-in that returns a code outside the codebook, a trace of another shape or a
NaN image must become a failed row that says so, not a figure in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bench.measure.clock import Clock, no_collection
from bench.measure.memory import MemoryMeter
from bench.study import Cell
from decoders.api import Decoder, DecoderError, Generation, ImageModel, NumericalError
from decoders.compose import build_decoder
from decoders.noise import Noise

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """B images as codes and pixels, and what they cost.

    images: [B, 3, H, W] uint8, CPU; None for a model without a tokenizer. seconds_text / total /
    vq: of the whole call, total is prefill and decoding. peak_mb: megabytes during the call.
    """

    generation: Generation
    images: Tensor | None
    seconds_text: float
    seconds_total: float
    seconds_vq: float
    peak_mb: float


@dataclass(frozen=True)
class Failure:
    """What a decoder raised, as `Type: message`."""

    error: str


def attempt(work: Callable[[], T], passing: tuple[type[Exception], ...] = ()) -> T | Failure:
    """`work()`, or what it raised; errors of the types `passing` are not caught.

    The isolation boundary around decoders, the only broad handler of the code base: a plug-in may
    raise anything, and house rule 10 wants a record of it while the other decoders go on.
    Interrupts pass.
    """
    try:
        return work()
    except passing:
        raise
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def build_cell(model: ImageModel, cell: Cell) -> Decoder | Failure:
    """A cell's decoder, or what building it raised. DecoderError (a setting that cannot be) passes,
    with the decoder's name."""
    try:
        return attempt(
            lambda: build_decoder(model, cell.entry.spec, cell.sampling), (DecoderError,)
        )
    except DecoderError as error:
        raise DecoderError(f"the decoder {cell.entry.name} cannot be built: {error}") from error


@torch.inference_mode()
def decode(
    model: ImageModel,
    decoder: Decoder,
    prompts: list[str],
    seed: int,
    *,
    clock: Clock,
    meter: MemoryMeter,
    pairs: int = 0,
) -> Outcome:
    """Decodes one image a prompt. The noise tables are made before the clock starts: they stand for
    the random numbers of a (seed, prompt) and are the same for every decoder.

    Raises DecoderError where the decoder's answer is not what the contract says.
    """
    noise = Noise.for_prompts(seed, prompts, model.target.length).to(model.device)
    meter.reset()
    with no_collection():
        with clock.time("text"):
            text = model.text.encode(prompts)
        with clock.time("total"):
            generation = decoder.generate(text, noise, pairs=pairs)
        check(generation, len(prompts), model)
        codes = generation.codes.to(model.device)  # [B, L]
        with clock.time("vq"):
            pixels = model.tokenizer.decode(codes) if model.draws else None  # [B, 3, H, W]
    images = None if pixels is None else _quantised(pixels)
    seconds = clock.seconds
    return Outcome(
        generation, images, seconds["text"], seconds["total"], seconds["vq"], meter.peak_mb()
    )


def _quantised(pixels: Tensor) -> Tensor:
    """[B, 3, H, W] in [0, 1] -> uint8 on the CPU. Raises NumericalError."""
    if not bool(torch.isfinite(pixels).all()):
        raise NumericalError("the tokenizer decoded NaN or infinite pixels")
    return (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def check(generation: Generation, batch: int, model: ImageModel) -> None:
    """Raises DecoderError unless codes and trace have the contract's shapes and ranges."""
    length, vocab = model.target.length, model.target.vocab_size
    codes, trace = generation.codes, generation.trace
    if tuple(codes.shape) != (batch, length):
        raise DecoderError(f"codes must be [{batch}, {length}], found {list(codes.shape)}")
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or high >= vocab:
        raise DecoderError(f"codes must lie in 0..{vocab - 1}, found {low}..{high}")
    for name in ("kind", "step", "depth", "moved", "bound"):
        shape = tuple(getattr(trace, name).shape)
        if shape != (batch, length):
            raise DecoderError(f"trace.{name} must be [{batch}, {length}], found {list(shape)}")
    for name in ("target_calls", "drafter_calls"):
        shape = tuple(getattr(trace, name).shape)
        if shape != (batch,):
            raise DecoderError(f"trace.{name} must be [{batch}], found {list(shape)}")
    if trace.accepted.dim() != 2 or trace.accepted.shape[0] != batch:
        raise DecoderError(
            f"trace.accepted must be [{batch}, S], found {list(trace.accepted.shape)}"
        )
