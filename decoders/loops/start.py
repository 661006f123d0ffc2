"""The one prefill: what every loop begins with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, NumericalError, Sampling, Start, TextFeatures
from decoders.distribution import code_logits
from decoders.loops.recording import Recorder
from decoders.noise import TARGET_SLOT, Noise
from decoders.processed import processed


def begin(
    model: ImageModel,
    sampling: Sampling,
    text: TextFeatures,
    noise: Noise,
    capacity: int,
    kept: Any = None,
) -> Start:
    """Prefill of B images and their first codes: into the cache of `kept`, the run of as many
    earlier images that a recorded step goes on in, or into a new one of `capacity` slots a row.
    Raises DecoderError where the noise is of other images."""
    if len(noise.uniform) != text.batch:
        raise DecoderError(
            f"expected noise of {text.batch} images, one row per prompt, found "
            f"{len(noise.uniform)} rows; make it with Noise.for_prompts for the same prompts"
        )
    target, copies = model.target, sampling.guidance_rows
    rows = text.batch * copies
    cache = target.new_cache(rows, capacity) if kept is None else kept.cache.cleared()
    hidden = target.prefill(text, copies, cache)  # [R, P, D]
    places = torch.zeros(text.batch, 1, dtype=torch.long, device=model.device)
    logits = code_logits(target, hidden[:, -1:], sampling.cfg, places)[:, 0]  # [B, V]
    first, law = choose(logits, sampling, noise.uniform[:, 0, TARGET_SLOT])
    return Start(model, sampling, text, noise, cache, hidden, first, law)


def choose(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Guided logits [B, V], u [B] -> (codes [B], the distribution they came from [B, V])."""
    if sampling.greedy:
        return logits.argmax(-1), logits
    p, codes = processed(logits[:, None], sampling, u[:, None, None])  # [B, 1, V], [B, 1, 1]
    return codes[:, 0, 0], p[:, 0]


def require_finite(recorder: Recorder, where: str) -> None:
    """Raises NumericalError where a distribution of the run was not finite."""
    if bool(recorder.bad):
        raise NumericalError(
            f"{where}: expected finite logits, found NaN or infinity while decoding; check the "
            "checkpoint and its dtype (float16 overflows where bfloat16 does not)"
        )
