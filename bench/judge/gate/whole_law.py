"""The law of images of a decoder, enumerated (`bench.judge.gate.enumerate`) on small transformers
with the decoder's own drafter. Nothing is sampled, so the only error is rounding.

* Images of three codes and four places.
* One place behind the first code, of six codes: a node of the tree keeps four siblings.
* Every place of a long image, and some of a longer one, alone: all other numbers are fixed. The
  code there follows AR's law given the codes before it, unless its draft or a test read a number
  that is not its own, or the rule is another there. Most places are met at a first level of the
  drafts, some at others.

A verifier that looks ahead decides a place by numbers of later ones: it has the first two alone. Of
a decoder with too many ways to an image the likeliest are followed: more mass on an image than its
probability is an error all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.data.errors import Failure, attempt
from bench.judge.gate.enumerate import EVERY, Free, Scripted, enumerate_program
from bench.judge.gate.reference import ar_probabilities
from bench.judge.gate.report import CheckResult, finite_or_inf
from bench.judge.gate.small import GateCase, Sizes
from decoders.api import Decoder, ImageModel, Sampling
from decoders.models.small import same_prompt

MOST = 40_000  # rows that run at most
CLOSE = 1e-5  # a TV that is no rounding in float32
COMPLETE = 1e-10  # probability that may be left out of a law that is called complete
WHOLE, SIBLINGS = (3, 2, 19), (6, 2, 5)  # (V, grid, seed)
LONG, LATE = (2, 12, 3), (2, 16, 3)  # of the places of LATE those that LONG has not
DEEP = 7  # of so many places one is met with all drafts before it accepted, at any level


@dataclass(frozen=True)
class WholeLaw:
    """law, ar [M] float64: the decoder's and AR's, of all codes of the free places that were met;
    first [M]: where their block begins. rest: the probability of what was not followed; rows: ways
    to an image; forwards: mean target forwards of an image that was followed, prefill not counted.
    """

    law: Tensor
    ar: Tensor
    first: Tensor
    rest: float
    rows: int
    forwards: float

    @property
    def away(self) -> Tensor:
        """By first place: the total variation, or the least that it can be if not all was
        followed."""
        above = (self.law - self.ar).clamp_min(0.0)
        return above.new_zeros(int(self.first.max()) + 1).index_add_(0, self.first, above)

    @property
    def tv(self) -> float:
        return float(self.away.max())

    @property
    def complete(self) -> bool:
        return self.rest < COMPLETE


def whole_law(
    decoder: Decoder, model: ImageModel, sampling: Sampling, most: int = MOST, free: Free = EVERY
) -> WholeLaw:
    """The law of a decoder's images of one caption, on a small model; of each block of free places
    given the codes before it.

    Raises NotEnumerable where a random number is used in a way that cannot be followed."""
    text, size = model.text.encode(["x"]), model.target.length

    def run(noise: Scripted) -> Tensor:
        done = decoder.generate(same_prompt(text, len(noise.uniform)), noise)
        noise.script.steps = done.trace.target_calls.long()
        return torch.cat([done.codes.long(), done.trace.target_calls.long()[:, None]], 1)

    def until(stop: Tensor, codes: Tensor) -> Tensor:
        """Without what is decided from the place `stop` [n] on."""
        return torch.where(torch.arange(size) < stop[:, None], codes, 0)

    def mass(labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The different ones of labels [n, k], the weight of each, and which one each label is."""
        distinct, index = labels.unique(dim=0, return_inverse=True)
        return distinct, weight.new_zeros(len(distinct)).index_add_(0, index, weight), index

    images = enumerate_program(run, size, most, free)
    codes = until(images.first + free.size, images.value[:, :size])
    distinct, law, _ = mass(torch.cat([images.first[:, None], codes], 1), images.weight)
    first, codes, place = distinct[:, 0], distinct[:, 1:], torch.arange(size)
    inside = (place >= first[:, None]) & (place < first[:, None] + free.size)  # [M, L]
    p = torch.where(inside, ar_probabilities(model, text, codes, sampling), 1.0).prod(-1)
    # The fixed numbers make one beginning of a block, if decisions read no later numbers.
    _, begun, index = mass(torch.cat([first[:, None], until(first, codes)], 1), law)
    _, every, which = mass(first[:, None], law)
    ar = p * begun[index] / every[which]
    forwards = float(images.weight @ images.value[:, -1].double() / images.weight.sum())
    return WholeLaw(law, ar, first, images.rest, len(images.weight), forwards)


