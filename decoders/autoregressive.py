"""The baseline: one target forward a code. As fast as the same model allows, nothing left slow.

Sampling reads the noise of (seed, prompt, position); temperature 0 is an argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    CodeKind,
    DecoderError,
    Generation,
    ImageModel,
    NumericalError,
    Sampling,
    TextFeatures,
)
from decoders.backends.execution import Execution, Piece, execution
from decoders.cache import BLOCK, KVCache
from decoders.distribution import code_logits, probabilities
from decoders.kernels.cpu.layers import NativeLayers
from decoders.kernels.cpu.stepping import Head, Moving, NativeNext
from decoders.models.whole_steps import parts_of
from decoders.noise import TARGET_SLOT, Noise, sample
from decoders.recording import Recorder
from decoders.timing import Stopwatch


def choose(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Guided logits [B, V], u [B] -> (codes [B], the distribution they came from [B, V])."""
    if sampling.greedy:
        return logits.argmax(-1), logits
    p = probabilities(logits, sampling)
    return sample(p, u), p


def require_finite(recorder: Recorder, where: str) -> None:
    if bool(recorder.bad):
        raise NumericalError(
            f"{where}: expected finite logits, found NaN or infinity while decoding; check the "
            "checkpoint and its dtype (float16 overflows where bfloat16 does not)"
        )


@dataclass
class Run:
    """The moving state of B images."""

    seen: Tensor  # [R, 1, P + L] bool, cache slots that the next query may look at
    noise: Noise
    cache: KVCache
    record: Recorder
    watch: Stopwatch
    codes: Tensor  # [B] int64, the code just chosen
    place: Tensor  # [1] int64, place of the code to choose next
    native: NativeNext | None = None  # the step as one call of the CPU kernel
    count: int = 1  # codes that a call chooses: more than one only there
    pairs: None = None  # nothing is verified

    @property
    def shape(self) -> int:
        """What decides the shapes of a step: B."""
        return len(self.codes)


class Autoregressive:
    """Plain next-code decoding."""

    rule = None
    at_once = 64  # codes of one call of the CPU kernel, and of one step of the execution

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        drafter: Any = None,
        tree: Any = None,
        acceptance: Any = None,
    ) -> None:
        extra = [
            n for n, v in [("drafter", drafter), ("tree", tree), ("acceptance", acceptance)] if v
        ]
        if extra:
            raise DecoderError(
                f"the autoregressive loop has no {', '.join(extra)}; set "
                + " ".join(f"{n}=none" for n in extra)
            )
        self.model, self.sampling = model, sampling
        self.execution: Execution = model.execution or execution("eager")
        self.prepared: dict[Any, Any] = {}

    def pieces(self) -> Sequence[Piece]:
        return [("verify", self._next)]

    def standing(self, text: TextFeatures, noise: Noise, place: int, capacity: int) -> Run:
        """A run whose next code is at `place`, with a cache of `capacity` slots, empty behind the
        prefix, and seen up to there: steps of it can be timed."""
        target = self.model.target
        run = self._begin(text, noise)
        run.seen[..., target.prefix : target.prefix + place - 1] = True
        run.place.fill_(place)
        most = target.prefix + target.length
        self.widen(run, max(run.cache.capacity, min(capacity, most)))
        return run

    def widen(self, run: Run, capacity: int) -> None:
        """Gives the run a cache of `capacity` slots."""
        run.cache = run.cache.widened(capacity)
        run.native = self._native(run)

    @torch.inference_mode()
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: int = 0) -> Generation:
        del pairs  # nothing is verified
        target = self.model.target
        run = self.execution.begin(self, self._begin(text, noise.to(self.model.device)))
        place = 1
        while place < target.length:
            slot = target.prefix + place - 1
            if slot == run.cache.capacity:
                self.widen(run, min(slot + BLOCK, target.prefix + target.length))
            if run.native is not None:
                run.count = min(self.at_once, target.length - place, run.cache.capacity - slot)
            self.execution.step(self, run)
            place += run.count
        record = run.record
        require_finite(record, "autoregressive decoding")
        calls = torch.full((text.batch,), target.length - 1)
        record.step[:, : target.length] = torch.arange(target.length, device=record.step.device)
        record.kind.fill_(int(CodeKind.TARGET))
        trace = record.finish(run.watch.seconds(), calls, torch.zeros(text.batch), 0, 0, None)
        return Generation(record.codes[:, : target.length].cpu(), trace)

    def _begin(self, text: TextFeatures, noise: Noise) -> Run:
        """Prefill and the first code."""
        target, sampling, device = self.model.target, self.sampling, self.model.device
        watch = Stopwatch(device)
        length, copies = target.length, sampling.guidance_rows
        # The kernel reads only the slots that are seen: its cache need not grow.
        grows = self.execution.grows and self._parts() is None
        most = min(BLOCK, length) if grows else length
        cache = target.new_cache(text.batch * copies, target.prefix + most)
        record = Recorder(text.batch, length, 1, device)
        hidden = target.prefill(text, copies, cache)[:, -1:]  # [R, 1, D]
        seen = F.pad(text.row_mask(copies), (0, length))[:, None].contiguous()  # [R, 1, P + L]
        places = torch.zeros(text.batch, 1, dtype=torch.long, device=device)
        logits = code_logits(target, hidden, sampling.cfg, places)[:, 0]
        codes, p = choose(logits, sampling, noise.uniform[:, 0, TARGET_SLOT])
        record.check(p)
        record.first(codes)
        run = Run(seen, noise, cache, record, watch, codes, places[0] + 1)
        run.native = self._native(run)
        watch.lap("prefill")
        return run

    def _parts(self) -> tuple[NativeLayers, Head] | None:
        """What a step as one call is made of, where it is one; a subclass may step otherwise."""
        if self.execution.name != "eager" or type(self) is not Autoregressive:
            return None
        return parts_of(self.model.target, self.sampling)

    def _native(self, run: Run) -> NativeNext | None:
        """The step of this run as one call, made anew when a tensor of it is."""
        parts = self._parts()
        if parts is None:
            return None
        record, uniform = run.record, run.noise.uniform[..., TARGET_SLOT]
        state = Moving(
            run.seen, uniform, run.codes, run.place,
            record.codes, record.accepted, record.steps, record.bad,
        )  # fmt: skip
        return NativeNext(*parts, self.sampling, state, run.cache)

    def _next(self, run: Run) -> tuple[()]:
        """The target on the last code, and the next code."""
        if run.native is not None:
            run.native(run.count)
            return ()
        target, sampling = self.model.target, self.sampling
        copies, place = sampling.guidance_rows, run.place
        grid = (place - 1).expand(len(run.seen), 1)  # [R, 1]
        slots = grid + target.prefix
        run.seen.index_fill_(2, slots[0], True)
        hidden = target.forward_codes(
            run.codes.repeat(copies)[:, None],
            grid,
            slots,
            run.seen[..., : run.cache.capacity],  # [R, 1, S]
            run.cache,
        )
        places = place.expand(len(run.codes), 1)  # [B, 1]
        logits = code_logits(target, hidden, sampling.cfg, places)[:, 0]
        u = run.noise.uniform[:, :, TARGET_SLOT].index_select(1, place)[:, 0]  # [B]
        codes, p = choose(logits, sampling, u)
        run.record.check(p)
        run.record.codes.index_copy_(1, place, codes[:, None])
        run.record.end_step(torch.zeros_like(codes))
        run.codes, run.place = codes, place + 1
        return ()
