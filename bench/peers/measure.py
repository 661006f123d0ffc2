"""Times the contenders of a mode: warm-up, then prompt by prompt in turns, on the bench's clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.measure.clock import Clock
from bench.measure.memory import MemoryMeter
from bench.peers.lineup import Contender
from bench.run.codes_only import codes_only
from bench.run.outcome import Failure, Outcome, attempt, decode
from bench.run.warmup import warm_up
from decoders.api import Decoder, ImageModel


@dataclass
class Timing:
    """One contender's images. seconds: prompt -> prefill and decoding; first: its first image, the
    compilation of a compiled one included. error: what it raised, after which it is left out."""

    contender: Contender
    first: float = math.nan
    seconds: dict[Hashable, float] = field(default_factory=dict)
    forwards: list[int] = field(default_factory=list)  # target forwards an image, prefill counted
    error: str = ""


class Rounds:
    """Decodes with one model and one clock. warmups, tolerance: of `warm_up`; step: told of every
    image that is done."""

    def __init__(
        self,
        model: ImageModel,
        prompts: Sequence[str],
        seed: int,
        warmups: int,
        tolerance: float,
        step: Callable[[], object],
    ) -> None:
        self.model, self.prompts, self.seed = codes_only(model), prompts, seed
        self.warmups, self.tolerance, self.step = warmups, tolerance, step
        self.clock, self.meter = Clock(model.device), MemoryMeter(model.device)

    def run(self, contenders: Sequence[Contender]) -> list[Timing]:
        """Every contender warmed up, then every prompt by all of them, the first one rotating."""
        timings = [Timing(contender) for contender in contenders]
        for timing in timings:
            self._attempt(timing, partial(self._warm_up, timing))
        for index in range(len(self.prompts)):
            turn = index % len(timings)
            for timing in [*timings[turn:], *timings[:turn]]:
                self._attempt(timing, partial(self._image, timing, index))
                self.step()
        return timings

    def _attempt(self, timing: Timing, work: Callable[[Decoder], None]) -> None:
        """Does it with the contender's decoder; a failure is kept, and ends its part."""
        decoder = timing.contender.decoder
        if isinstance(decoder, Failure):
            timing.error = decoder.error
        elif not timing.error:
            done = attempt(lambda: work(decoder))
            timing.error = done.error if isinstance(done, Failure) else ""

    def _warm_up(self, timing: Timing, decoder: Decoder) -> None:
        # Compiling takes the first image, so a compiled contender needs two more to compare.
        most = max(self.warmups, 3) if timing.contender.compiled else self.warmups
        times = warm_up(lambda: self._decode(decoder, 0).seconds_total, most, self.tolerance)
        timing.first = times[0]

    def _image(self, timing: Timing, index: int, decoder: Decoder) -> None:
        outcome = self._decode(decoder, index)
        timing.seconds[index] = outcome.seconds_total
        timing.forwards.append(int(outcome.generation.trace.target_calls[0]) + 1)

    def _decode(self, decoder: Decoder, index: int) -> Outcome:
        return decode(
            self.model,
            decoder,
            [self.prompts[index]],
            self.seed,
            clock=self.clock,
            meter=self.meter,
        )
