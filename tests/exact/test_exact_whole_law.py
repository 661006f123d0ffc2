"""The law of whole images by enumeration: the enumeration itself by hand, decoders that are exact,
and the errors of the field, each of which turns red."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.config.compose import compose_study
from bench.judge.gate import check_decoder
from bench.judge.gate.branching import NotEnumerable, Outcome, Scripted, explore
from bench.judge.gate.deep import whole_check
from bench.judge.gate.reference import image_law
from bench.judge.gate.small import Asked, Real
from bench.judge.gate.whole_law import (
    CERTAIN,
    table_model,
    table_spec,
    whole_law,
)
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.noise import ACCEPT_SLOT, sample
from tests.exact.planted import finds
from tests.exact.specs import (
    AR,
    SPECULATIVE,
    composed,
    field,
    lantern,
    part,
    planted,
    planting,
    proposing,
    verifying,
    window,
)

PLAIN, TWO = Sampling(), Sampling(top_k=700)  # of 1024: two codes of three
DUO = part("decoders.loops.duo", "Duo")
PAIR = planting("static.Static", choices=[[0], [1]])
WIDE = planting("static.Static", choices=[[0], [1], [0, 0], [1, 0]])


def of(loop: PartSpec = SPECULATIVE, **parts: Any) -> DecoderSpec:
    return composed(loop=loop, **parts)


def judged(spec: DecoderSpec, sampling: Sampling = PLAIN) -> Any:
    return whole_check(Asked(spec, sampling))


@pytest.mark.parametrize("again", [False, True], ids=["a new number", "the same one"])
def test_a_program_of_two_decisions_by_hand(again: bool) -> None:
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)

    def run(noise: Scripted) -> Outcome:
        place = torch.zeros(len(noise.uniform), dtype=torch.long)
        x = sample(p.expand(len(place), -1), noise.at(place, ACCEPT_SLOT)[:, 0])
        slot = ACCEPT_SLOT + (0 if again else 1)
        hit = noise.at(place, slot)[:, 0] < torch.full_like(place, 0.6, dtype=torch.float64)
        return Outcome(torch.stack([x, hit.long()], 1), place)

    found = explore(run, 1, 100)
    law = torch.zeros(3, 2, dtype=torch.float64)
    law.index_put_(tuple(found.value.T), found.weight, accumulate=True)
    new = torch.outer(p, torch.tensor([0.4, 0.6], dtype=torch.float64))
    same = torch.tensor([[0, 0.5], [0.15, 0.1], [0.25, 0]], dtype=torch.float64)
    assert torch.allclose(law, same if again else new, atol=1e-15)
    assert found.rest == 0
    assert len(found.weight) == (4 if again else 6)


Every = finds(accept=lambda found, *_: torch.ones_like(found.accept))  # takes every draft


def test_the_law_of_a_wrong_decoder_by_hand() -> None:
    """One draft, always accepted: p of the first code, q of the second, p of the third."""
    model = table_model(3, 3, 3)
    chain = planting("chain.Chain", depth=1)
    spec = table_spec(of(rule=part(__name__, "Every"), tree=chain), model, Real())
    decoder: Any = build_decoder(model, spec, PLAIN)
    target: Any = model.target
    images = torch.cartesian_prod(*[torch.arange(3)] * 3)  # [27, 3]
    context = target.context(images)  # [27, 4, W]
    p = target.net(context).softmax(-1)
    q = (0.6 * target.net(context) + decoder.drafter.own(context)).softmax(-1)
    laws = torch.stack([p[:, 0], q[:, 1], p[:, 2]], 1)  # [27, 3, V]
    wanted = laws.gather(-1, images[..., None])[..., 0].prod(-1)
    found = whole_law(decoder, model, PLAIN)
    assert found.complete and found.forwards == pytest.approx(1)
    assert torch.allclose(found.law, wanted, atol=1e-9)
    assert found.tv == pytest.approx(0.5 * float((wanted - found.wanted).abs().sum()), abs=1e-9)


def test_what_has_no_threshold_is_refused_and_left_to_the_samples() -> None:
    def run(noise: Scripted) -> Outcome:
        place = torch.zeros(len(noise.uniform), dtype=torch.long)
        return Outcome(noise.at(place, 1).square(), place)

    with pytest.raises(NotEnumerable, match="square"):
        explore(run, 1, 10)
    found = judged(window(field("Squared", window=3)))
    assert not found.fault
    assert "square" in found.evidence["not enumerated"]


def ar_law(model: Any, sampling: Sampling) -> torch.Tensor:
    return image_law(model, model.text.encode(["x"]), sampling).probability


def test_the_law_of_ar_is_a_law_and_its_filters_are_those_of_sampling() -> None:
    model = table_model(3, 3, 3)
    assert float(ar_law(model, PLAIN).sum()) == pytest.approx(1)
    two = ar_law(model, Sampling(top_k=2))
    assert int((two > 0).sum()) == 8
    made = whole_law(build_decoder(model, DecoderSpec("ar", AR), PLAIN), model, PLAIN)
    assert made.tv < 1e-12 and made.rows == 27 and made.forwards == pytest.approx(2)


EXACTLY = {
    "ar": DecoderSpec("ar", AR),
    "chain": composed("chain"),
    "static tree": of(tree=WIDE),
    "dynamic tree": composed("dynamic"),
    "block": of(rule=verifying("block.Block")),
    "traversal": of(rule=verifying("traversal.Traversal"), tree=WIDE),
    "jacobi": window(proposing("jacobi.Jacobi", window=3)),
    "the drafter goes on": of(DUO),
    "the drafter goes on, block": of(DUO, rule=verifying("block.Block")),
    "kept behind a rejected draft": of(field("KeptBehind")),
}


@pytest.mark.parametrize("name", EXACTLY)
def test_exact_decoders_are_exact_to_rounding(name: str) -> None:
    found = judged(EXACTLY[name])
    assert not found.fault
    assert found.evidence["not followed"] == 0
    assert found.evidence["tv"] < 1e-12 < CERTAIN


@pytest.mark.parametrize("depth", [2, 3])
def test_a_drafter_in_a_thread_of_its_own_is_exact(depth: int) -> None:
    model = table_model(3, 3, 3)
    spec = table_spec(of(DUO, tree=planting("chain.Chain", depth=depth)), model, Real())
    spec = replace(spec, loop=DUO)
    assert whole_law(build_decoder(model, spec, PLAIN), model, PLAIN).tv < 1e-12


def test_what_is_not_followed_to_the_end_is_no_fault_and_no_proof() -> None:
    model = table_model(3, 3, 3)
    spec = table_spec(of(tree=PAIR), model, Real())
    made = whole_law(build_decoder(model, spec, PLAIN), model, PLAIN, most=20)
    assert 0 < made.rest < 0.9 and not made.complete
    assert made.tv < 1e-12
    assert float(made.law.sum()) == pytest.approx(1 - made.rest)


PLANTED = {
    "longest path": (of(planted("LongestPath"), tree=WIDE), 0.089),
    "the rejected row is kept": (of(field("KeptRow")), 0.059),
    "a row of noise is used twice": (of(field("RowTwice")), 0.0046),
    "an empty slot is visible": (of(field("EmptySlot")), 0.048),
    "drafts are kept after a rejection": (of(field("KeptOn")), 0.0402),
}


@pytest.mark.parametrize("name", PLANTED)
def test_errors_of_the_field_are_caught_and_sized(name: str) -> None:
    spec, size = PLANTED[name]
    found = judged(spec)
    assert found.figure == pytest.approx(size, rel=0.06)
    assert "do not follow the AR law" in found.fault and "by enumeration" in found.fault


ROWS = ("sjd", "scd_mc", "sjd_pac", "sjd_plus", "duo")


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_conf_are_exact(name: str) -> None:
    """With a table drafter."""
    (entry,) = compose_study(["study=smoke", f"decoders=[{name}]"]).decoders
    found = judged(entry.spec)
    assert found.figure == 0 == found.evidence["not followed"]
    assert entry.expect == "exact"


def test_a_code_of_probability_zero_is_caught() -> None:
    found = judged(of(rule=field("Outside")), TWO)
    assert found.figure == pytest.approx(0.112, rel=0.05)
    assert not judged(of(), TWO).fault
    assert not judged(of(rule=field("Outside"))).fault  # nothing is impossible there


def test_the_gate_says_how_far_it_looked(few_images: None) -> None:
    for spec in (EXACTLY["block"], composed("chain", lantern(delta=0.0))):
        found = check_decoder(spec, PLAIN)
        assert found.verdict == "exact"
        assert "ways to an image of 3**3" in found.detail and "table drafter" in found.detail
