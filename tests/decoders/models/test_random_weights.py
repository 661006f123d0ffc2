"""Models with random weights: usable like any other model, and no pictures."""

from dataclasses import replace

import pytest
import torch

from decoders.api import DecoderError
from decoders.loops.autoregressive import Autoregressive
from decoders.models import random_weights
from decoders.models.random_weights import OFFICIAL_SHAPES, load
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.static import Static
from decoders.verify.lantern import LanternPP
from tests.decoders.compositions import drafting, images

PROMPTS = ["a red circle", "a small blue square"]
SMALL = {"width": 64, "layers": 3, "heads": 4, "ffn": 96, "grid": 4, "prefix": 8, "vocab": 48}


@pytest.fixture(params=OFFICIAL_SHAPES)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A size with all but its width, depth and vocabulary."""
    (shape, latent), name = OFFICIAL_SHAPES[request.param], str(request.param)
    tokens = 200 if shape.tokens else 0
    monkeypatch.setitem(
        random_weights.OFFICIAL_SHAPES, name, (replace(shape, **SMALL, tokens=tokens), latent)
    )
    return name


def test_a_random_model_decodes_like_any_other_and_draws_no_pictures(small: str) -> None:
    model = load(small, dtype="float32", top_k=48)
    rule, tree = LanternPP(model, k=4, lam=3.0), Static(choices="binary_8")
    for decoder in (
        Autoregressive(model, model.sampling),
        drafting(model, Eagle(model), tree, rule, model.sampling),
    ):
        codes = images(decoder, PROMPTS).codes
        assert codes.shape == (2, model.target.length)
        assert int(codes.min()) >= 0 and int(codes.max()) < model.target.vocab_size
        assert not torch.equal(codes[0], codes[1])
    again = load(small, dtype="float32")
    for name, value in model.target.state_dict().items():  # type: ignore[attr-defined]
        assert torch.equal(value, again.target.state_dict()[name])  # type: ignore[attr-defined]
    assert not model.draws
    with pytest.raises(DecoderError, match="random weights has none"):
        model.tokenizer.decode(torch.zeros(1, 16, dtype=torch.long))
