"""The decoders of a run: built, described, warmed up, released when done.

Why the comparison with uncompiled pieces: a compiler may be wrong, and a table of compiled decoders
would compare them with what nobody wrote.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from bench.config.schema import DecoderVariant, LatencyProtocol
from bench.data.clean import shown
from bench.data.errors import Failure, attempt, describe_error
from bench.judge.code_differences import compiled_difference
from bench.records.columns import LATENCY
from bench.run.generate import Outcome
from bench.run.schedule import Job
from bench.run.session import Guard, digest_of, plug_ins
from decoders.api import Decoder, DecoderError, ImageModel
from decoders.compose import BrokenModule, DecoderSpec, build_decoder
from decoders.execution.eager import release

log = logging.getLogger(__name__)
T = TypeVar("T")
DIFFER = (
    "its compiled pieces give other codes than the same pieces without a compiler ({}); set "
    "backend.compile=off, and report it with this decoder"
)


def build(model: ImageModel, variant: DecoderVariant) -> Decoder | Failure:
    """The decoder, or what building it raised: a plug-in's file that cannot be imported too.
    Another DecoderError (a setting that cannot be) passes, with the decoder's name."""
    try:
        return attempt(
            lambda: build_decoder(model, variant.entry.spec, variant.sampling), (DecoderError,)
        )
    except BrokenModule as error:
        return Failure(describe_error(error))
    except DecoderError as error:
        raise DecoderError(f"the decoder {variant.name} cannot be built: {error}") from error


class Decoders:
    """The decoders of a run.

    By a decoder's name: built: the decoder, or why there is none; labels: loop, drafter, tree and
    acceptance of its records; digests: what a resumed run compares. jobs_left: jobs to come, by
    their shape; current: the name of the decoder that is called; warm: shapes that were warmed up.
    """

    def __init__(self, model: ImageModel, variants: Sequence[DecoderVariant]) -> None:
        self.model, self.current = model, ""
        # Before any is built: loading a drafter takes its name away from the model.
        weights, places = dict(model.weights_sha256), dict(model.drafters)
        self.jobs_left: Counter[tuple[str, int]] = Counter()
        self.warm: set[tuple[str, int]] = set()
        self.guard = Guard(model, variants)
        self.built: dict[str, Decoder | Failure] = {}
        for variant in variants:
            self.built[variant.name] = built = build(model, variant)
            self.guard.check(variant)
            if isinstance(built, Failure):
                log.warning("%s cannot be built: %s", variant.name, built.error)
        self.labels = {v.name: self._labels(v) for v in variants}
        self.digests = {v.name: digest_of(v, model, weights, places) for v in variants}

    def _labels(self, variant: DecoderVariant) -> dict[str, str]:
        """In the words of the built parts, where those can be had."""
        built, spec = self.built[variant.name], variant.entry.spec
        decoder = None if isinstance(built, Failure) else built
        words = attempt(lambda: spec.labels(decoder))
        texts = spec.labels(None) if isinstance(words, Failure) else words
        return {name: shown(text) for name, text in texts.items()}

    def attempt(self, variant: DecoderVariant, work: Callable[[], T]) -> T | Failure:
        """What a decoder does, or what it raised. Raises SharedStateError where it has changed what
        all share, and DeviceLostError."""
        result = attempt(work)
        self.guard.check(variant)
        return result

    def decoder_of(self, job: Job) -> Decoder:
        """The decoder of a job, which is called next. Raises DecoderError where it cannot be
        run."""
        self.current = job.variant.name
        decoder = self.built[self.current]
        if isinstance(decoder, Failure):
            raise DecoderError(f"it cannot be run: {decoder.error}")
        return decoder

    def expect(self, jobs: Sequence[Job]) -> None:
        """Says which jobs are to come; each is counted until it is `done`."""
        self.jobs_left = Counter(job.shape for job in jobs)

    def done(self, job: Job) -> None:
        """Counts a job that was decoded. Drops what the decoder's execution keeps for calls that do
        not come again: a recorded step keeps its caches."""
        name = job.variant.name
        self.jobs_left[job.shape] -= 1
        left = {
            size for (owner, size), count in self.jobs_left.items() if owner == name and count > 0
        }
        if release(self.built[name], left):
            collect()

    def free(self) -> bool:
        """Drops what the executions of all decoders keep, which make it again with their next call;
        returns whether there was any."""
        dropped = [release(one) for one in self.built.values()]
        if any(dropped):
            collect()
        return any(dropped)

    def warm_up(
        self, job: Job, image: Callable[[], Outcome], prompt: str, latency: LatencyProtocol
    ) -> None:
        """Before images are timed: decodes whole ones until their times are stable, and one before
        each block after that; one call in batches. A decoder that fails fails on its records
        again. A compiled one whose codes are others than those of uncompiled pieces cannot be run.

        image: decodes the job; prompt: its first.
        """
        name, new = job.variant.name, job.shape not in self.warm and job.protocol == LATENCY
        if isinstance(self.built[name], Failure):
            return
        most = latency.warmup_max if new else 1
        work = partial(warm_up, image, most, latency.warmup_tolerance)
        outcomes = self.attempt(job.variant, work)
        if isinstance(outcomes, Failure):
            log.info("warm-up of %s: %s", name, outcomes)
            return
        log.info("warm-up of %s: %s", name, [outcome.seconds_total for outcome in outcomes])
        self.warm.add(job.shape)
        if new and any("compiled" in o.generation.trace.path.values() for o in outcomes):
            difference = attempt(lambda: self.compiled_differs(job, prompt))
            if isinstance(difference, str) and difference:
                self.built[name] = Failure(DIFFER.format(difference))

    def compiled_differs(self, job: Job, prompt: str) -> str:
        """What a compiled decoder does otherwise than the same pieces without a compiler, but for
        rounding; "" where nothing."""
        model, how = self.model, self.model.execution.uncompiled()
        models = model, dataclasses.replace(model, execution=how)
        plain = how and build(models[1], job.variant)
        if plain is None or isinstance(plain, Failure):
            return ""
        return compiled_difference(models, (self.decoder_of(job), plain), prompt, job.seed)


def warm_up(image: Callable[[], Outcome], most: int, tolerance: float) -> list[Outcome]:
    """Decodes whole images until the seconds of the last two differ by less than `tolerance` of the
    longer, at most `most` of them; returns them.

    Why whole images: caches, thread pools, allocator and compiled graphs settle only over a
    complete decoding, and the released timing code had all of that inside its first image.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < most:
        outcomes.append(image())
        last = [outcome.seconds_total for outcome in outcomes[-2:]]
        if len(last) > 1 and max(last) - min(last) < tolerance * max(last):
            break
    return outcomes


def name_plug_ins(error: str, spec: DecoderSpec) -> str:
    """An error with the decoder's plug-ins, where it names none of them: what is raised inside a
    loop may be a drafter's doing."""
    names = plug_ins(spec)
    named = any(name in error for target in names for name in re.split("[.:]", target)[-2:])
    return error if named or not names else f"{error} (with {', '.join(names)})"


def collect() -> None:
    """Frees what was dropped, though it may refer to itself: a state that a compiler has seen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
