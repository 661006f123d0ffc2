"""Checks that sample, with the decoder's own drafter: small images against the enumerated AR law,
for what cannot be enumerated; images of many codes, where residuals that are cut and sums in half
precision show.

Codes are compared with teacher forcing over the finished images, drafts with their declared q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.reference import ar_probabilities, teacher_laws
from bench.judge.gate.report import CheckResult
from bench.judge.gate.small import GateCase
from bench.judge.gate.statistics import alarm, draw_pvalues, pearson, resolution, sample_and_test
from decoders.api import Generation, ImageModel
from decoders.models.small import fresh_noise, prompts, same_prompt

SMALL = (5, 2, 11)  # (V, grid, seed) of small images
DRAWN, BATCH = 102_400, 1024  # of them; decoded together
# Images of many codes
CODES, SEED, FLAT = 1024, 16, 0.2  # codes at most; FLAT scales the target's logits
MOST, BRANCHES, NODES = 4096, 2**15, 2**12  # images at most; nodes of their drafts; of a batch's


def images_check(case: GateCase) -> CheckResult:
    """Whole images against the enumerated AR law, and their drafts against the declared q.
    Evidence "resolution": the least TV that would have been found."""
    vocab, grid, seed = SMALL
    model, length = case.model(SMALL), grid**2
    every = torch.cartesian_prod(*[torch.arange(vocab)] * length)  # [V**L, L]
    law = ar_probabilities(model, prompts(model, 1, seed), every, case.filters(vocab)).prod(-1)
    radix = vocab ** torch.arange(length - 1, -1, -1)  # of an image's number in `every`

    def pvalues(sample: list[Generation]) -> list[float]:
        met = torch.bincount(codes_of(sample) @ radix, minlength=len(law))
        possible = not bool(met[law == 0].any())
        images = pearson(met, law * met.sum()) if possible else 0.0
        return [images, *draw_pvalues(root_drafts(sample))]

    _, adjusted = sample_and_test(sampler(case, model, seed, BATCH, -(-DRAWN // BATCH)), pvalues)
    evidence = {"resolution": resolution(DRAWN, len(law), 3)}
    what = f"images of {vocab}**{length} do not follow the AR law, or their drafts not q"
    summary = f"{DRAWN} sampled images of {vocab} codes"
    return CheckResult("images", alarm(adjusted, what), evidence, summary=summary)


def wide_check(case: GateCase) -> CheckResult:
    """Images with as many codes as the real model has, in its dtype: their codes against teacher
    forcing, and their drafts against the declared q. All begin with one code, so that the first
    drafts of thousands have one law."""
    vocab, dtype = min(case.codebook, CODES), case.dtype
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
            p = teacher_laws(model, text, one.codes, filters)
            yield p[:, 1:].flatten(0, 1), one.codes[:, 1:].flatten()  # the first ones are fixed

    def apart(sample: list[Generation]) -> bool:
        return len(codes_of(sample)[:, 0].unique()) > 1

    def pvalues(sample: list[Generation]) -> list[float]:
        if apart(sample):
            return [1.0]
        codes = draw_pvalues(laws(sample), possible=False)
        return [*codes, *draw_pvalues(root_drafts(sample, 1))]

    drawn, adjusted = sample_and_test(sampler(case, model, SEED, rows, batches, 0.5), pvalues)
    if apart(drawn):  # its numbers are not the noise's
        return CheckResult("wide")
    kind, images = str(dtype).removeprefix("torch."), batches * rows
    what = f"images of {vocab} codes in {kind} do not follow the AR law, or their drafts not q"
    evidence = {"codes": vocab, "p_value": adjusted}
    summary = f"{images} sampled images of {vocab} codes"
    return CheckResult("wide", alarm(adjusted, what), evidence, summary=summary)


def sampler(
    case: GateCase,
    model: ImageModel,
    seed: int,
    rows: int,
    batches: int,
    first: float | None = None,
) -> Callable[[], list[Generation]]:
    """Draws batches of images of one caption, with their verified nodes and new noise each time.
    first: the number that decides all first codes."""
    decoder, size = case.decoder(model), model.target.length
    text = same_prompt(prompts(model, 1, seed), rows)
    generator = torch.Generator().manual_seed(seed)

    def draw() -> list[Generation]:
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
        if pairs is not None and pairs.q is not None:
            root = pairs.depth == 0
            if place is not None:
                root &= pairs.place == place
            q = pairs.q[root].double()
            yield q / q.sum(-1, keepdim=True), pairs.children[root, 0]
