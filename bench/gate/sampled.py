"""Statistical tests of sampled images, with the decoder's own drafter: small images against the
enumerated AR law, for what cannot be enumerated; images of many codes, where residuals that are cut
and sums in half precision show.

Codes are compared with teacher forcing over the finished images, drafts with their declared q, by
tests with known false-alarm rates: Pearson's, of counts, and a normal one of sums over many laws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.enumerate import ALL, Scripted, Spans, enumerate_program
from bench.gate.reference import ar_probabilities
from bench.gate.result import Check, timed
from bench.gate.small import GateCase, Sizes
from bench.gate.whole_law import MOST_ROWS, ROUNDED_TV
from decoders.api import Decoder, Generation, ImageModel, TextFeatures
from decoders.distribution import drop_sibling, guided
from decoders.execution.cpu.layers import swap_matrices
from decoders.models.random_weights import random_prompts, same_prompt
from decoders.propose.tree_proposer import TreeProposer
from metrics.output_law import draw_pvalues, pearson, resolution

GRID = 2  # of most images
SMALL = (5, GRID, 11)  # (V, grid, seed) of small images
AHEAD = (3, 3, 11)  # the same, of a verifier that looks ahead
BATCH = 1024  # of them decoded together
SEED, FLAT = 16, 0.2  # of images of many codes; FLAT scales the target's logits
FIRST_LOGIT = 9.0  # of the code that most of them begin with
MORE = 4  # times as many drafts of a decoder with numbers of its own
IMAGES, NODES = 4096, 2**12  # images at most; nodes of a batch's drafts
ALARM = 1e-4  # adjusted p-value below which new noise is drawn
CERTAIN = 1e-9  # a p-value below this needs no second look
DRAWN = 2e-4  # a TV of drafts that is no rounding of 1,024 sums
# (depth, child) of drafts that are compared with q.
LOOKED_AT: tuple[tuple[int, int], ...] = (0, 0), (0, 1), (1, 0)
AWAY = "do not follow the AR law, or their drafts not q"
MISSED = 0.01  # chance that an error of the size of `resolution` is missed


@timed
def images_check(case: GateCase, name: str, sizes: Sizes, part: int) -> Check:
    """Whole images against the enumerated AR law, and their drafts against the declared q. part: of
    so many images one."""
    vocab, grid, seed = sizes
    run, length, drawn = case.trial(sizes, 1), grid**2, case.sizes.drawn // part
    every = torch.cartesian_prod(*[torch.arange(vocab)] * length)  # [V**L, L]
    law = ar_probabilities(run.model, run.text, every, run.sampling).prod(-1)
    radix = vocab ** torch.arange(length - 1, -1, -1)  # of an image's number in `every`
    rows, generator = run.of_one_caption(BATCH), torch.Generator().manual_seed(seed)

    def sample() -> list[Generation]:
        return [rows.sample(generator) for _ in range(-(-drawn // BATCH))]

    def pvalues(sample: list[Generation]) -> list[float]:
        met = torch.bincount(torch.cat([one.codes for one in sample]) @ radix, minlength=len(law))
        possible = not bool(met[law == 0].any())
        images = pearson(met, law * met.sum()) if possible else 0.0
        return [images, *draw_pvalues(drafts_at(sample))]

    _, adjusted = sample_and_test(sample, pvalues)
    least_tv = resolution(drawn, len(law), 3, ALARM, MISSED)
    fault = f"images of {vocab}**{length} {AWAY} (p {adjusted:.1g})" * (adjusted < ALARM)
    summary = (
        f"{drawn} sampled images of {length} codes of {vocab} (they show a TV of {least_tv:.2g})"
    )
    return Check(name, fault, 0.0, summary, drawn, resolution=least_tv)


@timed
def wide_check(case: GateCase) -> Check:
    """Images with as many codes as the real model has, in its dtype: their codes against teacher
    forcing, and their drafts against the declared q. Nearly all begin with one code, so that the
    first drafts of thousands have one law, whoever draws that code."""
    vocab, dtype = min(case.real.codebook, case.sizes.codes), case.real.dtype
    run = case.trial_on(wide_model(case, vocab), 1, SEED)
    proposer, generator = run.decoder.proposer, torch.Generator().manual_seed(SEED)
    nodes = 1 if proposer is None else proposer.nodes
    rows = max(64, min(1024, NODES // nodes))
    batches = max(2 * rows, min(IMAGES, case.sizes.branches // nodes)) // rows
    run = run.of_one_caption(rows)

    def sample(times: int = 1) -> Iterator[Generation]:
        return (run.sample(generator, first=0.5) for _ in range(times * batches))

    def laws(sample: list[Generation]) -> Iterator[tuple[Tensor, Tensor]]:
        for one in sample[:2]:  # the first codes are fixed
            yield run.ar_probs(one.codes)[:, 1:].flatten(0, 1), one.codes[:, 1:].flatten()

    def of_drafts(sample: Iterable[Generation]) -> list[float]:
        return draw_pvalues(drafts_at(sample, position=1))

    def pvalues(sample: list[Generation]) -> list[float]:
        return [*draw_pvalues(laws(sample), possible=False), *of_drafts(sample)]

    drawn, adjusted = sample_and_test(lambda: [*sample()], pvalues)
    # Windows keep drafts of steps before, whose numbers are many. A verifier of one's own may test
    # siblings that are drawn in another way.
    several = isinstance(proposer, TreeProposer) and case.has_rule
    looks = LOOKED_AT if several else LOOKED_AT[:1]
    if len(torch.cat([one.codes[:, 0] for one in drawn]).unique()) > 1:
        # It has numbers of its own, which cannot be followed, and often a forward of its own, whose
        # rounding would show in so many codes.
        adjusted, looks = sample_and_test(lambda: sample(MORE), of_drafts)[1], ()
    narrow = replace(case, narrow=True).decoder(run.model)
    for depth, child in looks:
        tv = attempt(partial(draft_tv, narrow, run.text, depth, child))
        if not isinstance(tv, Failure) and tv > DRAWN:
            fault = f"drafts are not drawn from the q that is declared: TV {tv:.2g}, by enumeration"
            fault += f", at draft {child + 1} of a node of depth {depth}"
            return Check("wide", fault, tv, count=vocab)
    kind = str(dtype).removeprefix("torch.")
    fault = f"images of {vocab} codes in {kind} {AWAY} (p {adjusted:.1g})" * (adjusted < ALARM)
    summary = f"{batches * rows} sampled images of {vocab} codes"
    return Check("wide", fault, 0.0, summary, vocab)


def wide_model(case: GateCase, vocab: int) -> ImageModel:
    """A small model of many codes in the real one's dtype, with flat laws but for the first code of
    an image, which is nearly always the same."""
    model = case.model((vocab, GRID, SEED), case.real.dtype)
    target: Any = model.target
    with torch.no_grad():
        rows = case.sampling.guidance_rows
        features, drop = random_prompts(model, 1, SEED).paired(rows)
        hidden = target(features, torch.zeros(len(drop), GRID**2, dtype=torch.long), drop)
        state = guided(hidden, case.sampling.cfg)[0, 0]  # [D], of which the guided logits are made
        target.output.weight.mul_(FLAT)
        target.output.weight[0] += FIRST_LOGIT * state / (state @ state)
    if case.real.kernel:  # PyTorch's bfloat16 takes ten times as long without AVX-512
        for net in (target, model.drafters["eagle"]):
            swap_matrices(net, case.real.dtype)
    return model


def draft_tv(decoder: Decoder, text: TextFeatures, depth: int = 0, child: int = 0) -> float:
    """How far a draft is from the q that is declared for it, at this depth behind the first code of
    images, all drafts before it accepted: the least TV that it can be if not all was followed. 0
    where q is not the same in every row, and where no number that is followed draws it. Raises
    where nothing is declared, or not in every row."""
    declared, length = list[Tensor](), GRID**2

    def run(noise: Scripted) -> Tensor:
        done = decoder.generate(same_prompt(text, len(noise.uniform)), noise, pairs=2 * length)
        ((q, codes),) = drafts_at([done], depth, child, 1)
        declared.append(q)
        return codes.view(len(done.codes), 1)

    free = Spans(torch.tensor([1 + depth]), 1, torch.tensor([ALL]), child)
    images = enumerate_program(run, length, MOST_ROWS, free)
    q, value = torch.cat(declared), images.value[:, 0]  # [n, V], [n]
    law = torch.zeros_like(q[0]).index_add_(0, value, images.weight)
    comparable = bool(((q - q[0]).abs().sum(-1) <= ROUNDED_TV).all()) and len(value.unique()) > 1
    return float((law - q[0]).clamp_min(0.0).sum()) if comparable else 0.0


def drafts_at(
    sample: Iterable[Generation], depth: int = 0, child: int = 0, position: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(q [m, V], codes [m]) of a child of every visited node at this depth, image by image; of
    those behind the root at one position, where one is given. The first draft under a root is drawn
    from q whatever came earlier, as its number has decided nothing before."""
    for pairs in (one.trace.pairs for one in sample):
        if pairs is not None and pairs.q is not None:
            there = (pairs.depth == depth) & pairs.valid[:, child]
            if position is not None:
                there &= pairs.position == position
            nodes = there.nonzero()[:, 0]
            nodes = nodes[pairs.image[nodes].argsort(stable=True)]
            q = pairs.q[nodes].double()
            for earlier in pairs.children[nodes, :child].T:
                q = drop_sibling(q, earlier)
            yield q / q.sum(-1, keepdim=True), pairs.children[nodes, child]


def sample_and_test(
    sample: Callable[[], Any], pvalues: Callable[[Any], Sequence[float]]
) -> tuple[Any, float]:
    """Samples and tests; once more with new noise after an alarm that may be chance, so that chance
    alone raises an alarm in fewer than one of a million. -> the last sample, and the least p-value
    times the number of tests (Bonferroni)."""
    for _ in range(2):
        codes = sample()
        values = [value if math.isfinite(value) else 0.0 for value in pvalues(codes)]
        adjusted = min(1.0, min(values) * len(values))
        if not CERTAIN <= adjusted < ALARM:
            break
    return codes, adjusted
