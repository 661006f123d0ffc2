"""Compiled codes against eager ones, and greedy codes against AR's, on the run's model: equal, or
other by rounding alone?

Two float computations of one law differ by rounding, and a code that is decided within the rounding
may differ. Then all codes after it differ, in a sound decoder as in a broken one. The target's
probabilities up to the first difference separate the two cases: `TeacherForcing` computes them for
codes that are already decided. How much rounding explains is measured by a second eager run at
another batch size (`bench.gate.target.rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.target import distance, is_builtin, rounding
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import probabilities
from decoders.loops.autoregressive import ARState, Autoregressive
from decoders.loops.base_loop import run_prefill
from decoders.loops.trace import FinishedImages
from decoders.noise import Noise

IMAGES = 12  # that are compared at most; of sound pieces rarely more than two
UNLIKELY = 1e-5  # chance that rounding changes the first codes of all images so early
# Rounding changes the first codes of an image in at most FLIPS_FACTOR * `flips` of the images, and
# RARE is what that misses (a drafter rounds too). Simulated with random models, bfloat16 against
# float32, 256 to 900 images: 0.9 (AR), 1.2 (SJD), 1.5 (a chain) and 2.2 (25 nodes) times `flips`.
FLIPS_FACTOR, RARE = 3, 1e-2


@dataclass(kw_only=True)
class TeacherForcingState(ARState):
    image: Tensor  # [B, L] int64, the codes to commit
    laws: Tensor  # [B, L, V] float32


class TeacherForcing(Autoregressive):
    """AR steps that commit the codes of an image and record the law of each of them."""

    image: Tensor

    @torch.inference_mode()
    def laws(self, text: TextFeatures, noise: Noise, codes: Tensor) -> Tensor:
        """[B, L, V], of codes [B, L]."""
        model, self.image = self.model, codes.to(self.model.device)
        first = run_prefill(model, self.sampling, text, noise, model.target.prefix).probs
        done = FinishedImages(text.batch, text.batch)
        state: Any = self._decode_batch(text, noise, 0, done, range(text.batch))
        laws: Tensor = state.laws.clone()
        # At temperature 0 the prefill's law is logits.
        laws[:, 0] = probabilities(first, self.sampling) if self.sampling.greedy else first
        return laws

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> TeacherForcingState:
        state, codes = super().begin(text, noise), self.image.clone()
        state.codes.copy_(codes[:, 0])
        laws = torch.zeros(*codes.shape, self.model.target.vocab_size, device=codes.device)
        return TeacherForcingState(**vars(state), image=codes, laws=laws)

    def next(self, state: TeacherForcingState) -> tuple[()]:  # type: ignore[override]
        law = probabilities(self.logits(state), self.sampling)  # [B, V]
        state.laws.index_copy_(1, state.position, law[:, None])
        codes = state.image.index_select(1, state.position)  # [B, 1]
        state.trace.codes.index_copy_(1, state.position, codes)
        state.codes.copy_(codes[:, 0])
        state.position.add_(1)
        return ()


def first_difference(one: Tensor, other: Tensor) -> int | None:
    """The first position at which codes [L] differ."""
    positions = (one != other).nonzero()
    return int(positions[0]) if len(positions) else None


def eager_laws(
    model: ImageModel, sampling: Sampling, text: TextFeatures, noise: Noise, codes: Tensor
) -> tuple[Tensor, float]:
    """The laws [n, V] of the first n codes of an image [1, n, ...], and the TV that rounding
    explains: what a batch of two copies shows."""
    teacher = TeacherForcing(model, sampling)
    alone = teacher.laws(text, noise, codes)[0]
    two = teacher.laws(text.rows([0, 0]), noise.rows([0, 0]), codes.expand(2, -1))[0]
    scale = max(1.0, 2 * sampling.cfg - 1) / min(1.0, sampling.temperature or 1.0)
    return alone, rounding(model.dtype, distance(alone, two), scale)


def flips(one: Tensor, other: Tensor) -> float:
    """The expected number of positions at which one uniform number draws different codes from two
    laws [n, V]."""
    ends = torch.stack([one, other]).double().cumsum(-1)  # [2, n, V]
    starts = F.pad(ends, (1, 0))[..., :-1]
    shared = (ends.amin(0) - starts.amax(0)).clamp_min(0).sum(-1)  # [n]
    return float((1 - shared).clamp_min(0).sum())


@torch.inference_mode()
def compiled_difference(
    models: Sequence[ImageModel], decoders: Sequence[Decoder], prompt: str, seed: int
) -> str:
    """How a compiled decoder differs from the same pieces without a compiler, beyond rounding; ""
    where it does not. models, decoders: first the compiled one, then the other.

    Their first images are nearly always equal. If they are not, the target's probabilities must be
    the same up to the first difference. If the chance that rounding changes an image so early is at
    most `worst`, then it is worst ** n for n images in a row. Where that is unlikely, something
    else than rounding chose other codes.
    """
    (fast, plain), sampling, worst = models, decoders[0].sampling, RARE
    compiled = None if plain.target.schedule is not None else TeacherForcing(fast, sampling)
    text = plain.text.encode([prompt])
    for i in range(IMAGES):
        noise = Noise.for_prompts(seed + i, [prompt], plain.target.length).to(plain.device)
        images = [decoder.generate(text, noise).codes for decoder in decoders]
        n = first_difference(*(codes[0] for codes in images))
        if n is None:
            return ""
        if compiled is not None:  # None: of a target without a law of the next code alone
            laws, allowed = eager_laws(plain, sampling, text, noise, images[1])
            fast_laws, laws = compiled.laws(text, noise, images[1])[0, : n + 1], laws[: n + 1]
            tv = distance(fast_laws, laws)
            if not tv <= allowed:
                return f"its target's laws differ by TV {tv:.2g}, rounding explains {allowed:.1g}"
            tied = sampling.greedy and _gap(laws, n, images) <= 2 * allowed
            worst = max(worst, FLIPS_FACTOR * flips(fast_laws, laws), float(tied))
        if worst ** (i + 1) < UNLIKELY:
            return f"the first code that differs comes earlier than by rounding, at position {n}"
        if worst**IMAGES > UNLIKELY:
            return ""
    return ""


def _gap(laws: Tensor, n: int, images: Sequence[Tensor]) -> float:
    """Between the probabilities of the codes of two images [1, L] at position n."""
    one, other = (float(laws[n, codes[0, n]]) for codes in images)
    return abs(one - other)


@torch.inference_mode()
def greedy_difference(
    model: ImageModel, spec: DecoderSpec, sampling: Sampling, captions: Callable[[], Sequence[str]]
) -> tuple[str, str]:
    """-> (where the greedy codes of an exact decoder differ from AR's on the run's model, beyond a
    tie within rounding; "" where they do not, a sentence on what was compared). A decoder that only
    samples is not compared, nor is one of the project's own targets, whose tests do that."""
    if is_builtin(model.target):
        return "", ""
    model, greedy = replace(model, execution=None), replace(sampling, temperature=0.0)
    prompts = [*captions()[:2]]
    text = model.text.encode(prompts)
    noise = Noise.for_prompts(0, prompts, model.target.length).to(model.device)
    codes = attempt(lambda: build_decoder(model, spec, greedy).generate(text, noise).codes)
    if isinstance(codes, Failure):
        return "", f"Its greedy codes on this run's model are not compared: {codes.error}."
    ar = Autoregressive(model, greedy).generate(text, noise).codes  # [B, L]
    for b, prompt in enumerate(prompts):
        images = codes[b : b + 1], ar[b : b + 1]
        n = first_difference(codes[b], ar[b])
        if n is None:
            continue
        laws, allowed = eager_laws(model, greedy, text.rows([b]), noise.rows([b]), images[1])
        if (gap := _gap(laws, n, images)) > 2 * allowed:
            return (
                f"At temperature 0 its codes on this run's model differ from AR's at position {n} "
                f"of {prompt!r}: the probabilities of the two codes are {gap:.2g} apart, and "
                f"rounding explains {2 * allowed:.1g}."
            ), ""
    return "", "Its greedy codes on this run's model equal AR's."
