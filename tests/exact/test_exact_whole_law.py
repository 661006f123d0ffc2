"""The law of whole images by enumeration: the enumeration itself by hand, decoders that are exact,
and the errors of the field, each of which turns red."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gate import check_decoder
from bench.gate.enumerate import MOST_RUNS, NotEnumerable, Scripted, enumerate_program
from bench.gate.reference import ar_probabilities
from bench.gate.whole_law import MOST_ROWS, WholeLaw, whole_law
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.noise import ACCEPT_SLOT, sample
from tests.exact.planted import finds
from tests.exact.specs import (
    AR,
    EXACT,
    SMALL,
    SPECULATIVE,
    check,
    composed,
    part,
    planted,
    planting,
    proposing,
    verifying,
    window,
)
from tests.exact.table import TableTarget, table_model, table_spec

PLAIN = Sampling()
DUO = part("decoders.loops.duo", "Duo")
PAIR = planting("static.Static", choices=[[0], [1]])
WIDE = planting("static.Static", choices=[[0], [1], [0, 0], [1, 0]])


def of(loop: PartSpec = SPECULATIVE, **parts: Any) -> DecoderSpec:
    return composed(loop=loop, **parts)


def judged(spec: DecoderSpec, length: int, most: int = MOST_ROWS) -> WholeLaw:
    model = table_model(3, length, 3)
    decoder = build_decoder(model, table_spec(spec, model, 1024), PLAIN)
    return whole_law(decoder, model, PLAIN, most)


@pytest.mark.parametrize("again", [False, True], ids=["a new number", "the same one"])
def test_a_program_of_two_decisions_by_hand(again: bool) -> None:
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)

    def run(noise: Scripted) -> torch.Tensor:
        position = torch.zeros(len(noise.uniform), dtype=torch.long)
        x = sample(p.expand(len(position), -1), noise.at(position, ACCEPT_SLOT)[:, 0])
        slot = ACCEPT_SLOT + (0 if again else 1)
        hit = noise.at(position, slot)[:, 0] < torch.full_like(position, 0.6, dtype=torch.float64)
        return torch.stack([x, hit.long()], 1)

    found = enumerate_program(run, 1, 100)
    law = torch.zeros(3, 2, dtype=torch.float64)
    law.index_put_(tuple(found.value.T), found.weight, accumulate=True)
    new = torch.outer(p, torch.tensor([0.4, 0.6], dtype=torch.float64))
    same = torch.tensor([[0, 0.5], [0.15, 0.1], [0.25, 0]], dtype=torch.float64)
    assert torch.allclose(law, same if again else new, atol=1e-15)
    assert found.rest == 0
    assert len(found.weight) == (4 if again else 6)


def test_a_program_of_many_decisions_in_a_row_ends() -> None:
    """Each run finds a single new row, so rows alone would not end it in time."""

    def run(noise: Scripted) -> torch.Tensor:
        runs.append(len(noise.uniform))
        open_ = torch.ones(len(noise.uniform), dtype=torch.bool)
        for position in range(200):
            at = torch.full((len(open_),), position)
            open_ = open_ & (noise.at(at, ACCEPT_SLOT)[:, 0] < torch.where(open_, 0.5, 1.0))
        return open_[:, None].long()

    runs = list[int]()
    found = enumerate_program(run, 200, 10_000)
    assert len(runs) <= MOST_RUNS
    assert 0 <= found.rest < 1


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
    assert found.forwards == pytest.approx(1)
    assert torch.allclose(found.law, wanted, atol=1e-9)
    assert found.tv == pytest.approx(0.5 * float((wanted - found.ar).abs().sum()), abs=1e-9)


def test_what_has_no_threshold_is_refused_and_left_to_the_samples() -> None:
    def run(noise: Scripted) -> torch.Tensor:
        position = torch.zeros(len(noise.uniform), dtype=torch.long)
        return noise.at(position, 1).square()

    with pytest.raises(NotEnumerable, match="square"):
        enumerate_program(run, 1, 10)
    found = check_decoder(window(planted("Squared", window=3)), PLAIN, sizes=SMALL)
    assert "sampled" in found.text
    assert "square" in check(found, "whole law").not_enumerated


def test_the_law_of_ar_is_a_law_and_its_filters_are_those_of_sampling() -> None:
    model = table_model(3, 3, 3)
    text, images = model.text.encode(["x"]), torch.cartesian_prod(*[torch.arange(3)] * 3)
    for sampling, possible in ((PLAIN, 27), (Sampling(top_k=2), 8)):
        law = ar_probabilities(model, text, images, sampling).prod(-1)
        assert float(law.sum()) == pytest.approx(1) and int((law > 0).sum()) == possible
    made = whole_law(build_decoder(model, DecoderSpec("ar", AR), PLAIN), model, PLAIN)
    assert made.tv < 1e-12 and made.forwards == pytest.approx(2)


BLOCK, TRAVERSAL = verifying("block.Block"), verifying("traversal.Traversal")
TWO_LEVELS = planting("chain.Chain", depth=2)
DEEP = planting("static.Static", choices=[[0], [1], [0, 0], [0, 1]])
EXACTLY = {  # and the length of the images
    "ar": (DecoderSpec("ar", AR), 3),
    "chain": (composed("chain"), 3),
    "static tree": (of(tree=WIDE), 3),
    "dynamic tree": (composed("dynamic"), 3),
    "block": (of(rule=BLOCK, tree=TWO_LEVELS), 4),
    "traversal, chain": (of(rule=TRAVERSAL, tree=TWO_LEVELS), 4),
    "traversal, siblings": (of(rule=TRAVERSAL, tree=PAIR), 4),
    "traversal, siblings below siblings": (of(rule=TRAVERSAL, tree=DEEP), 3),
    "traversal, two nodes with children": (of(rule=TRAVERSAL, tree=WIDE), 3),
    "the drafter goes on": (of(DUO), 3),
    "the drafter goes on, block": (of(DUO, rule=BLOCK), 3),
}


@pytest.mark.parametrize("name", EXACTLY)
def test_exact_decoders_are_exact_to_rounding(name: str) -> None:
    found = judged(*EXACTLY[name])
    assert found.rest == 0 and found.tv < 1e-12


def test_a_whole_draft_is_accepted_further_than_code_by_code() -> None:
    chain, block, traversal = (
        judged(of(tree=planting("chain.Chain", depth=3), rule=rule), 4, 60_000)
        for rule in (EXACT, BLOCK, TRAVERSAL)
    )
    assert traversal.forwards == pytest.approx(block.forwards, abs=1e-9)
    assert block.forwards < chain.forwards - 0.005


# ---- the Jacobi family, and what couplings and candidates save ----------------------------------

FAMILY = {
    "sjd": proposing("jacobi.Jacobi", window=3),
    "scd": proposing("maximal.Maximal", window=3),
    "sjd++": proposing("plus.Plus", window=3),
    "pac, one level": proposing("pac.Pac", window=4, candidates=2, levels=1),
    "pac, two levels": proposing("pac.Pac", window=7, candidates=2, levels=2),
    "pac, three candidates": proposing("pac.Pac", window=5, candidates=3, levels=1),
}


@cache
def jacobi(name: str, length: int = 4) -> WholeLaw:
    model = table_model(3, length, 7)
    return whole_law(build_decoder(model, window(FAMILY[name]), PLAIN), model, PLAIN, most=60_000)


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_exact_at_every_image(name: str) -> None:
    found = jacobi(name)
    assert found.rest < 2e-4 and float(found.law.sum()) == pytest.approx(1 - found.rest, abs=1e-12)
    assert found.tv < 1e-12
    assert found.forwards < 3  # of AR


def test_candidates_and_couplings_save_forwards() -> None:
    steps = [jacobi(name).forwards for name in ("pac, two levels", "pac, one level", "sjd")]
    assert steps == sorted(steps)
    fresh, coupled = (jacobi(name, 5) for name in ("sjd", "scd"))
    assert coupled.tv < 1e-12 and coupled.forwards < fresh.forwards - 0.005


def test_what_is_not_followed_to_the_end_is_no_fault_and_no_proof() -> None:
    made = judged(of(tree=PAIR), 3, most=20)
    assert 0 < made.rest < 0.9
    assert made.tv < 1e-12
    assert float(made.law.sum()) == pytest.approx(1 - made.rest)


# ---- rows in parallel ---------------------------------------------------------------------------


def pjd(**options: int) -> DecoderSpec:
    return DecoderSpec("pjd", part("decoders.loops.pjd", "Pjd", **options))


def zipar(**options: int) -> DecoderSpec:
    return DecoderSpec("zipar", part("decoders.loops.zipar", "ZipAR", **options))


@pytest.mark.parametrize("spec", [pjd(window=3, threshold=2), pjd(window=2, threshold=9)])
def test_pjd_of_one_row_is_exact(spec: DecoderSpec) -> None:
    model = table_model(2, 4, 7)
    decoder = build_decoder(model, spec, PLAIN)
    found = whole_law(decoder, model, PLAIN)
    assert decoder.claims_law and found.rest == 0 and found.tv < 1e-12


@pytest.mark.parametrize("name", ["zipar", "pjd"])
def test_two_rows_at_once_have_the_law_that_is_stated(name: str) -> None:
    """The third of four codes, which begins a row, is drawn when the first is there, which stands
    in for the second. ZipAR commits it. PJD tests a draft from 1 / V, min(p, 1 / V). What fails is
    drawn again, once the row is the topmost."""
    model = table_model(3, 4, 7)
    spec = zipar(window=1) if name == "zipar" else pjd(window=3, threshold=1)
    target: Any = model.target
    images = torch.cartesian_prod(*[torch.arange(3)] * 4)  # [81, 4]
    p = target.logits(target(None, images, None)).softmax(-1)  # [81, 4, V]
    states = target(None, torch.cat([images[:, :1], images], 1), None)
    early = target.logits(states[:, 2]).softmax(-1)  # [81, V], the first code stands at both places
    kept = early.clamp_max(1 / 3)
    law = kept + (1 - kept.sum(-1, keepdim=True)) * p[:, 2]
    p[:, 2] = early if name == "zipar" else law
    wanted = p.gather(-1, images[..., None])[..., 0].prod(-1)
    decoder = build_decoder(model, spec, PLAIN)
    found = whole_law(decoder, model, PLAIN)
    assert not decoder.claims_law and found.rest == 0
    assert torch.allclose(found.law, wanted, atol=1e-12, rtol=0)
    assert found.tv > 0.01


class Placed(TableTarget):
    """A code's law depends on its position alone, so the context of a row makes no difference."""

    def forward_codes(self, codes: Tensor, positions: Tensor, *given: Any) -> Tensor:
        super().forward_codes(codes, positions, *given)
        return self.content(torch.zeros_like(codes), positions)


