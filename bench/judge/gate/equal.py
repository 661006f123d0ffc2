"""Equality under shared noise: the first test of a loop with its proposer (METHODS2 (c)).

With the bit-exact verifier in the place of the decoder's own, every code is the one that AR draws
there with the same Gumbel numbers. So loop, tree, drafter, cache and batch must give AR's images,
code by code, while sampling; no statistics are needed. The batch is decoded in two parts of unequal
size, which must not matter either.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bench.judge.gate.reference import teacher_logits
from bench.judge.gate.report import Finding
from bench.judge.gate.small import (
    Real,
    build_small,
    drafter_names,
    fresh_noise,
    prompts,
    small_model,
    small_sampling,
)
from decoders.api import Generation, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec
from decoders.distribution import probabilities
from decoders.loops.gumbel import GumbelAutoregressive
from decoders.noise import Noise

GUMBEL = PartSpec("decoders.verify.gumbel.Gumbel")
MODEL = (12, 4, 17)  # (V, grid, seed)
IMAGES, PART = 48, 5
TIE = 1e-4  # log p + g nearer than this may swap between two float32 forwards


def equality_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> Finding:
    """Fault: images that are not AR's under the same Gumbel numbers. Evidence: how many are, and
    codes per forward of the decoder with this verifier."""
    if spec.acceptance is None:
        return Finding("shared noise", "")
    vocab, grid, seed = MODEL
    model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
    text = prompts(model, IMAGES, seed)
    noise = fresh_noise(IMAGES, grid * grid, torch.Generator().manual_seed(seed))
    small = small_sampling(sampling, vocab, real)
    wanted = GumbelAutoregressive(model, small).generate(text, noise).codes
    decoder = build_small(replace(spec, acceptance=GUMBEL), sampling, model, real)
    parts: list[Generation] = [
        decoder.generate(_rows(text, rows), Noise(noise.uniform[rows], noise.key[rows]))  # type: ignore[index]
        for rows in (slice(0, PART), slice(PART, IMAGES))
    ]
    codes = torch.cat([part.codes for part in parts])
    calls = torch.cat([part.trace.target_calls for part in parts])
    same = int((~(codes != wanted).any(-1) | _tied(model, text, codes, wanted, small, noise)).sum())
    fault = "" if same == IMAGES else (
        f"{IMAGES - same} of {IMAGES} images are not those of AR under the same Gumbel numbers, "
        "where every code is AR's own draw: the loop, its cache or its proposer is wrong"
    )  # fmt: skip
    per_forward = (grid * grid - 1) / float(calls.float().mean())
    evidence = {"images": IMAGES, "equal_to_ar": same, "codes_per_forward": per_forward}
    return Finding("shared noise", fault, 0.0, {"shared noise": evidence})


def _rows(text: TextFeatures, rows: slice) -> TextFeatures:
    return TextFeatures(text.features[rows], text.mask[rows])


def _tied(
    model: ImageModel,
    text: TextFeatures,
    codes: Tensor,
    wanted: Tensor,
    sampling: Sampling,
    noise: Noise,
) -> Tensor:
    """[B] bool: whether the first code that differs is a tie, which rounding decides."""
    row = torch.arange(len(codes))
    first = (codes != wanted).int().argmax(-1)  # [B]
    logits = teacher_logits(model, text, wanted, sampling.cfg)[row, first]
    score = probabilities(logits, sampling).log() + noise.gumbel(first, logits.shape[-1])
    both = torch.stack([codes[row, first], wanted[row, first]], -1)  # [B, 2]
    return score.gather(-1, both).diff(dim=-1)[:, 0].abs() < TIE
