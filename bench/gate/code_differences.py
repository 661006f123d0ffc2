"""Greedy codes of an exact decoder against AR's, on the run's model: equal, or other at a tie?

Two float computations of one law differ by rounding, and a code that is decided within the rounding
may differ. Then all codes after it differ, in a sound decoder as in a broken one. The target's
probabilities at the first difference separate the two cases: `laws_of_steps` computes them for
codes that are already decided, in the model's dtype and with weights in twice the precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.compiled import widened
from bench.gate.target import is_builtin
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.cache import round_up
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import code_logits, probabilities
from decoders.loops.autoregressive import Autoregressive
from decoders.noise import Noise

SMALLEST_ERROR = 1e-6  # of a probability in float32
ERROR_FACTOR = 3  # another computation of a law errs by so much more than the one that was measured


def laws_of_steps(model: ImageModel, greedy: Sampling, text: TextFeatures, codes: Tensor) -> Tensor:
    """AR's law of every code given the codes before it, [B, L, V] float32: of codes [B, L] that are
    decided, by one forward each as in AR."""
    target, copies, laws = model.target, greedy.guidance_rows, list[Tensor]()
    capacity = round_up(target.prefix + codes.shape[1])
    cache = target.new_cache(len(codes) * copies, capacity)
    hidden = target.prefill(text, copies, cache)[:, -1:]  # [R, 1, D]
    mask = F.pad(text.row_mask(copies), (0, capacity - target.prefix))[:, None]  # [R, 1, S]
    for t, code in enumerate(codes.split(1, 1)):
        position = torch.full_like(code, t)
        logits = code_logits(target, hidden, greedy.cfg, position)
        laws.append(probabilities(logits, greedy).float())
        mask[:, :, target.prefix + t] = True
        rows, at = code.repeat(copies, 1), position.repeat(copies, 1)
        hidden = target.forward_codes(rows, at, at + target.prefix, mask, cache)
    return torch.cat(laws, 1)


def first_difference(one: Tensor, other: Tensor) -> int | None:
    """The first position at which codes [L] differ."""
    positions = (one != other).nonzero()
    return int(positions[0]) if len(positions) else None


def first_gap(
    model: ImageModel, greedy: Sampling, text: TextFeatures, images: Sequence[Tensor]
) -> tuple[int, float, float] | None:
    """Where two images [1, L] of one caption differ first, how far apart the probabilities of their
    two codes are there, and what rounding explains: twice the error of a law."""
    n = first_difference(images[0][0], images[1][0])
    if n is None:
        return None
    wide = replace(model, target=widened(model.target))
    rounded, exact = (
        laws_of_steps(each, greedy, text, images[1])[0].double() for each in (model, wide)
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
        found = attempt(partial(first_gap, model, greedy, text.rows([b]), images))
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
