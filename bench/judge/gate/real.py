"""Whole images of the real model against its own AR law, for a drafter whose weights the small
models cannot hold.

The real decoder decodes, and one teacher-forced pass over the finished images says by which law
each code should have been drawn. Sampling: two chi-square tests. (1) A code's place in its law,
codes in order of probability, is uniform (randomised probability-integral transform): sees codes
that are too likely or too unlikely. (2) Codes in groups: sees codes that are favoured whatever
their rank. At temperature 0 every code must be the argmax, as nearly as AR's own codes are in the
model's precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

from bench.judge.gate.reference import processed
from bench.judge.gate.report import Finding
from bench.judge.gate.sampled import ALARM, tested
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import code_logits
from decoders.loops.autoregressive import Autoregressive
from decoders.noise import Noise
from decoders.training.states import Images, target_states, text_rows, transformer_of

CODES = 8192  # of all images together; FEWEST to MOST images are decoded
FEWEST, MOST = 4, 256
BATCH_CODES = 4096  # of the images that are decoded at once
BINS, GROUPS = 20, 64
LEAST_EXPECTED = 20.0
TIE = 1e-4  # logits nearer than this may swap
ROUGH = 4.0  # times AR's own largest distance from the argmax that a decoder may show


@dataclass(frozen=True)
class Captions:
    """What is drawn: one caption an image, encoded once."""

    texts: list[str]
    features: TextFeatures

    def rows(self, first: int, count: int) -> TextFeatures:
        index = torch.arange(first, first + count, device=self.features.mask.device)
        return text_rows(self.features, index)


def real_check(
    spec: DecoderSpec, sampling: Sampling, model: ImageModel, prompts: Sequence[str]
) -> Finding:
    """Decodes images of the real model and judges them. Raises DecoderError where the decoder
    cannot be built or the target's states cannot be had."""
    transformer_of(model)
    count = max(FEWEST, min(CODES // model.target.length, MOST))
    texts = [prompts[i % len(prompts)] for i in range(count)]
    check = _greedy if sampling.greedy else _sampled
    with torch.inference_mode():
        shown = Captions(texts, model.text.encode(texts))
        return check(build_decoder(model, spec, sampling), sampling, model, shown)


def _sampled(decoder: Decoder, sampling: Sampling, model: ImageModel, shown: Captions) -> Finding:
    generator = torch.Generator().manual_seed(0)

    def sample(first: bool) -> Tensor:
        return _decoded(decoder, model, shown, 0 if first else len(shown.texts))

    def pvalues(codes: Tensor) -> list[float]:
        ranks, groups = [], []
        for row, own in enumerate(codes):
            p = processed(_logits(model, shown.rows(row, 1), own, sampling).cpu(), sampling)
            ranks.append(rank_places(p, own, generator))
            groups.append(grouped(p, own))
        stacked = [torch.stack(parts) for parts in zip(*groups, strict=True)]
        return [uniform_pvalue(torch.cat(ranks)), group_pvalue(*stacked)]

    codes, adjusted = tested(sample, pvalues)
    fault = ""
    if not adjusted >= ALARM:
        fault = f"images of the real model do not follow its AR law (p {adjusted:.1g})"
    evidence = {"images": len(codes), "p_value": adjusted}
    return Finding("real model", fault, 0.0, evidence)


def _greedy(decoder: Decoder, sampling: Sampling, model: ImageModel, shown: Captions) -> Finding:
    made = _decoded(decoder, model, shown, 0)
    wanted = _decoded(Autoregressive(model, sampling), model, shown, 0)
    short, reference = (
        max(_shortfall(model, shown.rows(i, 1), own, sampling) for i, own in enumerate(codes))
        for codes in (made, wanted)
    )
    same = int((made == wanted).all(-1).sum())
    fault = ""
    if not short <= max(TIE, ROUGH * reference):
        fault = (
            f"images of the real model have codes {short:.2g} below the argmax, where AR's own are "
            f"at most {reference:.2g} below"
        )
    evidence = {"images": len(made), "images_equal_to_ar": same, "below_argmax": short}
    return Finding("real model", fault, 0.0, evidence)


def _decoded(decoder: Decoder, model: ImageModel, shown: Captions, seed: int) -> Tensor:
    """One image a caption, each under a seed of its own, [n, L] on the CPU."""
    size, parts = model.target.length, []
    batch = max(1, BATCH_CODES // size)
    for start in range(0, len(shown.texts), batch):
        some = shown.texts[start : start + batch]
        rows = [Noise.for_prompts(seed + start + i, [t], size).uniform for i, t in enumerate(some)]
        noise = Noise(torch.cat(rows)).to(model.device)
        parts.append(decoder.generate(shown.rows(start, len(some)), noise).codes)
    return torch.cat(parts)


def _logits(model: ImageModel, text: TextFeatures, codes: Tensor, sampling: Sampling) -> Tensor:
    """Guided logits [L, V] that predict every code of one image from those before it."""
    target = transformer_of(model)
    images = Images(text, codes[None].to(model.device))
    drop = None
    if sampling.guidance_rows == 1:
        drop = torch.zeros(1, dtype=torch.bool, device=model.device)
    hidden = target_states(target, images, drop).hidden[:, target.prefix - 1 :]  # [R, L, D]
    places = torch.arange(hidden.shape[1], device=model.device)[None]
    return code_logits(target, hidden, sampling.cfg, places)[0].float()


def _shortfall(model: ImageModel, text: TextFeatures, codes: Tensor, sampling: Sampling) -> float:
    """How far the logit of the worst code lies below the largest; infinity for NaN."""
    logits = _logits(model, text, codes, sampling).cpu()
    worst = float((logits.amax(-1) - logits.gather(-1, codes[:, None])[:, 0]).max())
    return worst if math.isfinite(worst) else math.inf


def rank_places(p: Tensor, codes: Tensor, generator: torch.Generator) -> Tensor:
    """p [L, V], codes [L] -> [L]: the mass of likelier codes and a random share of the code's own,
    uniform where codes are drawn from p."""
    own = p.gather(-1, codes[:, None])  # [L, 1]
    earlier = torch.arange(p.shape[-1]) < codes[:, None]  # among equals, the lower code
    ahead = torch.where((p > own) | ((p == own) & earlier), p, 0.0).sum(-1)
    return ahead + torch.rand(len(p), generator=generator, dtype=p.dtype) * own[:, 0]


def uniform_pvalue(places: Tensor) -> float:
    """Pearson's test of numbers in [0, 1] for being uniform."""
    if not bool(torch.isfinite(places).all()):
        return 0.0
    seen = torch.bincount((places * BINS).long().clamp(0, BINS - 1), minlength=BINS).double()
    wanted = len(places) / BINS
    return float(chi2.sf(float(((seen - wanted) ** 2 / wanted).sum()), BINS - 1))


def grouped(p: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One image: (observed, expected) of groups of codes, [G] each, and their covariance [G, G]."""
    size = min(GROUPS, p.shape[-1])
    group = torch.arange(p.shape[-1]) % size
    share = torch.zeros(len(p), size, dtype=p.dtype).index_add_(1, group, p)  # [L, G]
    seen = torch.bincount(codes % size, minlength=size).to(p.dtype)
    return seen, share.sum(0), torch.diag(share.sum(0)) - share.T @ share


def group_pvalue(seen: Tensor, expected: Tensor, covariance: Tensor) -> float:
    """All images [n, G], [n, G], [n, G, G]: are the groups as frequent as expected?"""
    gap, wanted, spread = (seen - expected).sum(0), expected.sum(0), covariance.sum(0)
    kept = (wanted >= LEAST_EXPECTED).nonzero().flatten()[:-1]  # what is left is one more cell
    if not len(kept):
        return 1.0
    gap, spread = gap[kept], spread[kept][:, kept]
    return float(chi2.sf(float(gap @ torch.linalg.pinv(spread, hermitian=True) @ gap), len(kept)))
