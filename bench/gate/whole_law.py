"""The law of images of a decoder, enumerated (`bench.gate.enumerate`) on small transformers
with the decoder's own drafter (docs/decoders.md, "How exactness is known", has the images). Nothing
is sampled, so the only error is rounding.

Of a position of a long image, alone, all other numbers are fixed: a draft or a test that reads a
number of another position changes the law, as does another rule there. Most positions are met at a
first level of the drafts, some at others; with all drafts before them accepted, at any level. Each
is met after two histories, as a rule may depend on how many drafts the last steps accepted.

A verifier that looks ahead decides a position by numbers of later ones: it is met with drafts of
one level, and in images of which all numbers are followed. A loop that claims no law has images
alone: it may decide codes before a position after it. Of too many ways to an image the likeliest
are followed: more mass on it than its probability is an error all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.enumerate import (
    ALL,
    COMPLETE,
    EVERY,
    MOSTLY,
    NONE,
    OFTEN,
    NotEnumerable,
    Scripted,
    Spans,
    enumerate_program,
)
from bench.gate.reference import ar_probabilities
from bench.gate.result import Check, finite_or_inf, timed
from bench.gate.small import GateCase, Sizes
from decoders.api import Decoder, ImageModel, Sampling
from decoders.models.random_weights import same_prompt
from decoders.noise import MAX_CHILDREN

MOST_ROWS = 40_000  # that run
ROUNDED_TV = 1e-5  # rounding in float32
WHOLE, AHEAD = (3, 2, 19), (2, 3, 19)  # (V, grid, seed)
SIBLINGS, NODES = (6, 2, 5), (5, 5, 5)
SIBLING_SEEDS = 5, 9  # what the distributions of one model hide, those of another show
DEEP = 7  # of so many positions one is met with all drafts before it accepted, at any level
HISTORIES = OFTEN, -1.0, -2.0, -3.0  # each is met before every 12th position
REDRAFTED = 6  # grid of guided images of a proposer that drafts positions again
RUN = 16  # of guided positions: the last ones, which are met at any level
FAR = 20, 60, 130  # guided positions of a verifier that looks ahead, of longer images


class WholeLaw(NamedTuple):
    """law, ar [M] float64: the decoder's and AR's, of all codes of the free positions that were
    met; tv: the largest total variation of a block, the least that it can be if not all was
    followed; position: where the first block begins that rounding does not explain. rest: the
    probability of what was not followed; forwards: mean target forwards of an image that was
    followed, prefill not counted."""

    law: Tensor
    ar: Tensor
    tv: float
    position: int
    rest: float
    forwards: float


def whole_law(
    decoder: Decoder,
    model: ImageModel,
    sampling: Sampling,
    most: int = MOST_ROWS,
    free: Spans = EVERY,
) -> WholeLaw:
    """The law of a decoder's images of one caption, on a small model; of each block of free
    positions given the codes before it.

    Raises NotEnumerable where a random number is used in a way that cannot be followed."""
    text, size = model.text.encode(["x"]), model.target.length

    def run(noise: Scripted) -> Tensor:
        done = decoder.generate(same_prompt(text, len(noise.uniform)), noise)
        noise.script.steps = done.trace.target_calls.long()
        first = noise.script.rows.first[:, None]
        if free.ahead and bool((done.trace.step.gather(1, first) != first).any()):
            raise NotEnumerable("codes that are decided in other steps than one by one")
        return torch.cat([done.codes.long(), done.trace.target_calls.long()[:, None]], 1)

    def until(stop: Tensor, codes: Tensor) -> Tensor:
        """Without what is decided from the position `stop` [n] on."""
        return torch.where(torch.arange(size) < stop[:, None], codes, 0)

    def mass(labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The different ones of labels [n, k], the weight of each, and which one each label is."""
        distinct, index = labels.unique(dim=0, return_inverse=True)
        return distinct, weight.new_zeros(len(distinct)).index_add_(0, index, weight), index

    images = enumerate_program(run, size, most, free)
    compared = 1 if free.ahead else free.size
    codes = until(images.first + compared, images.value[:, :size])
    distinct, law, _ = mass(torch.cat([images.first[:, None], codes], 1), images.weight)
    first, codes, every = distinct[:, 0], distinct[:, 1:], torch.arange(size)
    inside = (every >= first[:, None]) & (every < first[:, None] + compared)  # [M, L]
    p = torch.where(inside, ar_probabilities(model, text, codes, sampling), 1.0).prod(-1)
    # The fixed numbers make one beginning of a block, if decisions read no later numbers. What was
    # not followed may belong to any.
    _, begun, index = mass(torch.cat([first[:, None], until(first, codes)], 1), law)
    ar = p * (begun[index] + images.rest).clamp_max(1.0)
    above = law.new_zeros(size).index_add_(0, first, (law - ar).clamp_min(0.0))  # TV by block
    position = int((~(above <= ROUNDED_TV)).int().argmax())
    forwards = float(images.weight @ images.value[:, -1].double() / images.weight.sum())
    return WholeLaw(law, ar, float(above.max()), position, images.rest, forwards)


