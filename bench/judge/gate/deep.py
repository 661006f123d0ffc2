"""The law of whole images, enumerated (`bench.judge.gate.whole_law`) where decoders differ: on a
table of three codes and three places, at the depth that its drafts have, at the end of images that
are as long as real ones, and on a small transformer with the decoder's own drafter.

Ways to an image grow tenfold per place, so deep levels and late places are followed alone: numbers
of the first places are held. Their tests read 0, so that first drafts are accepted there, or one,
so that what can be rejected is; all others are two values in turn. What is decided node by node,
each with numbers of its own, then follows AR's law given the codes of these places. A number of a
held place that is used again where a new one is needed shows all the more. A verifier that looks
ahead decides early places by later drafts. Its numbers are new in every step, so steps are held in
long images, and shorter ones are followed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.data.errors import Failure, attempt
from bench.judge.gate.branching import FREE, PLACES, POINT, Held, Outcome, Scripted, explore
from bench.judge.gate.report import Finding
from bench.judge.gate.small import Asked
from bench.judge.gate.whole_law import (
    CERTAIN,
    MOST,
    WholeLaw,
    table_model,
    table_spec,
    whole_law,
)
from decoders.api import ImageModel, Sampling
from decoders.compose import build_decoder, build_part

VOCAB, LENGTH, SEED = 3, 3, 3  # of the table
CODES, TALLEST, LONG = 2, 7, 256  # codes; most places of images at depth; of long ones
AHEAD = 3  # places of an image to which the drafts of a verifier that looks ahead are cut, if long
LEVELS = 4  # of a loop that says nothing of its own
VALUES = 0.3, 0.7  # of held numbers
ACCEPTED, REJECTED = 0.0, 1 - POINT  # what held tests read
GROWTH, ENOUGH = 10, 10_000  # ways of one more free place, about; ways that are run at most
FEW = 400  # ways to the end of a long image
OWN = (2, 2, 19)  # (V, grid, seed) of the transformer
CLOSE = 1e-5  # a total variation that is no rounding of its float32


@dataclass(frozen=True)
class Made:
    """A composition on a model, and how it is sampled there."""

    decoder: Any
    model: ImageModel
    sampling: Sampling

    @staticmethod
    def on_table(asked: Asked, codes: int, places: int, cut: int = 0) -> Made:
        """cut: places that its drafts are cut to, where fewer."""
        model, plain = table_model(codes, places, SEED), replace(asked.filters(codes), cfg=1.0)
        fitting = table_model(codes, cut, SEED) if cut else model
        spec = table_spec(asked.spec, fitting, asked.real)
        return Made(build_decoder(model, spec, plain), model, plain)

    @property
    def levels(self) -> int:
        """Of its drafts."""
        proposer = self.decoder.proposer
        return LEVELS if proposer is None else proposer.depth

    @property
    def ahead(self) -> bool:
        return self.decoder.verifier is not None and self.decoder.verifier.looks_ahead

    def law(self, most: int = MOST, held: Held = FREE) -> WholeLaw:
        return whole_law(self.decoder, self.model, self.sampling, most, held)

    def held(self, value: float, tests: float) -> Held:
        """All but the last two places; where steps are held, but those of the steps that commit
        them."""
        size = self.model.target.length
        if not self.ahead:
            return Held(size - 2, value, tests)

        def run(noise: Scripted) -> Outcome:
            step = self.decoder.generate(self.model.text.encode(["x"]), noise).trace.step.long()
            return Outcome(step, step.amax(-1))

        step = explore(run, size, 1, held=Held(PLACES, value, tests)).value[0]  # [L]
        before = int(step[-2]) - 1
        return Held(int((step <= before).sum()), value, tests, before)


def _judged(
    name: str,
    what: str,
    says: str,
    follow: Callable[[], list[WholeLaw]],
    rounding: float = CERTAIN,
) -> Finding:
    """Fault: a total variation beyond rounding. Evidence: how many ways were followed, and the
    probability of those that were not; or why none could be."""
    laws = attempt(follow)
    if isinstance(laws, Failure):
        return Finding(name, evidence={"not enumerated": laws.error})
    tv, rest = max(law.tv for law in laws), max(law.rest for law in laws)
    evidence = {"tv": tv, "not followed": rest, "ways": sum(law.rows for law in laws)}
    if tv <= rounding:
        return Finding(name, evidence=evidence, says=says.format(_ways(evidence)))
    least = "" if all(law.complete for law in laws) else "at least "
    fault = f"{what} do not follow the AR law: TV {least}{tv:.2g}, by enumeration"
    return Finding(name, fault, evidence, tv)


def _ways(evidence: dict[str, Any]) -> str:
    rest = evidence["not followed"]
    share = "all" if rest < CERTAIN / 10 else f"all but {rest:.1g} of the probability in"
    return f"{share} {evidence['ways']} ways"


def whole_check(asked: Asked) -> Finding:
    """The law of whole images of the table."""
    with_table = "" if asked.spec.drafter is None else " with a table drafter"
    images = f"{VOCAB}**{LENGTH}"
    return _judged(
        "whole law",
        f"images of {images}",
        f"enumerated to 1e-9{with_table}: {{}} to an image of {images}",
        lambda: [Made.on_table(asked, VOCAB, LENGTH).law()],
    )


def deep_check(asked: Asked) -> Finding:
    """The last places of images in which the decoder's drafts reach their full depth, as many of
    them as can be followed. Evidence: `cut`, what of the draft did not fit."""
    made: Any = attempt(lambda: Made.on_table(asked, CODES, TALLEST))
    if isinstance(made, Failure):
        return Finding("deep law", evidence={"not enumerated": made.error})
    length = min(made.levels + 2, TALLEST)
    about: dict[str, Any] = {"levels": made.levels, "places": length, "not followed": 1.0}
    about |= _cut(asked, made.decoder)
    for places, held, tests in _settings(length, made.ahead):
        what = f"{places} places of {CODES} codes, the last {places - held} of them free,"
        found = _judged("deep law", what, "", partial(_laws, asked, places, held, tests))
        evidence = about | found.evidence
        if found.fault or "not enumerated" in evidence:
            return replace(found, evidence=evidence, says=_deep_words(about))
        rest, ways = evidence["not followed"], evidence["ways"]
        if tests == ACCEPTED and (about["not followed"] or not rest):
            about = evidence | {"places": places, "free": places - held}
        if tests == ACCEPTED and (rest or ways * GROWTH > ENOUGH):
            break
    return Finding("deep law", evidence=about, says=_deep_words(about))


def _settings(length: int, ahead: bool) -> Iterator[tuple[int, int, float]]:
    """(places, how many of them are held, what tests read there), the cheapest first."""
    if not ahead:
        yield length, length - 2, REJECTED
    for free in range(2, length + 1):
        yield (free, 0, ACCEPTED) if ahead else (length, length - free, ACCEPTED)


def _laws(asked: Asked, places: int, held: int, tests: float) -> list[WholeLaw]:
    made = Made.on_table(asked, CODES, places)
    values = VALUES if held else VALUES[:1]
    most = MOST if tests == ACCEPTED else MOST // 10
    return [made.law(most, Held(held, value, tests)) for value in values]


def _deep_words(about: dict[str, Any]) -> str:
    if "free" not in about:
        return ""
    cut = f" (draft cut: {about['cut']})" if "cut" in about else ""
    return (
        f"{_ways(about)} of the last {about['free']} of {about['places']} places of {CODES} codes, "
        f"where drafts have {min(about['levels'], about['places'])} levels{cut}"
    )


def _cut(asked: Asked, made: Any) -> dict[str, str]:
    """What of the draft was cut to fit two codes and so many places; {} for nothing."""
    part = asked.spec.tree or asked.spec.proposer
    own = None if part is None else attempt(lambda: build_part(part, made.model))
    if own is None or isinstance(own, Failure):
        return {}
    kept: Any = made.proposer.tree or made.proposer
    names = ("depth", "branching", "nodes")
    pairs = [(name, getattr(own, name), getattr(kept, name)) for name in names]
    cut = ", ".join(f"{name} {one} to {other}" for name, one, other in pairs if one != other)
    return {"cut": cut} if cut else {}


def long_check(asked: Asked) -> Finding:
    """The last places of an image as long as a real one, behind numbers that are held: for what
    repeats within an image, and for what attention does not see."""

    def enumerated() -> list[WholeLaw]:
        cut = AHEAD if Made.on_table(asked, CODES, TALLEST).ahead else TALLEST
        size = Made.on_table(asked, CODES, cut).levels + 1
        steps = (LONG - 1) // size  # the last one ends with the image
        made = Made.on_table(asked, CODES, 1 + steps * size, cut)
        return [made.law(FEW, made.held(VALUES[0], ACCEPTED))]

    what = f"the last places of {LONG}, of {CODES} codes,"
    return _judged("long law", what, f"{{}} of the last places of {LONG}", enumerated)


def own_check(asked: Asked) -> Finding:
    """Whole images of a small transformer, with the decoder's own drafter."""

    def enumerated() -> list[WholeLaw]:
        model = asked.plain.model(OWN)
        return [Made(asked.plain.decoder(model), model, asked.filters(OWN[0])).law()]

    says = "" if asked.spec.drafter is None else "with its own drafter, to 1e-5: {} to 2**4"
    return _judged("own law", f"images of {OWN[0]}**{OWN[1] ** 2}", says, enumerated, CLOSE)
