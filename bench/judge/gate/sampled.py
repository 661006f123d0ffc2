"""Checks that sample: whole images of small models against the enumerated AR law, where a decoder's
own law cannot be followed, and images of the real model.

The real model is for a drafter whose weights the small ones cannot hold. The real decoder decodes,
and one teacher-forced pass over the finished images says by which law each code should have been
drawn (`statistics.draw_pvalues`). At temperature 0 every code must be the argmax, as nearly as AR's
own codes are in the model's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.reference import image_law, processed, shortfall
from bench.judge.gate.report import Finding, joined, known
from bench.judge.gate.small import Asked, fresh_noise, prompts, same_prompt
from bench.judge.gate.statistics import (
    alarm,
    draw_pvalues,
    excess_tv,
    prefix_pvalues,
    resolution,
    tested,
)
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.baselines import plain_decoding
from decoders.compose import build_decoder
from decoders.distribution import code_logits
from decoders.noise import Noise
from decoders.training.states import Images, target_states, transformer_of

# (V, grid, seed, does the drafter know the target?): every image is enumerated. A stranger's drafts
# are rejected often, those of a good drafter lead deep into the tree.
IMAGES = ((5, 2, 11, True), (4, 2, 12, False))
DRAWN, BATCH = 102_400, 1024  # images of each
# Of the real model
CODES = 8192  # of all images together; FEWEST to MOST images are decoded
FEWEST, MOST = 4, 256
BATCH_CODES = 4096  # of the images that are decoded at once
TIE = 1e-4  # logits nearer than this may swap
ROUGH = 4.0  # times AR's own largest distance from the argmax that a decoder may show


def images_check(asked: Asked, followed: bool) -> Finding:
    """Sampled whole images against the enumerated AR law, on two models; a tenth of them where the
    law was followed. Evidence "resolution": the least TV that would have been found."""
    evidence: dict[str, Any] = {"resolution": 0.0}
    worst, faults, drawn = 0.0, [], DRAWN // 10 if followed else DRAWN
    for vocab, grid, seed, knows in IMAGES:
        model = asked.model((vocab, grid, seed), knows)
        decoder, text = asked.decoder(model), prompts(model, 1, seed)
        law = image_law(model, text, asked.filters(vocab))
        rows, generator = same_prompt(text, BATCH), torch.Generator().manual_seed(seed)

        def sample(_: bool, parts: Any = (decoder, rows, generator, law.length)) -> Tensor:
            decoder, rows, generator, length = parts
            noises = (fresh_noise(BATCH, length, generator) for _ in range(0, drawn, BATCH))
            return torch.cat([decoder.generate(rows, noise).codes for noise in noises])

        codes, adjusted = tested(sample, partial(prefix_pvalues, law))
        finest = resolution(len(codes), len(law.probability), law.length)
        evidence["resolution"] = max(evidence["resolution"], finest)
        evidence[f"images V={vocab}"] = {"samples": len(codes), "p_value": adjusted}
        what = f"images of {vocab}**{law.length} do not follow the AR law"
        if fault := alarm(adjusted, what):
            worst = max(worst, known(excess_tv(law, codes)))
            faults.append(fault)
    samples = sum(found["samples"] for name, found in evidence.items() if name != "resolution")
    says = f"sampled: {samples} small images"
    return Finding("images", joined(*faults), evidence, worst, says)


@dataclass(frozen=True)
class Captions:
    """What is drawn with the real model: one caption an image, encoded once."""

    model: ImageModel
    sampling: Sampling
    texts: list[str]
    features: TextFeatures

    def rows(self, first: int, count: int) -> TextFeatures:
        index = torch.arange(first, first + count, device=self.features.mask.device)
        return self.features.rows(index)

    def decoded(self, decoder: Decoder, seed: int = 0) -> Tensor:
        """One image a caption, each under a seed of its own, [n, L] on the CPU."""
        size, parts = self.model.target.length, []
        batch = max(1, BATCH_CODES // size)
        for start in range(0, len(self.texts), batch):
            some = list(enumerate(self.texts[start : start + batch], start=seed + start))
            rows = [Noise.for_prompts(number, [text], size).uniform for number, text in some]
            noise = Noise(torch.cat(rows)).to(self.model.device)
            parts.append(decoder.generate(self.rows(start, len(some)), noise).codes)
        return torch.cat(parts)

    def logits(self, image: int, codes: Tensor) -> Tensor:
        """Guided logits [L, V] that predict every code of one image from those before it."""
        target, device = transformer_of(self.model), self.model.device
        drop = None
        if self.sampling.guidance_rows == 1:
            drop = torch.zeros(1, dtype=torch.bool, device=device)
        images = Images(self.rows(image, 1), codes[None].to(device))
        hidden = target_states(target, images, drop).hidden[:, target.prefix - 1 :]  # [R, L, D]
        places = torch.arange(hidden.shape[1], device=device)[None]
        return code_logits(target, hidden, self.sampling.cfg, places)[0].float().cpu()


def real_check(asked: Asked, model: ImageModel, captions: Sequence[str]) -> Finding:
    """Decodes images of the real model and judges them. Raises DecoderError where the decoder
    cannot be built or the target's states cannot be had."""
    transformer_of(model)
    count = max(FEWEST, min(CODES // model.target.length, MOST))
    texts = [captions[i % len(captions)] for i in range(count)]
    check = _real_greedy if asked.sampling.greedy else _real_sampled
    with torch.inference_mode():
        shown = Captions(model, asked.sampling, texts, model.text.encode(texts))
        fault, evidence = check(build_decoder(model, asked.spec, asked.sampling), shown)
    says = f"{count} images of the real model follow its AR law"
    return Finding("real model", fault, {"images": count} | evidence, says=says)


def _real_sampled(decoder: Decoder, shown: Captions) -> tuple[str, dict[str, float]]:
    def sample(first: bool) -> Tensor:
        return shown.decoded(decoder, 0 if first else len(shown.texts))

    def pvalues(codes: Tensor) -> list[float]:
        laws = (processed(shown.logits(i, own), shown.sampling) for i, own in enumerate(codes))
        return draw_pvalues(zip(laws, codes, strict=True), possible=False)

    _, adjusted = tested(sample, pvalues)
    fault = alarm(adjusted, "images of the real model do not follow its AR law")
    return fault, {"p_value": adjusted}


def _real_greedy(decoder: Decoder, shown: Captions) -> tuple[str, dict[str, float]]:
    made = shown.decoded(decoder)
    wanted = shown.decoded(plain_decoding(shown.model, shown.sampling))
    short, reference = (
        max(known(shortfall(shown.logits(i, own), own)) for i, own in enumerate(codes))
        for codes in (made, wanted)
    )
    fault = ""
    if not short <= max(TIE, ROUGH * reference):
        fault = (
            f"images of the real model have codes {short:.2g} below the argmax, where AR's own are "
            f"at most {reference:.2g} below"
        )
    return fault, {"below_argmax": short}
