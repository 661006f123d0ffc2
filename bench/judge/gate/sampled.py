"""Checks that run the real decoder: images against the AR law, p against teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.lemma import Judged, watched
from bench.judge.gate.reference import ImageLaw, image_law, processed, teacher_logits
from bench.judge.gate.report import Finding, known
from bench.judge.gate.small import (
    Real,
    build_small,
    drafter_names,
    fresh_noise,
    prompts,
    same_prompt,
    small_model,
    small_rule,
    small_sampling,
)
from bench.judge.gate.statistics import calibration_pvalue, excess_tv, prefix_pvalues
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures, VerifiedPairs
from decoders.compose import DecoderSpec

# (V, grid, seed, does the drafter know the target?): every image is enumerated. A stranger's drafts
# are rejected often, those of a good drafter lead deep into the tree.
IMAGES = ((5, 2, 11, True), (4, 2, 12, False))
DRAWN = 10_240  # images of each
BATCH = 1024
LONGER = (6, 3, 13)  # (V, grid, seed): images of 9 codes, for calibration
CALIBRATED = 640
TREE = (12, 3, 14)  # images on which nodes of the tree are recorded
RECORDED = 64
PAIRS = 96  # recorded nodes of each model, about
ALARM = 1e-4  # p-value, already multiplied by the number of tests, below which noise is drawn anew
CERTAIN = 1e-9  # a p-value below this needs no second look
ENTRY = 2e-5  # largest difference of a probability between cached and teacher-forced float32


@dataclass
class Recorded:
    """Nodes that the real decoder visited, by vocabulary; what its rule said there, and the levels
    of its drafts."""

    pairs: dict[int, list[VerifiedPairs]] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    levels: int = 0

    def add(self, vocab: int, pairs: VerifiedPairs | None) -> None:
        if pairs is not None:
            self.pairs.setdefault(vocab, []).append(pairs)

    @property
    def drawn(self) -> bool:
        """Are children drawn from q (or a function of the prefix)?"""
        return any(p.q is not None for every in self.pairs.values() for p in every)

    def counts(self) -> list[int]:
        """How many children a node may have."""
        sizes = [p.valid.sum(-1) for every in self.pairs.values() for p in every]
        return sorted({int(n) for n in torch.cat(sizes) if n > 0}) if sizes else []


def images_check(spec: DecoderSpec, sampling: Sampling, real: Real, recorded: Recorded) -> Finding:
    """Sampled whole images against the enumerated AR law, on two models; and the distributions that
    the decoder verified with against those of teacher forcing."""
    evidence: dict[str, object] = {}
    worst, faults = 0.0, []
    for vocab, grid, seed, knows in IMAGES:
        model = small_model(vocab, grid, seed, drafter_names(spec), knows, real.native)
        decoder = build_small(spec, sampling, model, real)
        text = prompts(model, 1, seed)
        law = image_law(model, text, small_sampling(sampling, vocab, real))
        generator = torch.Generator().manual_seed(seed)
        sample = _sampler(decoder, model, text, generator, recorded)
        codes, adjusted = tested(sample, lambda c, law=law: prefix_pvalues(law, c))  # type: ignore[misc]
        evidence[f"images V={vocab}"] = {
            "samples": len(codes),
            "p_value": adjusted,
            "excess_tv": excess_tv(law, codes),
        }
        if not adjusted >= ALARM:
            worst = max(worst, known(excess_tv(law, codes)))
            faults.append(
                f"images of {vocab}**{law.length} do not follow the AR law (p {adjusted:.1g})"
            )
        gap = _stray(law, recorded.pairs.get(vocab, []))
        evidence[f"verified p V={vocab}"] = gap
        if not gap <= ENTRY:
            faults.append(
                f"the p that drafts were verified with is off by {gap:.2g} from float32 "
                "teacher forcing"
            )
    return Finding("images", "; ".join(dict.fromkeys(faults)), worst, evidence)


def record_nodes(spec: DecoderSpec, sampling: Sampling, real: Real) -> Recorded:
    """Nodes that the decoder, with its own rule, visits on a longer image."""
    vocab, grid, seed = TREE
    model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
    noise = fresh_noise(RECORDED, grid * grid, torch.Generator().manual_seed(seed))
    decoder, text = build_small(spec, sampling, model, real), prompts(model, RECORDED, seed)
    recorded = Recorded(levels=getattr(getattr(decoder, "proposer", None), "depth", 0))
    recorded.add(vocab, decoder.generate(text, noise, pairs=PAIRS / RECORDED).trace.pairs)
    if hasattr(getattr(decoder, "verifier", None), "verdicts"):
        recorded.judged = watched(decoder, text, noise)
    return recorded


def recording_rule(spec: DecoderSpec, real: Real) -> Any:
    """The composition's rule on a model like the one of `record_nodes`."""
    vocab, grid, seed = TREE
    model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
    return small_rule(spec, model, real)


