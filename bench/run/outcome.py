"""One call of a decoder: timed, checked, with its images.

Why the checks: a plug-in that returns a code outside the codebook, a trace of another shape or a
NaN image must become a failed row that says so, not a figure in a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from bench.errors import TimeLimitError, described
from bench.measure.busy import Load, between, read
from bench.measure.clock import Clock, no_collection
from bench.measure.memory import MemoryMeter
from bench.run.schedule import Cell
from bench.run.time_limit import within
from decoders.api import CodeKind, Decoder, DecoderError, Generation, ImageModel, NumericalError
from decoders.compose import BrokenModule, DecoderSpec, build_decoder
from decoders.noise import Noise

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """B images as codes and pixels, and what they cost.

    images: [B, 3, H, W] uint8, CPU; None for a model without a tokenizer. seconds_text / total /
    vq: of the whole call, total is prefill and decoding. load: of the processors during `total`.
    peak_mb: megabytes during the call.
    """

    generation: Generation
    images: Tensor | None
    seconds_text: float
    seconds_total: float
    seconds_vq: float
    load: Load
    peak_mb: float


@dataclass(frozen=True)
class Failure:
    """What a decoder raised, as `Type: message`. late: it ran into the time limit."""

    error: str
    late: bool = False


def attempt(work: Callable[[], T], passing: tuple[type[Exception], ...] = ()) -> T | Failure:
    """`work()`, or what it raised; errors of the types `passing` are not caught.

    The isolation boundary around decoders, the only broad handler of the code base: a plug-in may
    raise anything (`sys.exit` too), and house rule 10 wants a record of it while the other decoders
    go on. Interrupts pass.
    """
    try:
        return work()
    except passing:
        raise
    except (Exception, SystemExit) as error:
        return Failure(described(error), isinstance(error, TimeLimitError))


def build_cell(model: ImageModel, cell: Cell) -> Decoder | Failure:
    """A cell's decoder, or what building it raised: a plug-in's file that cannot be imported too.
    Another DecoderError (a setting that cannot be) passes, with the decoder's name."""
    try:
        return attempt(
            lambda: build_decoder(model, cell.entry.spec, cell.sampling), (DecoderError,)
        )
    except BrokenModule as error:
        return Failure(described(error))
    except DecoderError as error:
        raise DecoderError(f"the decoder {cell.entry.name} cannot be built: {error}") from error


@torch.inference_mode()
def differing(
    both: Sequence[Decoder], model: ImageModel, prompt: str, seed: int, limit: float | None
) -> bool:
    """Whether a compiled decoder's codes are others than those of the same one without a compiler.
    limit: seconds that an image may take.

    A rounding that decides a code happens in one of some hundred images (a uniform within 1e-6 of
    its threshold, some hundred times an image). So the codes differ where they do in two images of
    three."""
    text, odd = model.text.encode([prompt]), 0
    for i in range(3):
        noise = Noise.for_prompts(seed + i, [prompt], model.target.length).to(model.device)
        made = [within(limit, 1, partial(one.generate, text, noise)).codes for one in both]
        odd += not torch.equal(*made)
        if odd in (0, 2):  # the first image settles it nearly always
            break
    return odd == 2


def blamed(error: str, spec: DecoderSpec) -> str:
    """An error with the parts that are not the project's own, where it names none of them: what is
    raised inside a loop may be a drafter's doing."""
    own = [part.target for part in spec.parts if not part.target.startswith("decoders.")]
    named = any(name in error for target in own for name in re.split("[.:]", target)[-2:])
    return error if named or not own else f"{error} (with {', '.join(own)})"


@torch.inference_mode()
def decode(
    model: ImageModel,
    decoder: Decoder,
    prompts: list[str],
    seed: int,
    *,
    clock: Clock,
    meter: MemoryMeter,
    pairs: float = 0,
    limit: float | None = None,
) -> Outcome:
    """Decodes one image a prompt. The noise tables are made before the clock starts: they stand for
    the random numbers of a (seed, prompt) and are the same for every decoder.

    pairs: verified (p, q) pairs to record of an image, on average. limit: seconds that an image may
    take; the images of a batch share theirs. Raises DecoderError where the decoder's answer is not
    what the contract says, TimeLimitError.
    """
    noise = Noise.for_prompts(seed, prompts, model.target.length).to(model.device)
    meter.reset()
    with no_collection():
        with clock.time("text"):
            text = model.text.encode(prompts)
        before = read()
        with clock.time("total"):
            generation = within(
                limit, len(prompts), lambda: decoder.generate(text, noise, pairs=pairs)
            )
        load = between(before, read())
        check(generation, len(prompts), model)
        codes = generation.codes.to(model.device)  # [B, L]
        with clock.time("vq"):
            pixels = drawn(model, codes) if model.draws else None  # [B, 3, H, W]
    images = None if pixels is None else quantised(pixels)
    seconds = clock.seconds
    text_s, total_s, vq_s = seconds["text"], seconds["total"], seconds["vq"]
    return Outcome(generation, images, text_s, total_s, vq_s, load, meter.peak_mb())


def drawn(model: ImageModel, codes: Tensor) -> Tensor:
    """codes [B, L] -> pixels [B, 3, H, W], image by image: in another batch sums run in
    another order, which rounds some pixels differently."""
    return torch.cat([model.tokenizer.decode(row) for row in codes.split(1)])


def quantised(pixels: Tensor) -> Tensor:
    """[B, 3, H, W] in [0, 1] -> uint8 on the CPU. Raises NumericalError."""
    if not bool(torch.isfinite(pixels).all()):
        raise NumericalError("the tokenizer decoded NaN or infinite pixels")
    return (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def check(generation: Generation, batch: int, model: ImageModel) -> None:
    """Raises DecoderError unless codes and trace have the contract's shapes, kinds and ranges."""
    if not isinstance(generation, Generation):
        raise DecoderError(
            f"`generate` must return a Generation, found {type(generation).__name__}"
        )
    length, vocab = model.target.length, model.target.vocab_size
    codes, trace = generation.codes, generation.trace
    _require("codes", codes, (batch, length), vocab - 1)
    most = {"kind": len(CodeKind) - 1, "step": 2**31 - 1, "depth": 255}
    for name in ("kind", "step", "depth", "moved", "bound"):
        _require(f"trace.{name}", getattr(trace, name), (batch, length), most.get(name))
    for name in ("target_calls", "drafter_calls"):
        _require(f"trace.{name}", getattr(trace, name), (batch,), 2**31 - 1)
    if trace.accepted.dim() != 2 or trace.accepted.shape[0] != batch:
        raise DecoderError(
            f"trace.accepted must be [{batch}, S], found {list(trace.accepted.shape)}"
        )


def _require(name: str, found: Tensor, shape: tuple[int, ...], most: int | None) -> None:
    """Raises DecoderError unless `found` has the shape and holds whole numbers in 0..most; where
    `most` is None, floating numbers without NaN."""
    if tuple(found.shape) != shape:
        raise DecoderError(f"{name} must be {list(shape)}, found {list(found.shape)}")
    if found.is_floating_point() != (most is None):
        kind = "floating numbers" if most is None else "whole numbers"
        raise DecoderError(f"{name} must hold {kind}, found {found.dtype}")
    if most is None:
        if bool(found.isnan().any()):
            raise NumericalError(f"{name} holds NaN")
        return
    low, high = int(found.min()), int(found.max())
    if low < 0 or high > most:
        raise DecoderError(f"{name} must lie in 0..{most}, found {low}..{high}")