def enumeration_checks(case: GateCase) -> list[Check]:
    """Every enumeration of the composition."""
    decoder = case.decoder(case.model((MAX_CHILDREN + 2, *SIBLINGS[1:])))
    verifier, proposer = decoder.verifier, decoder.proposer
    ahead = int(verifier is not None and verifier.resamples_noise)
    siblings = 0 if proposer is None else proposer.branching
    shallow = replace(case, levels=1) if ahead else case  # no numbers of later positions
    plain = replace(case, sampling=replace(case.sampling, cfg=1.0))  # guidance doubles the rows
    first = torch.tensor([0])

    def positions(*histories: tuple[Iterable[int], float]) -> Spans:
        """Single ones, with what is accepted before them."""
        first = [i for some, _ in histories for i in some]
        accept = [accepted for some, accepted in histories for _ in some]
        return Spans(torch.tensor(first), 1, torch.tensor(accept))

    images = f"images of {WHOLE[0]}**{WHOLE[1] ** 2 - ahead}"
    start = Spans(first + ahead)  # looking ahead takes many ways
    checks = [enumeration_check("whole law", case, WHOLE, start, images)]
    if siblings > 2:
        nodes, one = f"nodes of {siblings} siblings", Spans(first + 1, 1)
        for seed in SIBLING_SEEDS:
            sizes = max(SIBLINGS[0], siblings + 2), SIBLINGS[1], seed
            checks.append(enumeration_check("sibling law", shallow, sizes, one, nodes))
        nodes, below = (
            "nodes of 3 siblings",
            positions(([2, 21], NONE), ([2, 3, 4], ALL), ([17, 19], MOSTLY)),
        )
        narrow = replace(shallow, narrow=True)
        checks.append(enumeration_check("node law below", narrow, NODES, below, nodes))
    if not decoder.claims_law:
        return checks
    vocab, grid, seed = case.sizes.guided
    if proposer is not None and proposer.reads_probs:  # it drafts a position in many steps
        grid = min(grid, REDRAFTED)
    guided = vocab + bool(case.sampling.top_k), grid, seed
    some = positions((range(0, grid**2, grid + 1), NONE), (range(grid**2)[-RUN:], ALL))
    checks.append(enumeration_check("guided law", shallow, guided, some))
    if ahead:
        images = f"images of {AHEAD[0]}**{AHEAD[1] ** 2 - 1}"
        checks.append(enumeration_check("long law", case, AHEAD, Spans(first + 1), images))
        late = positions((FAR, NONE))._replace(size=2, ahead=True)
        two = replace(case, levels=2, narrow=True)
        sizes = vocab, *case.sizes.positions[1:]
        return [*checks, enumeration_check("late law", two, sizes, late)]
    size, longer = (sizes[1] ** 2 for sizes in (case.sizes.positions, case.sizes.late))
    others = [(range(11 - 3 * i, size, 12), one) for i, one in enumerate(HISTORIES)]
    every = positions((range(size), MOSTLY), (range(0, size, DEEP), ALL), *others)
    late = positions((range(size, longer, 4), MOSTLY), (range(size + 2, longer, 4), ALL))
    checks.append(enumeration_check("position law", plain, case.sizes.positions, every))
    return [*checks, enumeration_check("late law", plain, case.sizes.late, late)]


@timed
def enumeration_check(
    name: str, case: GateCase, sizes: Sizes, free: Spans, words: str = ""
) -> Check:
    """Fault: a total variation beyond rounding. words: what is enumerated, where it is not single
    positions."""
    model, sampling = case.model(sizes), case.filters(sizes[0])
    law = attempt(lambda: whole_law(case.decoder(model), model, sampling, free=free))
    if isinstance(law, Failure):
        return Check(name, not_enumerated=law.error, unfollowed=1.0)
    words = words or f"codes of {len(free.first.unique())} positions"
    tv, rest, fault = finite_or_inf(law.tv), law.rest, ""
    if tv > ROUNDED_TV:
        least = "at least " if rest > COMPLETE else ""
        fault = f"{words} do not follow the AR law: TV {least}{tv:.2g}, by enumeration, "
        fault += f"first at position {law.position}"
    return Check(
        name, fault, tv, words + f" but for {rest:.1g}" * (rest > COMPLETE), unfollowed=rest
    )
