"""The law of whole images of a decoder, enumerated (`bench.judge.gate.branching`) on small
transformers, with the decoder's own drafter: of images of three codes and four places, at the depth
that its drafts have, and at the end of long images.

Nothing is sampled, so the only error is rounding. Of a decoder with too many ways to an image the
likeliest are followed: more mass on an image than its probability is an error all the same.

Ways to an image grow tenfold per place, so for deep levels and late places only the numbers of a
few places are free. Held tests read 0, so that first drafts are accepted, or one, so that what can
be rejected is. The codes of the free places then follow AR's law given the codes before. This does
not hold for a verifier that looks ahead, so its whole images are enumerated and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bench.data.errors import Failure, attempt
from bench.judge.gate.branching import FREE, POINT, Held, Scripted, explore
from bench.judge.gate.reference import image_law
from bench.judge.gate.report import CheckResult, finite_or_inf
from bench.judge.gate.small import GateCase, same_prompt
from decoders.api import Decoder, ImageModel, Sampling

MOST = 40_000  # rows that run at most
CLOSE = 1e-5  # a TV that is no rounding in float32
COMPLETE = 1e-10  # probability that may be left out of a law that is called complete
WHOLE, DEEP, LONG = (3, 2, 19), (2, 3, 3), (2, 16, 3)  # (V, grid, seed)
LEVELS = 4  # of a loop that has no proposer
VALUES = 0.3, 0.7  # of held numbers
ACCEPT, REJECT = 0.0, 1 - POINT  # what held tests read
GROWTH, ENOUGH = 10, 3_000  # ways of one more free place, about; ways that are run at most
FEW = 400  # ways to the end of a long image


@dataclass(frozen=True)
class WholeLaw:
    """law [M] float64 of the free places' codes, in base-V order; ar [M]: AR's; rest: the
    probability of what was not followed; rows: ways to an image; forwards: mean target forwards of
    an image that was followed, prefill not counted."""

    law: Tensor
    ar: Tensor
    rest: float
    rows: int
    forwards: float

    @property
    def tv(self) -> float:
        """The total variation, or the least that it can be if not all was followed."""
        return float((self.law - self.ar).clamp_min(0.0).sum())

    @property
    def complete(self) -> bool:
        return self.rest < COMPLETE


def whole_law(
    decoder: Decoder, model: ImageModel, sampling: Sampling, most: int = MOST, held: Held = FREE
) -> WholeLaw:
    """The law of a decoder's images of one caption, on a small model. held: which numbers are
    fixed; `ar` is then AR's law given the codes before the free places.

    Raises NotEnumerable where a random number is used in a way that cannot be followed."""
    text, size = model.text.encode(["x"]), model.target.length
    start, stop = held.first, min(held.stop, size)

    def run(noise: Scripted) -> Tensor:
        done = decoder.generate(same_prompt(text, len(noise.uniform)), noise)
        noise.script.steps = done.trace.target_calls.long()
        return torch.cat([done.codes.long(), done.trace.target_calls.long()[:, None]], 1)

    images = explore(run, size, most, held)
    followed = max(1e-300, 1 - images.rest)
    laws, references = [], []
    before = images.value[:, :start]
    for prefix in before.unique(dim=0) if start else before[:1]:
        same = (before == prefix).all(1)
        ar = image_law(model, text, sampling, prefix, stop)
        law = torch.zeros_like(ar.probability)
        index = ar.index(images.value[same, start:stop], stop - start)
        laws.append(law.index_add_(0, index, images.weight[same]))
        references.append(ar.probability * (law.sum() / followed if start else 1.0))
    forwards = float(images.weight @ images.value[:, -1].double()) / followed
    ways = len(images.weight)
    return WholeLaw(torch.cat(laws), torch.cat(references), images.rest, ways, forwards)


class Images(NamedTuple):
    """Images of one kind, in words, and their laws."""

    words: str
    laws: list[WholeLaw]


def law_checks(case: GateCase) -> list[CheckResult]:
    """Every enumeration of the composition; no deep and long ones if its verifier looks ahead."""
    checks = [law_check("whole law", case, whole_images)]
    verifier = case.decoder(case.model(WHOLE)).verifier
    if verifier is None or not verifier.resamples_noise:
        checks += [law_check("deep law", case, deep_images)]
        checks += [law_check("long law", case, long_images)]
    return checks


def law_check(
    name: str, case: GateCase, images: Callable[[GateCase], Iterator[Images]]
) -> CheckResult:
    """Fault: a total variation beyond rounding. Evidence: how many ways were followed, and the
    probability of those that were not; or why none could be."""

    def enumerated() -> CheckResult:
        best = CheckResult(name, evidence={"not followed": 1.0})
        for words, laws in images(case):
            tv = max(finite_or_inf(law.tv) for law in laws)
            rest, ways = max(law.rest for law in laws), sum(law.rows for law in laws)
            evidence = {"tv": tv, "not followed": rest, "ways": ways}
            if tv > CLOSE:
                least = "" if all(law.complete for law in laws) else "at least "
                fault = f"{words} do not follow the AR law: TV {least}{tv:.2g}, by enumeration"
                return CheckResult(name, fault, evidence, tv)
            if rest <= best.evidence["not followed"]:
                share = f"all but {rest:.1g} of the probability in" if rest else "all"
                best = CheckResult(name, "", evidence, summary=f"{share} {ways} ways to {words}")
        return best

    result = attempt(enumerated)
    if isinstance(result, Failure):
        return CheckResult(name, evidence={"not enumerated": result.error})
    return result


def whole_images(case: GateCase) -> Iterator[Images]:
    model = case.model(WHOLE)
    decoder = case.decoder(model)
    resamples_noise = decoder.verifier is not None and decoder.verifier.resamples_noise
    held = FREE if resamples_noise else Held(1)
    law = whole_law(decoder, model, case.filters(WHOLE[0]), held=held)
    yield Images(f"images of {WHOLE[0]}**{WHOLE[1] ** 2 - held.first}", [law])


def deep_images(case: GateCase) -> Iterator[Images]:
    """More and more places, up to the deepest that drafts of the first step reach."""
    model, sampling = case.model(DEEP), case.filters(DEEP[0])
    levels = levels_of(case.decoder(model))
    stop = min(levels + 2, model.target.length)
    for free in range(2, stop + 1):
        laws = []
        for tests in (ACCEPT, REJECT) if free == 2 else (ACCEPT,):
            for value in VALUES:
                held = Held(stop - free, stop, value, tests)
                laws.append(whole_law(case.decoder(model), model, sampling, MOST, held))
        yield Images(f"{free} places of {DEEP[0]} codes below drafts of {levels} levels", laws)
        ways = sum(law.rows for law in laws)
        if not laws[-1].complete or ways * GROWTH > ENOUGH:
            return


def long_images(case: GateCase) -> Iterator[Images]:
    """The last places of a long image: for what repeats within an image, and for what attention
    does not see."""
    model, size = case.model(LONG), LONG[1] ** 2
    decoder = case.decoder(model)
    step = levels_of(decoder) + 1  # codes that a step commits
    stop = 1 + (size - 1) // step * step
    held = Held(stop - 2, stop, VALUES[0], ACCEPT)
    law = whole_law(decoder, model, case.filters(LONG[0]), FEW, held)
    yield Images(f"places {stop - 2} and {stop - 1} of {size}, of {LONG[0]} codes", [law])


def levels_of(decoder: Decoder) -> int:
    return LEVELS if decoder.proposer is None else decoder.proposer.depth
