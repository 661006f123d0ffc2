"""What every loop begins with: its parts and its execution, the prefill and the first code."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from decoders.api import (
    Decoder,
    DecoderError,
    Execution,
    Generation,
    ImageModel,
    Loop,
    NumericalError,
    Prefill,
    Sampling,
    TextFeatures,
)
from decoders.cache import KVCache, round_up
from decoders.distribution import code_logits, draw_distinct, probabilities
from decoders.execution.eager import Eager
from decoders.loops.trace import FinishedImages, PairSampler, Stopwatch, TraceBuffers
from decoders.noise import TARGET_SLOT, Noise

DECODING_LOCK = threading.RLock()
T = TypeVar("T")


def one_at_a_time(decode: Callable[..., T]) -> Callable[..., T]:
    """A method that decodes, in inference mode. Calls from several threads wait for each other:
    loops, their parts and executions keep memory from call to call, and use all cores."""

    @wraps(decode)
    def alone(*given: Any, **settings: Any) -> T:
        with DECODING_LOCK, torch.inference_mode():
            return decode(*given, **settings)

    return alone


@dataclass(kw_only=True)
class DecodeState:
    """The moving state of B images, of any loop: a *state*. Its tensors are changed in place, as an
    execution may hold the addresses of all tensors below it."""

    noise: Noise
    cache: KVCache
    trace: TraceBuffers
    watch: Stopwatch
    pairs: PairSampler | None = None  # None: no verified pairs are recorded
    session: Any = None  # a `decoders.api.ProposerSession`, of a loop with a proposer
    verifier_state: Any = None  # what `decoders.api.Verifier.begin` returned
    path: dict[str, str] = field(default_factory=dict)  # `decoders.api.Trace`, by the execution
    pieces: Any = None  # what the execution runs in place of the loop's pieces; None: those

    @property
    def shape(self) -> int:
        """What decides the shapes of a step: B."""
        return len(self.trace.codes)


@dataclass(eq=False, repr=False)
class BaseLoop(Decoder, Loop):
    """A decoder that an execution runs piece by piece. resamples_noise: whether every step has new
    numbers at the positions that it leaves open (`Verifier.resamples_noise`)."""

    model: ImageModel = field()
    sampling: Sampling = field()
    proposer: Any = None
    verifier: Any = None

    resamples_noise = False
    refills = True
    scheduled: ClassVar[type | None] = None  # the class of target schedules that it can follow

    def __post_init__(self) -> None:
        schedule = self.model.target.schedule
        if schedule is not None and type(schedule) is not self.scheduled:
            raise DecoderError(
                "this target predicts groups of codes and has no distribution of the next code "
                f"alone; it has {type(schedule).__name__}. Use the decoder that it was trained "
                "for, such as decoder=par, or decoder=flash for Diagonals"
            )
        how: Execution = self.model.execution or Eager()
        fits = self.capturable or self.model.device.type == "cpu"
        self.execution: Execution = how if fits else Eager()
        self.prepared: dict[Any, Any] = {}
        self.execution.fit(self)

    @property
    def slots(self) -> int:
        """Slots of the target's cache, of a row."""
        return round_up(self.model.target.prefix + self.model.target.length)

    def prefilled(
        self, text: TextFeatures, noise: Noise, width: int, reuse: Any = None
    ) -> tuple[Prefill, dict[str, Any]]:
        """The prefill, its first codes recorded, and what every `DecodeState` begins with. width:
        codes that a step may commit; reuse: a run of as many images that are done, in whose cache
        these may begin. The noise counts the steps. Text and noise are copied: a captured step
        writes those of later images into their tensors."""
        watch = Stopwatch(self.model.device)
        trace = TraceBuffers(text.batch, self.model.target.length, width, self.model.device)
        text, noise = text.clone(), noise.stepping(trace.steps, self.resamples_noise)
        reuse = reuse or self.execution.captured_state(self, text.batch)
        prefill = run_prefill(self.model, self.sampling, text, noise, self.slots, reuse)
        trace.check(prefill.probs)
        trace.codes[:, 0] = prefill.first
        watch.lap("prefill")
        return prefill, {"noise": noise, "cache": prefill.cache, "trace": trace, "watch": watch}

    @one_at_a_time
    def warm_up(self, text: TextFeatures, noise: Noise, steps: int) -> None:
        state = self.execution.begin(self, self.begin(text, noise.to(self.model.device)))
        for _ in islice(self.steps(state), steps):
            self.execution.step(self, state)

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> Any:
        """Prefill and the first code."""
        raise NotImplementedError("a loop says what a run begins with")

    def steps(self, state: Any) -> Iterator[Any]:
        """One item for each step that the run takes, at most."""
        raise NotImplementedError("a loop says how many steps it takes")


