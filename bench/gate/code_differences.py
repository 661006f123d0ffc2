"""Greedy codes of an exact decoder against AR's, on the run's model: equal, or other at a tie?

Two float computations of one law differ by rounding, and a code that is decided within the rounding
may differ. Then all codes after it differ, in a sound decoder as in a broken one. The target's
probabilities at the first difference separate the two cases: `TeacherForcing` computes them for
codes that are already decided, in the model's dtype and with weights in twice the precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.compiled import widened
from bench.gate.target import is_builtin
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import probabilities
from decoders.loops.autoregressive import ARState, Autoregressive
from decoders.loops.base_loop import run_prefill
from decoders.loops.trace import FinishedImages
from decoders.noise import Noise

SMALLEST_ERROR = 1e-6  # of a probability in float32
ERROR_FACTOR = 3  # another computation of a law errs by so much more than the one that was measured


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

    def next(self, state: Any) -> Any:
        law = probabilities(self.logits(state), self.sampling).float()  # [B, V]
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


def first_gap(
    model: ImageModel, greedy: Sampling, text: TextFeatures, noise: Noise, images: Sequence[Tensor]
) -> tuple[int, float, float] | None:
    """Where two images [1, L] of one caption differ first, how far apart the probabilities of their
    two codes are there, and what rounding explains: twice the error of a law."""
    n = first_difference(images[0][0], images[1][0])
    if n is None:
        return None
    wide = replace(model, target=widened(model.target))
    rounded, exact = (
        TeacherForcing(each, greedy).laws(text, noise, images[1])[0].double()
        for each in (model, wide)
    )  # [L, V]
    errors = 0.5 * (rounded - exact).abs().sum(-1)  # [L], TV
    one, other = (float(exact[n, codes[0, n]]) for codes in images)
    error = max(float(errors[n]), float(errors.mean()), SMALLEST_ERROR)
    return n, abs(one - other), 2 * ERROR_FACTOR * error


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
        found = attempt(partial(first_gap, model, greedy, text.rows([b]), noise.rows([b]), images))
        if isinstance(found, Failure):
            return "", f"Its greedy codes on this run's model are not compared: {found.error}."
        if found is not None and found[1] > found[2]:
            n, gap, allowed = found
            return (
                f"At temperature 0 its codes on this run's model differ from AR's at position {n} "
                f"of {prompt!r}: the probabilities of the two codes are {gap:.2g} apart, and "
                f"rounding explains {allowed:.1g}."
            ), ""
    return "", "Its greedy codes on this run's model equal AR's."
