"""The Jacobi family by enumeration: exact where it should be, and as far off as released."""

from __future__ import annotations

from typing import Any

import pytest

from bench.config.compose import compose_study
from bench.judge.gate.equal import equality_check
from bench.judge.gate.small import Real
from bench.judge.gate.table import table_model
from bench.judge.gate.whole_law import whole_check, whole_law
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.propose.fresh import INITS
from decoders.propose.jacobi import Jacobi
from decoders.propose.maximal import Maximal
from decoders.propose.pac import Pac
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from decoders.verify.longest_path import LongestPath
from tests.exact.specs import EXACT, SPECULATIVE, composed
from tests.exact.states import exhaust
from tests.exact.test_exact_planted import planted

RULE = ByNode(Exact())
LONGEST = LongestPath(shared=False)
FAMILY = {
    **{f"sjd {init}": (Jacobi(None, 4, init), RULE) for init in INITS},
    **{f"scd {init}": (Maximal(None, 4, init), RULE) for init in INITS},
    "pac, one level": (Pac(None, 3, candidates=2, levels=1), RULE),
    "pac, two levels": (Pac(None, 4, candidates=2, levels=2), RULE),
    "pac, three candidates": (Pac(None, 3, candidates=3, levels=1), RULE),
    "pac, certain drafts": (Pac(None, 3, "horizontal", candidates=2, levels=2), RULE),
}
# TV on this table, beside that of METHODS2 on its own: 0.0816, 0.0051, 0.0096, 0.0207, 0.0259
RELEASED = {
    "scd, uniform drafts": (Maximal(None, 4, "uniform", released=True), RULE, 0.1244),
    "scd, random drafts": (Maximal(None, 4, "random", released=True), RULE, 0.0059),
    "pac, longest path": (Pac(None, 3, candidates=2, levels=2), LONGEST, 0.0107),
    "pac, siblings": (Pac(None, 3, candidates=2, levels=2, released=True), RULE, 0.00075),
    "pac, both": (Pac(None, 3, candidates=2, levels=2, released=True), LONGEST, 0.0120),
}
ROWS = (
    "sjd", "sjd_random", "sjd_horizontal", "sjd_vertical", "sjd_sample", "scd_mc", "scd_gs",
    "scd_mc_released", "sjd_pac", "sjd_pac_released", "gumbel_jacobi", "gumbel_chain",
)  # fmt: skip
NOISED = ("sjd_vertical", "sjd_pac_released", "gumbel_jacobi", "gumbel_chain")  # shared noise


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_exact_at_every_image(name: str) -> None:
    found = exhaust(*FAMILY[name])
    assert float(found.law.sum()) == pytest.approx(1, abs=1e-12)
    assert found.tv < 1e-12
    assert found.forwards < 3  # of AR


@pytest.mark.parametrize("name", RELEASED)
def test_released_code_is_as_biased_as_it_is(name: str) -> None:
    *parts, size = RELEASED[name]
    assert exhaust(*parts).tv == pytest.approx(size, rel=0.02)


def test_candidates_and_couplings_save_forwards() -> None:
    steps = {name: exhaust(*FAMILY[name]).forwards for name in FAMILY if "pac" in name}
    window = exhaust(*FAMILY["sjd uniform"]).forwards
    assert steps["pac, two levels"] < steps["pac, one level"] < window
    fresh, coupled = (exhaust(kind(None, 4), RULE, length=5) for kind in (Jacobi, Maximal))
    assert coupled.tv < 1e-12 and coupled.forwards < fresh.forwards - 0.005
    random = exhaust(Jacobi(None, 4, "random"), RULE).forwards
    assert window < random  # p(x) V is more than p(x)


@pytest.mark.parametrize("init", ["uniform", "vertical"])
def test_the_real_loop_takes_the_enumerated_forwards(init: str) -> None:
    """Two enumerations, one through the loop with its cache: the same law, and the same steps."""
    model, sampling = table_model(3, 3, 7), Sampling()
    options = {"window": 3, "init": init}
    proposer = PartSpec("decoders.propose.jacobi.Jacobi", options)
    spec = DecoderSpec("sjd", SPECULATIVE, acceptance=EXACT, proposer=proposer)
    through = whole_law(build_decoder(model, spec, sampling), model, sampling)
    states = exhaust(Jacobi(None, **options), RULE, length=3)
    assert through.complete and through.tv < 1e-12 and states.tv < 1e-12
    assert through.forwards == pytest.approx(states.forwards, abs=1e-12)


def rows() -> dict[str, Any]:
    study = compose_study(["study=smoke", f"decoders=[{','.join(ROWS)}]"])
    return {entry.name: entry for entry in study.decoders}


def test_every_row_is_what_it_says() -> None:
    """By enumeration, and under shared noise: the decoders of conf/, cut to small models."""
    for name, entry in rows().items():
        found = whole_check(entry.spec, Sampling(), Real())
        assert bool(found.fault) is (entry.expect == "violates"), name
        if name not in NOISED:
            continue
        same = equality_check(entry.spec, Sampling(cfg=2.0), Real())
        assert not same.fault, name
        assert same.evidence["shared noise"]["codes_per_forward"] > 1.1


@pytest.mark.parametrize("loop", ["StaleCache", "ShiftedGrid"])
def test_shared_noise_sees_an_error_of_a_loop(loop: str) -> None:
    found = equality_check(composed("small", loop=planted(loop)), Sampling(cfg=2.0), Real())
    assert "not those of AR under the same Gumbel numbers" in found.fault
    assert found.evidence["shared noise"]["equal_to_ar"] < 48
