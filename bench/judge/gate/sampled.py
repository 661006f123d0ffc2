"""Checks that sample, with the decoder's own drafter: small images against the enumerated AR law;
images of many codes, where residuals that are cut and sums in half precision show; images of the
real model, for a drafter whose weights fit no small one.

One teacher-forced pass over finished images gives the law of each code. Drafts are compared with
their declared q. At temperature 0 every code of the real model must be as near to the argmax as
AR's own codes are, in the model's precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.reference import ImageLaw, image_law, processed, shortfall, teacher_logits
from bench.judge.gate.report import CheckResult, finite_or_inf, joined
from bench.judge.gate.small import GateCase, fresh_noise, prompts, same_prompt
from bench.judge.gate.statistics import (
    alarm,
    draw_pvalues,
    excess_tv,
    prefix_pvalues,
    resolution,
    tested,
)
from decoders.api import Decoder, Generation, ImageModel
from decoders.baselines import plain_decoding
from decoders.compose import build_decoder
from decoders.noise import Noise
from decoders.training.states import transformer_of

# (V, grid, seed, knows): a stranger's drafts are rejected often, those of a drafter that knows the
# target lead deep into the tree.
IMAGES = ((5, 2, 11, True), (4, 2, 12, False))
DRAWN, BATCH = 102_400, 1024  # images of each
# Images of many codes
CODES, SEED, FLAT = 1024, 16, 0.2  # codes at most; FLAT scales the target's logits
MOST, BRANCHES, NODES = 4096, 2**15, 2**12  # images at most; nodes of their drafts; of a batch's
# Images of the real model
ALL_CODES, FEWEST, LARGEST = 8192, 4, 256  # codes of all images together; images
BATCH_CODES = 4096  # of the images that are decoded at once
TIE = 1e-4  # logits nearer than this may swap
ROUGH = 4.0  # times AR's own largest distance from the argmax that a decoder may show


def images_check(case: GateCase) -> CheckResult:
    """Whole images against the enumerated AR law, and their drafts against the declared q.
    Evidence "resolution": the least TV that would have been found."""
    evidence, worst, faults = {"resolution": 0.0}, 0.0, list[str]()
    for vocab, grid, seed, knows in IMAGES:
        model = case.model((vocab, grid, seed), knows)
        law = image_law(model, prompts(model, 1, seed), case.filters(vocab))

        def pvalues(sample: list[Generation], law: ImageLaw = law) -> list[float]:
            return [*prefix_pvalues(law, codes_of(sample)), *draw_pvalues(root_drafts(sample))]

        sample, adjusted = tested(sampler(case, model, seed, BATCH, -(-DRAWN // BATCH)), pvalues)
        codes = codes_of(sample)
        finest = resolution(len(codes), len(law.probability), law.length)
        evidence["resolution"] = max(evidence["resolution"], finest)
        what = f"images of {vocab}**{law.length} do not follow the AR law, or their drafts not q"
        if fault := alarm(adjusted, what):
            worst = max(worst, finite_or_inf(excess_tv(law, codes)))
            faults.append(fault)
    summary = f"sampled: {len(IMAGES) * len(codes)} small images"
    return CheckResult("images", joined(*faults), evidence, worst, summary)


def wide_check(case: GateCase) -> CheckResult:
    """Images with as many codes as the real model has, in its dtype: their codes against teacher
    forcing, and their drafts against the declared q. All begin with one code, so that the first
    drafts of thousands have one law."""
    vocab, dtype = min(case.real.codebook, CODES), case.real.dtype
    model = case.model((vocab, 2, SEED), dtype=dtype)
    target: Any = model.target
    with torch.no_grad():
        target.output.weight.mul_(FLAT)
    proposer = case.decoder(model).proposer
    nodes = 1 if proposer is None else proposer.nodes
    rows = max(64, min(1024, NODES // nodes))
    batches = max(2 * rows, min(MOST, BRANCHES // nodes)) // rows
    text, filters = same_prompt(prompts(model, 1, SEED), rows), case.filters(vocab)

    def laws(sample: list[Generation]) -> Iterator[tuple[Tensor, Tensor]]:
        for one in sample[:2]:
            p = processed(teacher_logits(model, text, one.codes, filters.cfg), filters)
            yield p[:, 1:].flatten(0, 1), one.codes[:, 1:].flatten()  # the first ones are fixed

    def apart(sample: list[Generation]) -> bool:
        return len(codes_of(sample)[:, 0].unique()) > 1

    def pvalues(sample: list[Generation]) -> list[float]:
        if apart(sample):
            return [1.0]
        codes = draw_pvalues(laws(sample), possible=False)
        return [*codes, *draw_pvalues(root_drafts(sample, 1))]

    drawn, adjusted = tested(sampler(case, model, SEED, rows, batches, 0.5), pvalues)
    if apart(drawn):
        reason = "its numbers are not the noise's, so images do not begin alike"
        return CheckResult("wide", evidence={"not looked at": reason})
    kind, images = str(dtype).removeprefix("torch."), batches * rows
    what = f"images of {vocab} codes in {kind} do not follow the AR law, or their drafts not q"
    summary = f"only sampled: {images} images of {vocab} codes in {kind}"
    evidence = {"codes": vocab, "p_value": adjusted}
    return CheckResult("wide", alarm(adjusted, what), evidence, summary=summary)


def sampler(
    case: GateCase,
    model: ImageModel,
    seed: int,
    rows: int,
    batches: int,
    first: float | None = None,
) -> Callable[[bool], list[Generation]]:
    """Draws batches of images of one caption, with their verified nodes and new noise each time.
    first: the number that decides all first codes."""
    decoder, size = case.decoder(model), model.target.length
    text = same_prompt(prompts(model, 1, seed), rows)
    generator = torch.Generator().manual_seed(seed)

    def draw(_: bool) -> list[Generation]:
        noises = [fresh_noise(rows, size, generator) for _ in range(batches)]
        if first is not None:
            for noise in noises:
                noise.uniform[:, 0] = first
        return [decoder.generate(text, noise, pairs=2 * size) for noise in noises]

    return draw


def codes_of(sample: list[Generation]) -> Tensor:
    """[n, L]."""
    return torch.cat([one.codes for one in sample])


def root_drafts(
    sample: list[Generation], place: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(q [m, V], codes [m]) of the first draft under every root, or of those at one place. Its
    number has decided nothing before, so it is drawn from q whatever came earlier."""
    for pairs in (one.trace.pairs for one in sample):
        if pairs is not None and pairs.q is not None and pairs.depth is not None:
            root = pairs.depth == 0
            if place is not None and pairs.place is not None:
                root &= pairs.place == place
            q = pairs.q[root].double()
            yield q / q.sum(-1, keepdim=True), pairs.children[root, 0]


