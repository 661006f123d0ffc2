"""The law of whole images at the depth that a decoder has: two codes, as many places as its drafts
reach, numbers of the first places held.

Three codes and three places are enumerated whole (`whole_law`), which is two levels of drafts. Ways
to an image grow tenfold per place, so deeper levels are followed alone: at the first places tests
read 0, so that first drafts are accepted there, and all other numbers are two values in turn. What
is decided node by node, each with numbers of its own, then follows AR's law given the codes of
these places. A number of a held place that is used again where a new one is needed shows all the
more. A verifier that looks ahead decides early places by later drafts, so nothing is held there:
shorter images are followed whole instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.data.errors import Failure, attempt
from bench.judge.gate.branching import Held
from bench.judge.gate.report import Finding
from bench.judge.gate.small import Real, small_sampling
from bench.judge.gate.whole_law import (
    CERTAIN,
    MOST,
    SEED,
    WholeLaw,
    table_model,
    table_spec,
    whole_law,
)
from decoders.api import Sampling
from decoders.compose import DecoderSpec, build_decoder, build_part

CODES, TALLEST = 2, 7  # codes; most places
LEVELS = 4  # of a loop that says nothing of its own
VALUES = 0.3, 0.7  # of held numbers
GROWTH, ENOUGH = 10, 10_000  # ways of one more free place, about; ways that are run at most


def deep_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> Finding:
    """Fault: a total variation beyond rounding at the last levels. Evidence: how many were
    followed to the end, and what was cut."""
    plain = replace(sampling, cfg=1.0)
    made: Any = attempt(lambda: _decoder(spec, plain, real, TALLEST))
    if isinstance(made, Failure):
        return Finding("deep law", "", 0.0, {"not enumerated": made.error})
    levels = getattr(getattr(made, "proposer", None), "depth", LEVELS)
    ahead = getattr(getattr(made, "verifier", None), "looks_ahead", False)
    length = min(levels + 2, TALLEST)
    evidence: dict[str, Any] = {"levels": levels, "places": length, "not followed": 1.0}
    cut = _cut(spec, made)
    evidence |= {"cut": cut} if cut else {}
    for places, held in _settings(length, ahead):
        laws = attempt(lambda p=places, h=held: _laws(spec, plain, real, p, h))  # type: ignore[misc]
        if isinstance(laws, Failure):
            return Finding("deep law", "", 0.0, evidence | {"not enumerated": laws.error})
        tv, rest = max(law.tv for law in laws), max(law.rest for law in laws)
        ways = sum(law.rows for law in laws)
        if not tv <= CERTAIN:
            fault = (
                f"{places} places of {CODES} codes do not follow the AR law, the last "
                f"{places - held} of them free: TV {'' if not rest else 'at least '}{tv:.2g}, by "
                "enumeration"
            )
            return Finding("deep law", fault, tv, evidence | {"tv": tv, "ways": ways})
        if all(law.complete for law in laws):
            evidence |= {"places": places, "free": places - held, "ways": ways, "tv": tv}
            evidence["not followed"] = 0.0
        elif evidence["not followed"]:
            evidence |= {"places": places, "free": places - held, "ways": ways, "tv": tv}
            evidence["not followed"] = rest
        if rest or ways * GROWTH > ENOUGH:
            break
    return Finding("deep law", "", 0.0, evidence)


def _settings(length: int, ahead: bool) -> Iterator[tuple[int, int]]:
    """(places, how many of them are held), the cheapest first."""
    for free in range(2, length + 1):
        yield (free, 0) if ahead else (length, length - free)


def _decoder(spec: DecoderSpec, sampling: Sampling, real: Real, length: int) -> Any:
    model = table_model(CODES, length, SEED)
    return build_decoder(
        model, table_spec(spec, model, real), small_sampling(sampling, CODES, real)
    )


def _laws(
    spec: DecoderSpec, sampling: Sampling, real: Real, length: int, held: int
) -> list[WholeLaw]:
    model = table_model(CODES, length, SEED)
    plain = small_sampling(sampling, CODES, real)
    made = build_decoder(model, table_spec(spec, model, real), plain)
    values = VALUES if held else VALUES[:1]
    return [whole_law(made, model, plain, MOST, Held(held, value)) for value in values]


def _cut(spec: DecoderSpec, made: Any) -> str:
    """What of the draft was cut to fit two codes and so many places; "" for nothing."""
    part = spec.tree or spec.proposer
    own = None if part is None else attempt(lambda: build_part(part, made.model))
    if own is None or isinstance(own, Failure):
        return ""
    kept: Any = getattr(made.proposer, "tree", None) or made.proposer
    pairs = ((f"{name} {getattr(own, name)}", f"{getattr(kept, name)}")
             for name in ("depth", "branching", "nodes")
             if getattr(own, name) != getattr(kept, name))  # fmt: skip
    return ", ".join(f"{before} to {after}" for before, after in pairs)