@pytest.mark.parametrize("window", [2, 3])
def test_the_recorded_shift_is_what_testing_again_does(window: int) -> None:
    target: Any = Placed(2, 6, 5)
    model = replace(table_model(2, 6, 7), target=target)
    decoder = build_decoder(model, pjd(window=window, threshold=1), PLAIN)

    def run(noise: Scripted) -> Tensor:
        text = model.text.encode(["x"] * len(noise.uniform))
        done = decoder.generate(text, noise)
        noise.script.steps = done.trace.target_calls.long()
        return torch.cat([done.codes, done.trace.tv_shift, done.trace.bound], 1)

    found = enumerate_program(run, 6, 60_000)
    assert found.rest < 1e-3
    codes, shift, bound = found.value.double().split(6, 1)
    p = target.logits(target.content(torch.zeros(5, dtype=torch.long), torch.arange(5)))
    ones, weight = p.softmax(-1)[:, 1], found.weight / found.weight.sum()
    away = (weight @ codes[:, 1:] - ones).abs()  # [5], TV of two codes
    assert torch.allclose(away, weight @ shift[:, 1:], atol=found.rest + 1e-6)
    assert bool((shift <= bound + 1e-7).all()) and float(bound.max()) <= 0.25
    assert float(away[:2].max()) < found.rest + 1e-12 and float(away[2:].max()) > 0.01