def calibration_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> Finding:
    """Longer images of many captions: is every code drawn from its own teacher-forced p?"""
    vocab, grid, seed = LONGER
    model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
    decoder = build_small(spec, sampling, model, real)
    text = prompts(model, CALIBRATED, seed)
    generator = torch.Generator().manual_seed(seed)

    def sample(_: bool) -> Tensor:
        noise = fresh_noise(CALIBRATED, grid * grid, generator)
        return decoder.generate(text, noise).codes

    def pvalues(codes: Tensor) -> list[float]:
        logits = teacher_logits(model, text, codes, sampling.cfg)
        return [calibration_pvalue(processed(logits, small_sampling(sampling, vocab, real)), codes)]

    _, adjusted = tested(sample, pvalues)
    fault = (
        ""
        if adjusted >= ALARM
        else (f"codes of {grid * grid}-code images are not drawn from their p (p {adjusted:.1g})")
    )
    return Finding(
        "calibration", fault, 0.0, {"calibration": {"images": CALIBRATED, "p_value": adjusted}}
    )


def tested(
    sample: Callable[[bool], Tensor], pvalues: Callable[[Tensor], Sequence[float]]
) -> tuple[Tensor, float]:
    """Samples and tests; once more on fresh noise after an alarm that chance might have raised, so
    that chance alone raises one in fewer than a million. The p-value is the least one times the
    number of tests (Bonferroni)."""
    codes, adjusted = Tensor(), 0.0
    for first in (True, False):
        codes = sample(first)
        found = [value if math.isfinite(value) else 0.0 for value in pvalues(codes)]
        adjusted = min(1.0, min(found) * len(found))
        if not CERTAIN <= adjusted < ALARM:
            break
    return codes, adjusted


def _sampler(
    decoder: Decoder,
    model: ImageModel,
    text: TextFeatures,
    generator: torch.Generator,
    recorded: Recorded,
) -> Callable[[bool], Tensor]:
    """Draws `DRAWN` images of one caption in batches; the first batch records nodes."""
    rows = same_prompt(text, BATCH)

    def sample(first: bool) -> Tensor:
        parts = []
        for start in range(0, DRAWN, BATCH):
            noise = fresh_noise(BATCH, model.target.length, generator)
            recording = first and not start
            made = decoder.generate(rows, noise, pairs=PAIRS / BATCH if recording else 0)
            recorded.add(model.target.vocab_size, made.trace.pairs)
            parts.append(made.codes)
        return torch.cat(parts)

    return sample


def _stray(law: ImageLaw, every: list[VerifiedPairs]) -> float:
    """Largest distance (of one entry) of a verified p from the nearest conditional of the law."""
    gaps = [
        (made.p.double()[:, None] - law.conditionals).abs().amax(-1).amin(-1).max()
        for made in every
    ]
    return float(torch.stack(gaps).max()) if gaps else 0.0  # NaN stays NaN
