"""The Jacobi family is exact, by enumeration; and what couplings and candidates save."""

from functools import cache

import pytest

from bench.judge.gate.whole_law import WholeLaw, whole_law
from decoders.api import Sampling
from decoders.compose import build_decoder
from tests.exact.specs import proposing, window
from tests.exact.table import table_model

FAMILY = {
    "sjd": proposing("jacobi.Jacobi", window=3),
    "scd": proposing("maximal.Maximal", window=3),
    "sjd++": proposing("plus.Plus", window=3),
    "pac, one level": proposing("pac.Pac", window=4, candidates=2, levels=1),
    "pac, two levels": proposing("pac.Pac", window=7, candidates=2, levels=2),
    "pac, three candidates": proposing("pac.Pac", window=5, candidates=3, levels=1),
}


@cache
def enumerated(name: str, length: int = 4) -> WholeLaw:
    """The family's images through the loop, on a table of 3 codes."""
    model, sampling = table_model(3, length, 7), Sampling()
    decoder = build_decoder(model, window(FAMILY[name]), sampling)
    return whole_law(decoder, model, sampling, most=60_000)


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_exact_at_every_image(name: str) -> None:
    found = enumerated(name)
    assert found.rest < 2e-4 and float(found.law.sum()) == pytest.approx(1 - found.rest, abs=1e-12)
    assert found.tv < 1e-12
    assert found.forwards < 3  # of AR


def test_candidates_and_couplings_save_forwards() -> None:
    steps = [enumerated(name).forwards for name in ("pac, two levels", "pac, one level", "sjd")]
    assert steps == sorted(steps)
    fresh, coupled = (enumerated(name, 5) for name in ("sjd", "scd"))
    assert coupled.tv < 1e-12 and coupled.forwards < fresh.forwards - 0.005
