"""What every loop begins with: its parts and its execution, the prefill and the first code."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from decoders.api import (
    Decoder,
    DecoderError,
    Execution,
    ImageModel,
    Loop,
    NumericalError,
    Sampling,
    Start,
    TextFeatures,
)
from decoders.capability import Known
from decoders.distribution import code_logits, processed
from decoders.execution.eager import Eager
from decoders.loops.recording import Recorder
from decoders.noise import TARGET_SLOT, Noise


class Composed(Known, Decoder, Loop):
    """A decoder that an execution runs piece by piece."""

    model: ImageModel

    def __init__(
        self, model: ImageModel, sampling: Sampling, proposer: Any = None, verifier: Any = None
    ) -> None:
        self.model, self.sampling = model, sampling
        self.proposer, self.verifier = proposer, verifier
        self.execution: Execution = model.execution or Eager()
        self.prepared: dict[Any, Any] = {}
        self.grows = self.execution.fit(self)


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


class Stopwatch:
    """Where an image's time goes: it charges laps to phases. On a GPU a lap is a pair of events
    that are resolved after the run, so that timing adds no synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda" and torch.cuda.is_available()  # a fake one has no clock
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = self._now()

    def _now(self) -> float | torch.cuda.Event:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def restart(self) -> None:
        """The time since the last lap is charged to nothing."""
        self._last = self._now()

    def lap(self, phase: str) -> None:
        """Charges the time since the last lap to `phase`."""
        now = self._now()
        if isinstance(now, float) and isinstance(self._last, float):
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        elif not isinstance(now, float) and not isinstance(self._last, float):
            self._events.append((phase, self._last, now))
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds per phase; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
            for phase, begin, end in self._events:
                spent = begin.elapsed_time(end) / 1e3
                self._seconds[phase] = self._seconds.get(phase, 0.0) + spent
            self._events.clear()
        return dict(self._seconds)