class BatchLoop(BaseLoop):
    """A loop whose images of a batch are done in the same step, or wait for the slowest. title: its
    name in messages."""

    title: ClassVar[str]

    def __post_init__(self) -> None:
        if self.proposer is not None or self.verifier is not None:
            raise DecoderError(
                f"{self.title} has no drafter, tree, proposer or acceptance; set all to none"
            )
        super().__post_init__()

    @one_at_a_time
    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        """See `decoders.api.Decoder`: one batch of `rows` after the other, the last one filled up
        with copies."""
        rows = min(rows or text.batch, text.batch)
        noise = noise.to(self.model.device)
        done, seconds, state = FinishedImages(text.batch, rows), Counter[str](), None
        for first in range(0, text.batch, rows):
            batch = range(first, min(first + rows, text.batch))
            filled: Any = slice(first, first + rows)
            if len(batch) < rows:
                filled = [*batch, *([batch[-1]] * (rows - len(batch)))]
            images = *batch, *([None] * (rows - len(batch)))
            state = self._decode_batch(text.rows(filled), noise.rows(filled), pairs, done, images)
            done.take(batch, state.trace, range(len(batch)))
            done.steps += int(state.trace.steps.max())
            seconds.update(state.watch.seconds())
        assert state is not None, "there is an image"
        return done.generation(dict(seconds), state.path)

    def _decode_batch(
        self,
        text: TextFeatures,
        noise: Noise,
        pairs: float,
        done: FinishedImages,
        images: Sequence[int | None],
    ) -> Any:
        """The run of one batch, all of its codes chosen. done: keeps the pairs of these images, of
        each row one; None: of a row whose pairs are not kept."""
        state = self.execution.begin(self, self.begin(text, noise, pairs))
        for _ in self.steps(state):
            visited = self.execution.step(self, state)
            if state.pairs is not None:
                done.keep_pairs(state.pairs, images, *visited)
        require_finite(state.trace, self.title)
        return state

    def draw(self, state: Any, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Guided logits [B, n, V] -> the codes [B, n] at positions [B, n], each by the number of
        its position, and the distributions that they came from."""
        p = probabilities(logits, self.sampling)
        state.trace.check(p[..., 0])
        if self.sampling.greedy:
            return logits.argmax(-1), p
        return draw_distinct(p, state.noise.at(positions, TARGET_SLOT))[..., 0], p


def run_prefill(
    model: ImageModel,
    sampling: Sampling,
    text: TextFeatures,
    noise: Noise,
    capacity: int,
    reuse: Any = None,
) -> Prefill:
    """Prefill of B images and their first codes: into the cache of `reuse`, a run of as many images
    that are done, or into a new one of `capacity` slots per row. Raises DecoderError where the
    noise is of other images."""
    if len(noise.uniform) != text.batch:
        raise DecoderError(
            f"expected noise of {text.batch} images, one row per prompt, found "
            f"{len(noise.uniform)} rows; make it with Noise.for_prompts for the same prompts"
        )
    target, copies = model.target, sampling.guidance_rows
    rows, execution = text.batch * copies, model.execution or Eager()
    new = reuse is None
    cache = execution.new_cache(target, rows, capacity) if new else reuse.cache.clear()
    hidden = execution.prefill(target, text, copies, cache)  # [R, P, D]
    positions = torch.zeros(text.batch, 1, dtype=torch.long, device=model.device)
    logits = code_logits(target, hidden[:, -1:], sampling.cfg, positions)[:, 0]  # [B, V]
    first, probs = choose(logits, sampling, noise.uniform[:, 0, TARGET_SLOT])
    return Prefill(model, sampling, text, noise, cache, hidden, first, probs)


def choose(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Guided logits [B, V], u [B] -> (codes [B], the distribution they came from [B, V])."""
    if sampling.greedy:
        return logits.argmax(-1), logits
    p = probabilities(logits, sampling)
    return draw_distinct(p[:, None], u[:, None, None])[:, 0, 0], p


def require_finite(trace: TraceBuffers, where: str) -> None:
    """Raises NumericalError where a distribution of the run was not finite."""
    if bool(trace.bad):
        raise NumericalError(
            f"{where}: expected finite logits, found NaN or infinity while decoding; check the "
            "checkpoint and its dtype (float16 overflows where bfloat16 does not)"
        )
