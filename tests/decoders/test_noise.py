"""Noise, sampling and the making of distributions."""

from __future__ import annotations

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.cache import KVCache
from decoders.compose import DecoderSpec, PartSpec, build_decoder, build_part, resolve
from decoders.distribution import guided, probabilities
from decoders.models.small import random_model
from decoders.noise import BELOW_ONE, Noise, first_above, sample


def test_noise_is_a_function_of_seed_and_prompt() -> None:
    a = Noise.for_prompts(0, ["x", "y"], 16).uniform
    b = Noise.for_prompts(0, ["y"], 16).uniform
    assert torch.equal(a[1], b[0])
    assert not torch.equal(a[0], a[1])
    assert not torch.equal(Noise.for_prompts(1, ["y"], 16).uniform, b)
    assert float(a.min()) >= 0 and float(a.max()) < 1


def test_sampling_inverts_the_cdf() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1.0 - 2**-24])
    assert sample(p.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]
    assert sample(3 * p.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]  # unnormalised


def test_sums_made_in_parallel_draw_no_code_of_probability_zero() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.linspace(0, BELOW_ONE, 401)
    cdf = p.cumsum(-1)
    threshold = u[:, None] * cdf[-1]
    assert torch.equal(first_above(p, cdf, threshold), sample(p.expand(401, -1), u))
    rough = cdf + torch.tensor([1e-3, 0, 1e-3, -1e-3, 1e-3, 2e-3])  # roundings, exaggerated
    drawn = first_above(p, rough, u[:, None] * rough[-1])
    assert set(drawn.tolist()) == {1, 3, 4}
    assert first_above(torch.zeros(6), torch.zeros(6), torch.zeros(1)).tolist() == 5


def test_guidance_and_filters() -> None:
    logits = torch.tensor([[[2.0, 1.0, 0.0, -1.0]], [[1.0, 1.0, 1.0, 1.0]]])
    mixed = guided(logits.bfloat16(), 3.0)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, (1 + 3 * (logits[:1] - 1)))
    p = probabilities(mixed, Sampling(temperature=2.0))
    torch.testing.assert_close(p, (mixed / 2).softmax(-1))
    top = probabilities(mixed, Sampling(top_k=2))
    assert top[0, 0].gt(0).tolist() == [True, True, False, False]
    flat = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    nucleus = probabilities(flat, Sampling(top_p=0.7))
    torch.testing.assert_close(nucleus, torch.tensor([0.625, 0.375, 0.0, 0.0]))


@pytest.mark.parametrize("bad", [
    {"temperature": -1.0}, {"temperature": float("nan")}, {"cfg": -1.0}, {"top_k": -1},
    {"top_p": 0.0}, {"top_p": 1.5},
])  # fmt: skip
def test_bad_sampling_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(DecoderError, match=rf"sampling.{next(iter(bad))}"):
        Sampling(**bad)  # type: ignore[arg-type]


def test_the_cache_moves_an_accepted_path() -> None:
    cache = KVCache(2, 3, 10, 2, 4, torch.float32, torch.device("cpu"))
    slots = torch.arange(10).expand(3, -1)
    written = torch.randn(2, 3, 2, 10, 4)
    for layer in range(2):
        cache.write(layer, cache.flat_index(slots), written)
    keys, values = cache.read(1)
    assert torch.equal(keys, written[0]) and torch.equal(values, written[1])
    source = torch.tensor([[2, 5, 7], [3, 3, 9], [2, 3, 4]])  # overlaps its destination
    cache.commit(source, torch.tensor([[2, 3, 4]] * 3))
    for row in range(3):
        assert torch.equal(cache.read(0)[0][row, :, 2:5], written[0, row][:, source[row]])
        assert torch.equal(cache.read(0)[0][row, :, 5:], written[0, row][:, 5:])
    with pytest.raises(DecoderError, match="must have one shape"):
        cache.commit(source, source[:, :2])


def test_parts_are_found_by_their_path() -> None:
    assert resolve("decoders.trees.chain:Chain") is resolve("decoders.trees.chain.Chain")
    model = random_model()
    spec = DecoderSpec(
        "x",
        PartSpec("decoders.speculative.Speculative"),
        PartSpec("decoders.drafters.eagle.Eagle"),
        PartSpec("decoders.trees.chain.Chain", {"depth": 2}),
        PartSpec("decoders.acceptance.exact.Exact"),
    )
    assert build_decoder(model, spec, Sampling()).sampling == Sampling()


@pytest.mark.parametrize(("path", "says"), [
    ("decoders.trees.chain.Chian", "no 'Chian'; nearest: Chain"),
    ("decoders.trees.chan.Chain", "nearest: chain"),
    ("Chain", "names no class"),
])  # fmt: skip
def test_an_unknown_path_names_the_nearest(path: str, says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        resolve(path)


@pytest.mark.parametrize(("target", "option", "says"), [
    ("trees.chain.Chain", {"depth": "abc"}, "depth must be an integer, found 'abc'"),
    ("trees.chain.Chain", {"depth": 1.5}, "depth must be an integer, found 1.5"),
    ("trees.dynamic.Dynamic", {"nodes": True}, "nodes must be an integer, found True"),
    ("acceptance.lantern.Lantern", {"delta": "x"}, "delta must be a number, found 'x'"),
    ("acceptance.lantern.Lantern", {"residual": 3}, "residual must be a string, found 3"),
])  # fmt: skip
def test_an_option_of_the_wrong_kind_is_refused(
    target: str, option: dict[str, object], says: str
) -> None:
    with pytest.raises(DecoderError, match=says):
        build_part(PartSpec(f"decoders.{target}", option), random_model())


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(DecoderError, match=r"no option 'dept'; nearest: depth; it takes: depth"):
        build_part(PartSpec("decoders.trees.chain.Chain", {"dept": 2}), random_model())
