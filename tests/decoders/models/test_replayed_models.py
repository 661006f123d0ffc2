"""Models with random weights: official shapes, usable like any other model, and no pictures."""

from dataclasses import replace

import pytest
import torch

from decoders.api import DecoderError, ImageModel
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models import unweighted
from decoders.models.families import LUMINA
from decoders.models.sizes import RELEASED, Shape, VQShape
from decoders.models.unweighted import config_of, load
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.grown import Grown
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.lantern import LanternPP

CAPTION = Shape(vocab=48, width=64, layers=3, ffn=96, length=16, prefix=6, side=0, text_width=16,
                heads=4)  # fmt: skip
TOKENS = replace(CAPTION, vocab=49, length=20, prefix=8, text_width=0, tokens=200)
SMALL = {
    "caption": (CAPTION, VQShape(0, latent=8)),
    "class": (replace(CAPTION, prefix=1, text_width=0, classes=10), VQShape(0, latent=8)),
    "tokens": (TOKENS, VQShape(0, latent=16)),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, preset in SMALL.items():
        monkeypatch.setitem(RELEASED, name, preset)
    monkeypatch.setitem(unweighted.FAMILIES, "tokens", LUMINA)


def prompts(kind: str) -> list[str]:
    return ["3", "7"] if kind == "class" else ["a red circle", "a small blue square"]


@pytest.mark.parametrize("preset", RELEASED)
def test_presets_have_the_published_shapes(preset: str) -> None:
    known, _ = RELEASED[preset]
    found = Shape.of(config_of(preset))
    apart = {name: getattr(known, name) for name in ("side", "text_width", "classes", "heads")}
    assert replace(found, **apart) == known
    heads = config_of(preset).heads
    assert heads == {1280: 20, 3200: 32, 4096: 32}[known.width]


def test_a_smaller_grid_shortens_images_and_nothing_else() -> None:
    whole, short = config_of("lumina_mgpt_7b_768"), config_of("lumina_mgpt_7b_768", grid=4)
    assert (whole.grid, short.grid) == (48, 4)
    assert replace(short, grid=48) == whole
    assert Shape.of(short).length == 4 * 5  # every row of four has an end
    for wrong in (1, 49):
        with pytest.raises(DecoderError, match=f"codes a side, 2 to 48 .* found {wrong}"):
            config_of("lumina_mgpt_7b_768", grid=wrong)


def test_conventions_are_those_of_the_loaders() -> None:
    llamagen, lumina = config_of("llamagen_xl_256"), config_of("lumina_mgpt_7b_768")
    assert (llamagen.prefix_rope, llamagen.pads, llamagen.positions) == ("zero", "released", "grid")
    assert (lumina.positions, lumina.row_end, lumina.conditioning) == ("line", True, "tokens")


@pytest.mark.parametrize("kind", SMALL)
def test_a_random_model_decodes_like_any_other(small: None, kind: str) -> None:
    model = load(kind, dtype="float32")
    text = model.text.encode(prompts(kind))
    noise = Noise.for_prompts(0, prompts(kind), model.target.length)
    rule = LanternPP(model, k=4, lam=3.0)
    for decoder in (
        Autoregressive(model, model.sampling),
        Speculative(
            model, model.sampling, Grown(Eagle(model), Static(choices="binary_8")), ByNode(rule)
        ),
    ):
        codes = decoder.generate(text, noise).codes
        assert codes.shape == (2, model.target.length)
        assert int(codes.min()) >= 0 and int(codes.max()) < model.target.vocab_size
        assert not torch.equal(codes[0], codes[1])


def test_logits_are_flat_and_no_code_is_certain(small: None) -> None:
    model = load("caption", dtype="float32")
    text = model.text.encode(prompts("caption"))
    cache = model.target.new_cache(2, model.target.prefix)
    logits = model.target.logits(model.target.prefill(text, 1, cache)[:, -1])
    assert 0.5 < float(logits.std()) < 2
    assert float(logits.softmax(-1).max()) < 0.5


def test_weights_follow_the_seed_and_say_that_they_are_random(small: None) -> None:
    def weight(model: ImageModel) -> torch.Tensor:
        return model.target.output.weight  # type: ignore[attr-defined, no-any-return]

    one, same, other = load("caption"), load("caption"), load("caption", seed=1)
    assert torch.equal(weight(one), weight(same))
    assert not torch.equal(weight(one), weight(other))
    assert "random" in str(one.weights_sha256) and one.weights_sha256 != other.weights_sha256
    assert weight(one).dtype == torch.bfloat16


def test_a_prompt_has_the_same_features_in_any_batch(small: None) -> None:
    text = load("caption").text
    pair, alone = text.encode(prompts("caption")), text.encode(prompts("caption")[1:])
    assert torch.equal(pair.features[1], alone.features[0])
    assert bool(pair.mask[:, -1].all()) and not bool(pair.features[~pair.mask].any())


def test_no_pictures_and_no_unknown_preset(small: None) -> None:
    model = load("caption")
    assert not model.draws
    with pytest.raises(DecoderError, match="random weights has none"):
        model.tokenizer.decode(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(DecoderError, match=r"unknown preset 'llamagen_9b'; known: .*anole_7b"):
        load("llamagen_9b")
    with pytest.raises(DecoderError, match="not empty"):
        model.text.encode([" "])
