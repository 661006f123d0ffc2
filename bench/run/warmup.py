"""Before a decoder is timed: whole images until its times are stable, and a check of what was
compiled.

Warm-up is by whole images: caches, thread pools, allocator and compiled graphs settle only over a
complete decoding, and the released timing code had all of that inside its first image (METHODS
4.7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.run.limit import within
from decoders.api import Decoder, ImageModel
from decoders.noise import Noise

DIFFER = (
    "its compiled pieces give other codes than the same pieces without a compiler, in two of three "
    "images; set backend.compile=off, and report it with this decoder"
)


def warm_up(image: Callable[[], float], most: int, tolerance: float) -> list[float]:
    """Runs `image` (which returns its seconds) until the last two differ by less than `tolerance`
    of the longer one, at most `most` times. Returns the seconds of every image."""
    seconds: list[float] = []
    while len(seconds) < most:
        seconds.append(image())
        if len(seconds) > 1:
            last, before = seconds[-1], seconds[-2]
            if abs(last - before) < tolerance * max(last, before):
                break
    return seconds


@torch.inference_mode()
def differ(
    model: ImageModel, both: Sequence[Decoder], prompt: str, seed: int, limit: float | None
) -> bool:
    """Whether two decoders give other codes. A rounding that decides a code happens in one of some
    hundred images (a uniform within 1e-6 of its threshold, some hundred times an image). So they
    differ where they do in two images of three."""
    text, odd = model.text.encode([prompt]), 0
    for i in range(3):
        noise = Noise.for_prompts(seed + i, [prompt], model.target.length).to(model.device)
        codes = [within(limit, 1, partial(one.generate, text, noise)).codes for one in both]
        odd += not torch.equal(*codes)
        if odd in (0, 2):  # the first image settles it nearly always
            break
    return odd == 2
