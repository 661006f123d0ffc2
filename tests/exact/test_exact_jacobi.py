"""The Jacobi family by enumeration: exact where it should be, and as far off as released."""

from functools import cache
from typing import Any

import pytest

from bench.judge.gate.whole_law import WholeLaw, table_model, whole_law
from decoders.api import Sampling
from decoders.compose import PartSpec, build_decoder
from decoders.propose.window import INITS
from tests.exact.specs import EXACT, proposing, verifying, window

LONGEST = verifying("released.LongestPath")


def sjd(**options: Any) -> PartSpec:
    return proposing("jacobi.Jacobi", window=3, **options)


def scd(**options: Any) -> PartSpec:
    return proposing("maximal.Maximal", window=3, **options)


def pac(**options: Any) -> PartSpec:
    tree = {"candidates": 2, "levels": 2, **options}
    size = 3 + sum(tree["candidates"] ** level - 1 for level in range(1, tree["levels"] + 1))
    return proposing("pac.Pac", **tree, window=size)


FAMILY = {
    **{f"sjd {init}": sjd(init=init) for init in INITS},
    **{f"scd {init}": scd(init=init) for init in INITS},
    "pac, one level": pac(levels=1),
    "pac, two levels": pac(),
    "pac, three candidates": pac(candidates=3, levels=1),
    "pac, certain drafts": pac(init="horizontal"),
}
RELEASED = {  # TV on this table
    "scd, uniform drafts": (scd(init="uniform", released=True), EXACT, 0.0608),
    "scd, random drafts": (scd(init="random", released=True), EXACT, 0.00678),
    "pac, longest path": (pac(), LONGEST, 0.01072),
    "pac, siblings": (pac(released=True), EXACT, 0.000415),
    "pac, both": (pac(released=True), LONGEST, 0.00938),
}


@cache
def enumerated(name: str, length: int = 4) -> WholeLaw:
    """The family's images through the loop, on a table of 3 codes."""
    proposer, rule, *_ = RELEASED[name] if name in RELEASED else (FAMILY[name], EXACT)
    model, sampling = table_model(3, length, 7), Sampling()
    decoder = build_decoder(model, window(proposer, rule), sampling)
    return whole_law(decoder, model, sampling, most=60_000)


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_exact_at_every_image(name: str) -> None:
    found = enumerated(name)
    assert found.rest < 2e-4 and float(found.law.sum()) == pytest.approx(1 - found.rest, abs=1e-12)
    assert found.tv < 1e-12
    assert found.forwards < 3  # of AR


@pytest.mark.parametrize("name", RELEASED)
def test_released_code_is_as_biased_as_it_is(name: str) -> None:
    assert enumerated(name).tv == pytest.approx(RELEASED[name][-1], rel=0.02)


def test_candidates_and_couplings_save_forwards() -> None:
    order = "pac, two levels", "pac, one level", "sjd uniform", "sjd random"  # p(x) V, then p(x)
    steps = [enumerated(name).forwards for name in order]
    assert steps == sorted(steps)
    fresh, coupled = (enumerated(f"{name} uniform", 5) for name in ("sjd", "scd"))
    assert coupled.tv < 1e-12 and coupled.forwards < fresh.forwards - 0.005
