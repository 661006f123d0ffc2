"""A grown transformer computes what the small one did, and every new part of it can learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoders.api import DecoderError, TextFeatures
from decoders.kernels.reference import additive
from decoders.models.eagle_net import EagleNet
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Transformer
from decoders.tiny.grown import grow, grow_drafter, places

SMALL = TransformerConfig(
    vocab=24, width=32, layers=3, heads=2, ffn=48, grid=4, prefix=5, text_width=12,
    prefix_rope="identity",
)  # fmt: skip
LARGE = replace(SMALL, width=64, layers=7, heads=4, ffn=80)


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """No parameter is special: norms and biases are random, too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.3, 0.4)
    return module


@pytest.fixture
def pair() -> tuple[Transformer, Transformer]:
    torch.manual_seed(0)
    old, new = lively(Transformer(SMALL)), Transformer(LARGE)
    grow(old, new)
    return old, new


def given(batch: int = 3) -> tuple[TextFeatures, torch.Tensor, torch.Tensor]:
    mask = torch.arange(SMALL.prefix) >= torch.tensor([[0], [2], [4]])
    text = TextFeatures(torch.randn(batch, SMALL.prefix, SMALL.text_width), mask)
    codes = torch.randint(SMALL.vocab, (batch, SMALL.length))
    return text, codes, torch.tensor([False, True, False])


def test_the_grown_target_has_the_old_logits(pair: tuple[Transformer, Transformer]) -> None:
    old, new = pair
    with torch.no_grad():
        before, after = old(*(inputs := given())), new(*inputs)
        torch.testing.assert_close(after[..., :32], before, rtol=1e-4, atol=1e-4)
        assert float(after[..., 32:].abs().max()) < 1e-3
        torch.testing.assert_close(new.logits(after), old.logits(before), rtol=1e-4, atol=1e-4)


def test_a_step_changes_every_new_part_of_the_target(
    pair: tuple[Transformer, Transformer],
) -> None:
    """Zeros that write and zeros that read would block each other's gradients for ever."""
    _, new = pair
    optimiser = torch.optim.SGD(new.parameters(), lr=0.1)
    for _ in range(2):
        text, codes, drop = given()
        logits = new.logits(new(text, codes, drop))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), codes.flatten()).backward()
        moved = {n: p.grad.abs() > 0 for n, p in new.named_parameters() if p.grad is not None}
        optimiser.step()
        optimiser.zero_grad()
    still = [name for name, where in moved.items() if where.ndim == 2 and not where.any(1).any()]
    assert not still
    new_columns = moved["layers.3.feed_forward.w13.weight"][:, 32:]
    assert bool(new_columns.any())


def test_the_grown_drafter_predicts_the_old_states() -> None:
    torch.manual_seed(1)
    old, new = lively(EagleNet(SMALL)), EagleNet(LARGE)
    grow_drafter(old, new)
    ids, states = torch.randint(SMALL.vocab, (2, 9)), torch.randn(2, 9, SMALL.width)
    bias = additive(torch.ones(9, 9, dtype=torch.bool).tril().expand(2, 9, 9), states.dtype)
    with torch.no_grad():
        before = old.run(ids, states, old.rope[:9], bias)
        wide = torch.nn.functional.pad(states, (0, 32))
        after = new.run(ids, wide, new.rope[:9], bias)
    torch.testing.assert_close(after[..., :32], before, rtol=1e-4, atol=1e-4)
    assert float(after[..., 32:].abs().max()) == 0


def test_old_layers_are_spread_evenly() -> None:
    assert places(10, 16) == {0: 0, 2: 1, 3: 2, 5: 3, 7: 4, 8: 5, 10: 6, 12: 7, 13: 8, 15: 9}
    assert places(3, 3) == {0: 0, 1: 1, 2: 2}
    assert places(1, 4) == {0: 0}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"vocab": 25}, "vocab must be the same"),
        ({"heads": 8}, "head_dim must be the same"),
        ({"ffn": 40}, "ffn must be at least as large"),
    ],
)
def test_what_cannot_be_grown_is_refused(changed: dict[str, int], says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        grow(Transformer(SMALL), Transformer(replace(LARGE, **changed)))


def test_the_embedded_model_draws_the_same_codes_at_another_size() -> None:
    from decoders.executed import executed
    from decoders.loops.autoregressive import Autoregressive
    from decoders.noise import Noise
    from decoders.tiny import bundle, grown

    caption = "a large smooth red circle on a plain white background"
    codes = []
    for model in (bundle.load(dtype="float32"), grown.load(dtype="float32", width=320, layers=11)):
        ready = executed(model, "eager")
        sampling = replace(model.sampling, temperature=0.0)
        text, noise = ready.text.encode([caption]), Noise.for_prompts(0, [caption], 256)
        codes.append(Autoregressive(ready, sampling).generate(text, noise).codes)
    assert torch.equal(*codes)


def test_a_size_that_is_no_whole_number_of_heads_is_refused() -> None:
    from decoders.tiny import grown

    with pytest.raises(DecoderError, match="a multiple of 64"):
        grown.load(width=400)
