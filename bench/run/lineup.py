"""The decoders of a run: built, warmed up until their times are stable, compared, given up.

Warm-up is by whole images: caches, thread pools, allocator and compiled graphs settle only over a
complete decoding, and the released timing code had all of that inside its first image (METHODS
4.7). What was compiled is then held against the same pieces without a compiler.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from bench.config.describe import labels
from bench.config.schedule import BATCHED, LATENCY, Batch, Cell, call_of
from bench.config.schema import StudyConfig
from bench.data.clean import shown
from bench.data.errors import Failure, TimeLimitError, attempt
from bench.measure.clock import Clock
from bench.measure.memory import meter_of
from bench.prompts import Prompt
from bench.run.guard import Guard
from bench.run.outcome import Outcome, build_cell, decode, within
from bench.run.session import codes_only
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.execution.eager import release
from decoders.noise import Noise

log = logging.getLogger(__name__)
PHASES = {"draft": "drafting", "accept": "acceptance"}  # in the bar's words
T = TypeVar("T")
LATE = 2  # images that ran into the time limit until a decoder is not tried any more


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


class Lineup:
    """The decoders of a run, by the keys of their cells. late: of each decoder, calls that ran into
    the time limit."""

    def __init__(
        self,
        config: StudyConfig,
        model: ImageModel,
        every: Sequence[Cell],
        prompts: Sequence[Prompt],
    ) -> None:
        self.config, self.model, self.prompts = config, model, prompts
        self.guard = Guard(model, every)
        self.clock, self.meter = Clock(model.device), meter_of(model)
        self.built = {cell.key: self._build(cell) for cell in every}
        self.late: Counter[str] = Counter()
        self.warmed: set[tuple[str, int]] = set()  # of each `call_of` that was warmed up
        self.decoding, self.calling = "", ("", 0)  # the decoder's name, and its `call_of`
        self.ahead: Counter[tuple[str, int]] = Counter()  # of each `call_of`: batches to come

    def _build(self, cell: Cell) -> Decoder | Failure:
        """The decoder of a cell. DecoderError (a setting that cannot be) stops the run before work
        starts; any other error is the decoder's own and becomes its failed rows."""
        built = build_cell(self.model, cell)
        self.guard.check(cell)
        if isinstance(built, Failure):
            log.warning("%s cannot be built: %s", cell.entry.name, built.error)
        return built

    def labels(self, cell: Cell) -> dict[str, str]:
        """loop, drafter, tree and acceptance of a cell's rows: in the built parts' own words, where
        those can be had."""
        built, spec = self.built[cell.key], cell.entry.spec
        decoder = None if isinstance(built, Failure) else built
        own = self.attempt(cell, lambda: labels(spec, decoder))
        found = labels(spec, None) if isinstance(own, Failure) else own
        return {name: shown(text) for name, text in found.items()}

    def attempt(self, cell: Cell, work: Callable[[], T]) -> T | Failure:
        """What a cell's decoder does, or what it raised. Raises SharedStateError where it has
        changed what all share, and DeviceLostError."""
        found = attempt(work)
        self.guard.check(cell)
        return found

    def decode(self, batch: Batch) -> Outcome:
        """The images of a batch. Raises whatever the decoder raises, DecoderError for one that
        cannot be run, TimeLimitError for one that is not tried any more."""
        decoder = self.built[batch.cell.key]
        self.decoding, self.calling = batch.cell.entry.name, call_of(batch)
        if isinstance(decoder, Failure):
            raise DecoderError(f"it cannot be run: {decoder.error}")
        if self.late[batch.cell.key] >= LATE:
            raise TimeLimitError(
                f"not tried: {LATE} calls ran into time_limit={self.config.time_limit:g} s before; "
                "set a longer one and retry_failed=true to try again"
            )
        quality = self.config.quality
        # Verified pairs of an image. At temperature 0 there is no output law.
        recorded = batch.protocol == "quality" and not batch.cell.sampling.greedy
        return decode(
            codes_only(self.model) if batch.protocol == BATCHED else self.model,
            decoder,
            [self.prompts[i].text for i in batch.padded],
            batch.seed,
            clock=self.clock,
            meter=self.meter,
            pairs=quality.pairs / quality.images if recorded else 0,
            limit=self.config.time_limit,
            rows=batch.size,
        )

    def announce(self, bar: Any) -> None:
        """Has the bar say what is compiled, how much is left to compile, and how long that takes
        at the pace so far."""
        execution = self.model.execution
        if execution is None:
            return
        planned = [call for call in self.ahead if execution.compiles(call[1])]
        begun: dict[tuple[str, int], float] = {}  # seconds of compiling before each

        def tell(phase: str) -> None:
            if not phase:
                return bar.set_postfix_str(self.decoding)
            spent = begun.setdefault(self.calling, execution.compiling())
            done, left = len(begun) - 1, len(planned) - len(begun) + 1
            said = f"compiling {self.decoding} ({PHASES.get(phase, phase)}), {left} to go"
            if done:
                said += f", about {math.ceil(left * spent / done / 60)} min"
            bar.set_postfix_str(said)

        execution.announce(tell)

    def warm(self, batch: Batch) -> None:
        """Warms up the decoder of a batch to be timed: until its times are stable, and by one image
        before each block after that; once in batches. One that fails fails on its rows again.
        Raises as `attempt`."""
        key, limits, ran = batch.cell.key, self.config.latency, set[str]()
        if isinstance(self.built[key], Failure) or self.late[key] >= LATE:
            return
        # One of each kind of work: a batch, and a place refilled.
        batch = dataclasses.replace(batch, indices=batch.indices[: batch.size + 1])

        def image() -> float:
            made = self.decode(batch)
            ran.update(made.generation.trace.path.values())
            return made.seconds_total

        new = call_of(batch) not in self.warmed and batch.protocol == LATENCY
        most = limits.warmup_max if new else 1
        times = self.attempt(batch.cell, lambda: warm_up(image, most, limits.warmup_tolerance))
        if isinstance(times, Failure):
            self.late[key] += times.late
        else:
            if "compiled" in ran and new:
                self._compare(batch)
            self.warmed.add(call_of(batch))
        log.info("warm-up of %s: %s", batch.cell.entry.name, times)

    def _compare(self, batch: Batch) -> None:
        """Holds a compiled decoder's first image against that of the same pieces without a
        compiler: where they differ, its rows fail."""
        how, cell = self.model.execution.uncompiled(), batch.cell
        plain = how and build_cell(dataclasses.replace(self.model, execution=how), cell)
        compiled = self.built[cell.key]
        if plain is None or isinstance(plain, Failure) or isinstance(compiled, Failure):
            return
        both: tuple[Decoder, ...] = (compiled, plain)
        if self.attempt(cell, lambda: self._differ(both, batch)) is True:
            self.built[cell.key] = Failure(
                "its compiled pieces give other codes than the same pieces without a compiler, in "
                "two of three images; set backend.compile=off, and report it with this decoder"
            )

    @torch.inference_mode()
    def _differ(self, both: Sequence[Decoder], batch: Batch) -> bool:
        """Whether two decoders give other codes. A rounding that decides a code happens in one of
        some hundred images (a uniform within 1e-6 of its threshold, some hundred times an image).
        So they differ where they do in two images of three."""
        model, prompt, odd = self.model, self.prompts[batch.indices[0]].text, 0
        text, limit = model.text.encode([prompt]), self.config.time_limit
        for i in range(3):
            noise = Noise.for_prompts(batch.seed + i, [prompt], model.target.length)
            noise = noise.to(model.device)
            made = [within(limit, 1, partial(one.generate, text, noise)).codes for one in both]
            odd += not torch.equal(*made)
            if odd in (0, 2):  # the first image settles it nearly always
                break
        return odd == 2

    def expect(self, batches: Sequence[Batch]) -> None:
        """What is to come, each batch of it until it is `done`."""
        self.ahead = Counter(map(call_of, batches))

    def done(self, batch: Batch) -> None:
        """Counts a batch that was decoded or given up. Drops what the decoder's execution keeps for
        calls that do not come again: a recorded step keeps its caches."""
        key = batch.cell.key
        self.ahead[call_of(batch)] -= 1
        left = {size for (cell, size), count in self.ahead.items() if cell == key and count > 0}
        if release(self.built[key], set() if self.late[key] >= LATE else left):
            gc.unfreeze()  # it may refer to itself, as a state that a compiler has seen
            gc.collect()
            gc.freeze()
