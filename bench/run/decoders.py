"""The decoders of a run: built, described, given up after two hangs, and released when done."""

from __future__ import annotations

import gc
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bench.config.describe import labels
from bench.config.schema import DecoderVariant
from bench.data.clean import shown
from bench.data.errors import Failure, TimeLimitError, attempt
from bench.run.code import Code
from bench.run.generate import build
from bench.run.guard import Guard
from bench.run.schedule import Job
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.execution.eager import release

log = logging.getLogger(__name__)
PHASES = {"draft": "drafting", "accept": "acceptance"}  # in the bar's words
LATE = 2  # calls that ran into the time limit until a decoder is not tried any more
T = TypeVar("T")


class Decoders:
    """By name: built: the decoder, or why there is none; labels: loop, drafter, tree and acceptance
    of its records; code: its digest (`bench.run.code`); late: calls that ran into the time limit.
    ahead: jobs to come, by their shape; calling: the shape of the call in progress."""

    def __init__(self, model: ImageModel, variants: Sequence[DecoderVariant]) -> None:
        code, self.guard = Code(model), Guard(model, variants)
        self.built = {v.name: self._build(model, v) for v in variants}
        self.labels = {v.name: self._labels(v) for v in variants}
        self.code = {v.name: code.digest(v) for v in variants}
        self.late: Counter[str] = Counter()
        self.ahead: Counter[tuple[str, int]] = Counter()
        self.calling = ("", 0)

    def _build(self, model: ImageModel, variant: DecoderVariant) -> Decoder | Failure:
        """DecoderError (a setting that cannot be) stops the run before work starts; any other error
        is the decoder's own and becomes its failed records."""
        built = build(model, variant)
        self.guard.check(variant)
        if isinstance(built, Failure):
            log.warning("%s cannot be built: %s", variant.name, built.error)
        return built

    def _labels(self, variant: DecoderVariant) -> dict[str, str]:
        """In the built parts' own words, where those can be had."""
        built, spec = self.built[variant.name], variant.entry.spec
        decoder = None if isinstance(built, Failure) else built
        words = self.attempt(variant, lambda: labels(spec, decoder))
        texts = labels(spec, None) if isinstance(words, Failure) else words
        return {name: shown(text) for name, text in texts.items()}

    def attempt(self, variant: DecoderVariant, work: Callable[[], T]) -> T | Failure:
        """What a decoder does, or what it raised. Raises SharedStateError where it has changed what
        all share, and DeviceLostError."""
        result = attempt(work)
        self.guard.check(variant)
        return result

    def given_up(self, name: str) -> bool:
        return isinstance(self.built[name], Failure) or self.late[name] >= LATE

    def of(self, job: Job, limit: float | None) -> Decoder:
        """The decoder of a job, which is called next. Raises DecoderError where it cannot be run,
        TimeLimitError where it was given up."""
        name, self.calling = job.variant.name, job.shape
        decoder = self.built[name]
        if isinstance(decoder, Failure):
            raise DecoderError(f"it cannot be run: {decoder.error}")
        if self.late[name] >= LATE:
            raise TimeLimitError(
                f"not tried: {LATE} calls ran into time_limit={limit:g} s before; set a longer one "
                "and retry_failed=true to try again"
            )
        return decoder

    def expect(self, jobs: Sequence[Job]) -> None:
        """What is to come, each job of it until it is `done`."""
        self.ahead = Counter(job.shape for job in jobs)

    def announce(self, execution: Any, bar: Any) -> None:
        """Has the bar say what is compiled, how much is left to compile, and how long that takes
        at the pace so far."""
        if execution is None:
            return
        planned = [shape for shape in self.ahead if execution.compiles(shape[1])]
        begun: dict[tuple[str, int], float] = {}  # seconds of compiling before each

        def tell(phase: str) -> None:
            name, _ = self.calling
            if not phase:
                return bar.set_postfix_str(name)
            spent = begun.setdefault(self.calling, execution.compiling())
            done, left = len(begun) - 1, len(planned) - len(begun) + 1
            text = f"compiling {name} ({PHASES.get(phase, phase)}), {left} to go"
            if done:
                text += f", about {math.ceil(left * spent / done / 60)} min"
            bar.set_postfix_str(text)

        execution.announce(tell)

    def done(self, job: Job) -> None:
        """Counts a job that was decoded or given up. Drops what the decoder's execution keeps for
        calls that do not come again: a recorded step keeps its caches."""
        name = job.variant.name
        self.ahead[job.shape] -= 1
        left = {size for (owner, size), count in self.ahead.items() if owner == name and count > 0}
        if release(self.built[name], set() if self.late[name] >= LATE else left):
            gc.unfreeze()  # it may refer to itself, as a state that a compiler has seen
            gc.collect()
            gc.freeze()
