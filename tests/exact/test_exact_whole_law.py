"""The law of whole images by enumeration: the enumeration itself by hand, decoders that are exact,
and the errors of the field, each of which turns red."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.judge.gate import check_decoder
from bench.judge.gate.enumerate import NotEnumerable, Scripted, enumerate_program
from bench.judge.gate.reference import ar_probabilities
from bench.judge.gate.small import GateCase
from bench.judge.gate.whole_law import WholeLaw, whole_law
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.noise import ACCEPT_SLOT, sample
from tests.exact.planted import finds
from tests.exact.specs import (
    AR,
    SPECULATIVE,
    composed,
    part,
    planted,
    planting,
    proposing,
    verifying,
    window,
)
from tests.exact.table import table_model, table_spec

PLAIN, TWO = Sampling(), Sampling(top_k=700)  # of 1024: two codes of three
DUO = part("decoders.loops.duo", "Duo")
PAIR = planting("static.Static", choices=[[0], [1]])
WIDE = planting("static.Static", choices=[[0], [1], [0, 0], [1, 0]])


def of(loop: PartSpec = SPECULATIVE, **parts: Any) -> DecoderSpec:
    return composed(loop=loop, **parts)


def judged(spec: DecoderSpec, sampling: Sampling = PLAIN) -> WholeLaw:
    case, model = GateCase(spec, sampling), table_model(3, 3, 3)
    filters = case.filters(3)
    decoder = build_decoder(model, table_spec(spec, model, case.codebook), filters)
    return whole_law(decoder, model, filters)


@pytest.mark.parametrize("again", [False, True], ids=["a new number", "the same one"])
def test_a_program_of_two_decisions_by_hand(again: bool) -> None:
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)

    def run(noise: Scripted) -> torch.Tensor:
        place = torch.zeros(len(noise.uniform), dtype=torch.long)
        x = sample(p.expand(len(place), -1), noise.at(place, ACCEPT_SLOT)[:, 0])
        slot = ACCEPT_SLOT + (0 if again else 1)
        hit = noise.at(place, slot)[:, 0] < torch.full_like(place, 0.6, dtype=torch.float64)
        return torch.stack([x, hit.long()], 1)

    found = enumerate_program(run, 1, 100)
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
    spec = table_spec(of(rule=part(__name__, "Every"), tree=chain), model, 1024)
    decoder: Any = build_decoder(model, spec, PLAIN)
    target: Any = model.target
    images = torch.cartesian_prod(*[torch.arange(3)] * 3)  # [27, 3]
    p = target.logits(target(None, images, None)).softmax(-1)  # [27, 3, V]
    q = decoder.drafter.table[0, images[:, 0]].softmax(-1)  # [27, V]
    laws = torch.stack([p[:, 0], q, p[:, 2]], 1)  # [27, 3, V]
    wanted = laws.gather(-1, images[..., None])[..., 0].prod(-1)
    found = whole_law(decoder, model, PLAIN)
    assert found.complete and found.forwards == pytest.approx(1)
    assert torch.allclose(found.law, wanted, atol=1e-9)
    assert found.tv == pytest.approx(0.5 * float((wanted - found.ar).abs().sum()), abs=1e-9)


def test_what_has_no_threshold_is_refused_and_left_to_the_samples(few_images: None) -> None:
    def run(noise: Scripted) -> torch.Tensor:
        place = torch.zeros(len(noise.uniform), dtype=torch.long)
        return noise.at(place, 1).square()

    with pytest.raises(NotEnumerable, match="square"):
        enumerate_program(run, 1, 10)
    found = check_decoder(window(planted("Squared", window=3)), PLAIN)
    assert "sampled" in found.text
    assert "square" in found.evidence["whole law"]["not enumerated"]


def test_the_law_of_ar_is_a_law_and_its_filters_are_those_of_sampling() -> None:
    model = table_model(3, 3, 3)
    text, images = model.text.encode(["x"]), torch.cartesian_prod(*[torch.arange(3)] * 3)
    for sampling, possible in ((PLAIN, 27), (Sampling(top_k=2), 8)):
        law = ar_probabilities(model, text, images, sampling).prod(-1)
        assert float(law.sum()) == pytest.approx(1) and int((law > 0).sum()) == possible
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
}


@pytest.mark.parametrize("name", EXACTLY)
def test_exact_decoders_are_exact_to_rounding(name: str) -> None:
    found = judged(EXACTLY[name])
    assert found.rest == 0 and found.tv < 1e-12


@pytest.mark.parametrize("depth", [2, 3])
def test_a_drafter_in_a_thread_of_its_own_is_exact(depth: int) -> None:
    model = table_model(3, 3, 3)
    spec = table_spec(of(DUO, tree=planting("chain.Chain", depth=depth)), model, 1024)
    spec = replace(spec, loop=DUO)
    assert whole_law(build_decoder(model, spec, PLAIN), model, PLAIN).tv < 1e-12


def test_what_is_not_followed_to_the_end_is_no_fault_and_no_proof() -> None:
    model = table_model(3, 3, 3)
    spec = table_spec(of(tree=PAIR), model, 1024)
    made = whole_law(build_decoder(model, spec, PLAIN), model, PLAIN, most=20)
    assert 0 < made.rest < 0.9 and not made.complete
    assert made.tv < 1e-12
    assert float(made.law.sum()) == pytest.approx(1 - made.rest)
