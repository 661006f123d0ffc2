"""Verifiers of whole drafts: the law of what they commit, by enumeration; how much they accept;
what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.judge.gate.enumerate import Enumerated, Scripted, enumerate_program
from decoders.api import DecoderError, Draft, Sampling, TargetProbs
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.loops.autoregressive import Autoregressive
from decoders.models.small import random_model
from decoders.noise import DRAFT_SLOT, Noise, sample
from decoders.verify.block import Block
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier
from decoders.verify.traversal import Traversal
from tests.decoders.compositions import DYNAMIC, EAGLE, LOOP
from tests.exact.table import DRAFTER

PLAIN = Sampling()
BLOCK = PartSpec("decoders.verify.block.Block")
TRAVERSAL = PartSpec("decoders.verify.traversal.Traversal")
STATIC = "decoders.propose.trees.static.Static"
CHAIN = [[0], [0, 0]]
PAIR = [[0], [1]]
DEEP = [[0], [1], [0, 0], [0, 1]]
WIDE = [[0], [1], [0, 0], [1, 0]]  # two nodes of one level have children


def spec(choices: Any, rule: PartSpec, drafter: PartSpec = DRAFTER, tree: str = STATIC) -> Any:
    return DecoderSpec("whole", LOOP, drafter, PartSpec(tree, {"choices": choices}), rule)


def accepted(verifier: Any, p: torch.Tensor, q: torch.Tensor) -> float:
    """Drafts accepted on average of a chain of three; p, q [40, 3]: the laws after every prefix."""
    before = torch.tensor([0, 1, 4, 13])  # where the prefixes of so many codes begin

    def run(noise: Scripted) -> torch.Tensor:
        rows = len(noise.uniform)
        place, cell = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
        noise = noise.stepping(torch.zeros(1, dtype=torch.long), True)
        at, codes = [cell], [cell]
        for i in range(3):
            x = sample(q[at[-1]], noise.at(place + i, DRAFT_SLOT)[:, 0])
            cell = 3 * cell + x
            at, codes = [*at, before[i + 1] + cell], [*codes, x]
        node = torch.arange(4).expand(rows, -1)
        below = torch.tensor([1, 2, 3, 0]).expand(rows, -1)[..., None]
        which = torch.stack(at, 1)
        draft = Draft(torch.stack(codes, 1), (node - 1).clamp_min(0), node, below, q[which])
        made = verifier.verify(
            TargetProbs(p[which].log(), p[which], False), draft, noise, place, None
        )
        return made.count[:, None]

    found: Enumerated = enumerate_program(run, 10, 100_000)
    assert found.rest == 0
    return float(found.weight @ found.value[:, 0].double())


def test_the_whole_draft_is_accepted_further_than_code_by_code() -> None:
    g = torch.Generator().manual_seed(0)
    gains = []
    for _ in range(4):
        p, q = (torch.randn(40, 3, generator=g, dtype=torch.float64).softmax(-1) for _ in "pq")
        chain, block, tree = (
            accepted(v, p, q) for v in (TokenVerifier(Exact()), Block(), Traversal())
        )
        assert tree == pytest.approx(block, abs=1e-12)
        gains.append(block - chain)
    assert min(gains) > -1e-12
    assert max(gains) > 0.05


@pytest.mark.parametrize(
    ("rule", "tree", "says"),
    [
        (BLOCK, DYNAMIC, "these are deterministic"),
        (TRAVERSAL, DYNAMIC, "these are deterministic"),
        (BLOCK, PartSpec(STATIC, {"choices": WIDE}), "judges a chain, found a tree of 4 nodes"),
    ],
)
def test_drafts_that_cannot_be_judged_are_refused(rule: PartSpec, tree: Any, says: str) -> None:
    model = random_model(vocab=12, grid=3)
    decoder = build_decoder(model, DecoderSpec("x", LOOP, EAGLE, tree, rule), PLAIN)
    with pytest.raises(DecoderError, match=says):
        decoder.generate(model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 9))


@pytest.mark.parametrize(("rule", "choices"), [(BLOCK, CHAIN), (TRAVERSAL, DEEP)])
def test_at_temperature_zero_the_codes_are_those_of_ar(rule: PartSpec, choices: Any) -> None:
    model, sampling = random_model(vocab=12, grid=4), Sampling(temperature=0.0, cfg=2.0)
    text, noise = model.text.encode(["a", "b"]), Noise.for_prompts(0, ["a", "b"], 16)
    made = build_decoder(model, spec(choices, rule, EAGLE), sampling).generate(text, noise)
    assert torch.equal(made.codes, Autoregressive(model, sampling).generate(text, noise).codes)
