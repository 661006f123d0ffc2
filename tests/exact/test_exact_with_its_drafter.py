"""A trained drafter of one's own gets a verdict: its class is built small, without its weights."""

import pytest
import torch

from bench.gate import RealModel, check_decoder
from decoders.api import DecoderError
from decoders.models.random_weights import random_model
from decoders.propose.drafters.medusa import MedusaLearner
from tests.exact.specs import TAU_0, TAU_1, composed, drafting, part, verifying

MODEL = random_model(vocab=40, grid=5, width=32)


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
def test_a_trained_medusa_is_exact(trained, sampling, small_images):
    found = check_decoder(medusa(trained), sampling, RealModel.of(MODEL))
    assert found.verdict == "exact", found
    assert "its drafter untrained" in found.detail


@pytest.mark.parametrize(
    ("rule", "sampling", "verdict"),
    [
        (verifying("specdec.SpecVerification", beta=1), TAU_0, "exact"),
        (verifying("specdec.SpecVerification"), TAU_0, "relaxed"),
        (verifying("specdec.SpecVerification"), TAU_1, "relaxed"),
    ],
)
@pytest.mark.usefixtures("small_images")
def test_the_verdict_on_specdec(rule, sampling, verdict):
    found = check_decoder(composed(rule=rule, drafter=drafting("specdec.SpecDec")), sampling)
    assert found.verdict == verdict, found


class Rigid:
    """A drafter that reads its logits from a file."""

    def __init__(self, model, weights: str):
        self.logits = torch.load(weights, weights_only=True)


def test_a_drafter_that_cannot_be_built_without_its_weights_is_told_what_to_do(tmp_path):
    torch.save(torch.randn(40), tmp_path / "weights.pt")
    spec = composed(drafter=part(__name__, "Rigid", weights=str(tmp_path / "weights.pt")))
    with pytest.raises(DecoderError, match="default of None"):
        check_decoder(spec, TAU_1, RealModel.of(MODEL))