def enumeration_checks(case: GateCase) -> list[CheckResult]:
    """Every enumeration of the composition."""
    checks = [
        enumeration_check("whole law", case, whole_images),
        enumeration_check("sibling law", case, one_node),
    ]
    verifier = case.decoder(case.model(WHOLE)).verifier
    if verifier is None or not verifier.resamples_noise:
        checks.append(enumeration_check("place law", case, every_place))
        checks.append(enumeration_check("late law", case, late_places))
    return checks


Enumerated = tuple[str, WholeLaw] | None  # in words; None: there is nothing to enumerate


def enumeration_check(
    name: str, case: GateCase, enumeration: Callable[[GateCase], Enumerated]
) -> CheckResult:
    """Fault: a total variation beyond rounding. Evidence: how many ways were followed, and the
    probability of those that were not; or why none could be."""
    result = attempt(lambda: enumeration(case))
    if isinstance(result, Failure):
        return CheckResult(name, evidence={"not enumerated": result.error})
    if result is None:
        return CheckResult(name, evidence={"not followed": 0.0})
    (words, law), fault = result, ""
    tv, rest = finite_or_inf(law.tv), law.rest
    if tv > CLOSE:
        least = "" if law.complete else "at least "
        first = int((~(law.away <= CLOSE)).int().argmax())
        fault = f"{words} do not follow the AR law: TV {least}{tv:.2g}, by enumeration, "
        fault += f"first at place {first}"
    share = f"all but {rest:.1g} of the probability in" if rest else "all"
    evidence = {"tv": tv, "not followed": rest, "ways": law.rows}
    return CheckResult(name, fault, evidence, tv, f"{share} {law.rows} ways to {words}")


def whole_images(case: GateCase) -> Enumerated:
    vocab, grid, _ = WHOLE
    model, free = case.model(WHOLE), Free(torch.tensor([1]))
    law = whole_law(case.decoder(model), model, case.filters(vocab), free=free)
    return f"images of {vocab}**{grid**2 - 1}", law


def one_node(case: GateCase) -> Enumerated:
    """A verifier that looks ahead has drafts of one level, of which there is nothing to see."""
    vocab, model, free = SIBLINGS[0], case.model(SIBLINGS), Free(torch.tensor([1]), 1)
    decoder = case.decoder(model)
    siblings = 0 if decoder.proposer is None else decoder.proposer.branching
    if siblings < 3:
        return None
    if decoder.verifier is not None and decoder.verifier.resamples_noise:
        decoder = replace(case, levels=1).decoder(model)
    law = whole_law(decoder, model, case.filters(vocab), free=free)
    return f"nodes of {siblings} siblings", law


def every_place(case: GateCase) -> Enumerated:
    every = torch.arange(LONG[1] ** 2)
    deep = every[::DEEP]
    free = Free(torch.cat([every, deep]), 1, torch.arange(len(every) + len(deep)) >= len(every))
    return places_alone(case, LONG, free)


def late_places(case: GateCase) -> Enumerated:
    """Every other one, in turns at a first level and at any."""
    late = torch.arange(LONG[1] ** 2, LATE[1] ** 2, 2)
    return places_alone(case, LATE, Free(late, 1, late % 4 == 0))


def places_alone(case: GateCase, sizes: Sizes, free: Free) -> Enumerated:
    """Without guidance, which doubles the rows."""
    model, plain = case.model(sizes), replace(case, sampling=replace(case.sampling, cfg=1.0))
    law = whole_law(plain.decoder(model), model, plain.filters(sizes[0]), free=free)
    return f"codes of {len(free.first.unique())} places (each alone)", law