def real_check(case: GateCase, model: ImageModel, captions: Sequence[str]) -> CheckResult:
    """Judges images of the real model. Raises DecoderError where the decoder cannot be built, or
    the target is no transformer."""
    transformer_of(model)
    size, cfg = model.target.length, case.sampling.cfg
    count = max(FEWEST, min(ALL_CODES // size, LARGEST))
    text = model.text.encode([captions[i % len(captions)] for i in range(count)])
    images = torch.arange(count, device=text.mask.device)

    def decoded(decoder: Decoder, seed: int = 0) -> Tensor:
        parts = []
        for rows in images.split(max(1, BATCH_CODES // size)):
            names = [str(row) for row in rows.tolist()]
            noise = Noise.for_prompts(seed, names, size).to(model.device)
            parts.append(decoder.generate(text.rows(rows), noise).codes)
        return torch.cat(parts)

    def logits(codes: Tensor) -> Iterator[Tensor]:
        """Of one image after the other, [L, V]."""
        for i, one in enumerate(codes.to(model.device)):
            yield teacher_logits(model, text.rows(images[i, None]), one[None], cfg)[0].cpu()

    def below(codes: Tensor) -> float:
        pairs = zip(logits(codes), codes, strict=True)
        return max(finite_or_inf(shortfall(*pair)) for pair in pairs)

    def pvalues(codes: Tensor) -> list[float]:
        laws = (processed(one, case.sampling) for one in logits(codes))
        return draw_pvalues(zip(laws, codes, strict=True), possible=False)

    decoder, fault = build_decoder(model, case.spec, case.sampling), ""
    if case.sampling.greedy:
        short, ar = (below(decoded(d)) for d in (decoder, plain_decoding(model, case.sampling)))
        if not short <= max(TIE, ROUGH * ar):
            fault = (
                f"images of the real model have codes {short:.2g} below the argmax, where AR's own "
                f"are at most {ar:.2g} below"
            )
    else:
        _, adjusted = tested(lambda first: decoded(decoder, 0 if first else 1), pvalues)
        fault = alarm(adjusted, "images of the real model do not follow its AR law")
    summary = f"{count} images of the real model follow its AR law"
    return CheckResult("real model", fault, {"images": count}, summary=summary)
