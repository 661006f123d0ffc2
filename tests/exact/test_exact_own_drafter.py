"""A trained drafter of one's own gets a verdict: its class small with random weights, its real
weights by whole images of the real model."""

import pytest
import torch

from bench.judge.gate import check_decoder, sampled
from bench.judge.gate.sampled import real_check
from bench.judge.gate.small import GateCase, small_model
from decoders.api import DecoderError
from decoders.models.small import random_model
from decoders.propose.drafters.medusa import MedusaLearner
from tests.exact.specs import (
    EXACT,
    SPECULATIVE,
    TAU_0,
    TAU_1,
    composed,
    drafting,
    part,
    planted,
    verifying,
)

MODEL = random_model(vocab=40, grid=5, width=32)


def captions():
    return ["one", "caption", "and another"]


@pytest.fixture
def trained(tmp_path):
    """A folder as training leaves it: five heads, which a small tree has no use for."""
    learner = MedusaLearner(MODEL, heads=5)
    for value in learner.net.parameters():
        torch.nn.init.normal_(value, std=0.2)
    learner.save(tmp_path / "drafter")
    return str(tmp_path / "drafter")


def medusa(folder, tree="chain"):
    return composed(tree, drafter=drafting("medusa.Medusa", checkpoint=folder))


@pytest.mark.parametrize("sampling", [TAU_0, TAU_1], ids=["greedy", "sampled"])
def test_a_trained_medusa_is_exact(trained, sampling, monkeypatch):
    monkeypatch.setattr(sampled, "DRAWN", 2048)
    found = check_decoder(medusa(trained), sampling, MODEL, captions)
    assert found.verdict == "exact", found
    assert "random weights in the enumerated models" in found.detail
    assert "256 images of the real model follow its AR law" in found.detail
    assert found.evidence["real model"]["images"] == 256


@pytest.mark.parametrize(
    ("drafter", "rule", "sampling", "verdict"),
    [
        ("specdec.SpecDec", EXACT, TAU_1, "exact"),
        ("free.Free", EXACT, TAU_1, "exact"),
        ("specdec.SpecDec", verifying("specdec.SpecDec", beta=1), TAU_0, "exact"),
        ("specdec.SpecDec", verifying("specdec.SpecDec"), TAU_0, "relaxed"),
        ("specdec.SpecDec", verifying("specdec.SpecDec"), TAU_1, "relaxed"),
    ],
)
def test_the_verdict_on_a_block_an_exit_and_specdec(drafter, rule, sampling, verdict, monkeypatch):
    monkeypatch.setattr(sampled, "DRAWN", 2048)
    found = check_decoder(composed("chain", rule, drafter=drafting(drafter)), sampling)
    assert found.verdict == verdict, found


class Rigid:
    """A drafter that reads its logits from a file, for one codebook and no other."""

    def __init__(self, model, weights: str):
        self.logits = torch.load(weights, weights_only=True)
        if len(self.logits) != model.target.vocab_size:
            raise RuntimeError("made for another codebook")

    def begin(self, start, max_new, nodes):
        return RigidSession(self.logits, start.batch)


class RigidSession:
    def __init__(self, logits, batch):
        self.logits, self.calls = logits, 0
        self.root_code = torch.zeros(batch, dtype=torch.long)

    def advance(self, hidden, codes, count, start):
        self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        return self.logits.expand(len(codes), -1)

    def expand(self, codes, nodes, parents, depth):
        return self.logits.expand(*codes.shape, -1)


def test_a_drafter_that_cannot_be_small_is_judged_on_the_real_model(tmp_path, monkeypatch):
    monkeypatch.setattr(sampled, "DRAWN", 2048)
    weights = tmp_path / "weights.pt"
    torch.save(torch.randn(40), weights)
    spec = composed(drafter=part(__name__, "Rigid", weights=str(weights)))
    found = check_decoder(spec, TAU_1, MODEL, captions)
    assert found.verdict == "exact", found
    assert "another drafter" in found.detail and "images of the real model" in found.detail
    with pytest.raises(DecoderError, match="default of None"):
        check_decoder(spec, TAU_1, MODEL)


@pytest.mark.parametrize(
    ("sampling", "loop", "says"),
    [
        (TAU_1, "BonusAtParent", "do not follow its AR law"),
        (TAU_1, "StaleCache", "do not follow its AR law"),
        (TAU_0, "BonusAtParent", "below the argmax"),
    ],
)
def test_images_of_the_real_model_show_an_error(sampling, loop, says):
    model = small_model(24, 5, 3)  # its drafts are often accepted
    wrong, right = (
        real_check(GateCase(composed("small", loop=own), sampling), model, captions()).fault
        for own in (planted(loop), SPECULATIVE)
    )
    assert says in wrong and right == ""
