"""Drafts that are accepted at stated rates: the mean accepted length is the stated one."""

import pytest
import torch

from bench.gate import check_decoder
from decoders.api import CodeKind, DecoderError, Sampling
from decoders.compose import build_decoder, is_synthetic
from decoders.models.random_weights import random_model
from decoders.verify.synthetic import Synthetic, rate_of
from tests.decoders.compositions import (
    CHAIN,
    DYNAMIC,
    EAGLE,
    LOOP,
    STATIC,
    DecoderSpec,
    images,
    part,
)
from tests.decoders.execution.test_backends import Replayed, require_eager

PROMPTS = [f"{a} {b}" for a in "abcdef" for b in "ghijkl"]


def spec(tree, **settings):
    return DecoderSpec("s", LOOP, EAGLE, tree, part("verify.synthetic.Synthetic", **settings))


@pytest.mark.parametrize(("mal", "levels"), [(2.1, 5), (3.34, 5), (1.0, 2), (2.999, 2)])
def test_the_rate_gives_the_mean_accepted_length(mal, levels):
    rate = rate_of(mal, levels)
    assert sum(rate**depth for depth in range(levels + 1)) == pytest.approx(mal, abs=1e-9)


@pytest.mark.parametrize(("mal", "levels", "enough"), [(3.0, 2, 3), (3.5, 2, 3), (6.0, 5, 6)])
def test_too_few_levels_are_refused_with_those_that_do(mal, levels, enough):
    with pytest.raises(DecoderError, match=rf"at most {levels + 1} codes.*{enough} levels or more"):
        rate_of(mal, levels)
    rate_of(mal, enough)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", [CHAIN, STATIC])
def test_images_accept_as_much_as_is_stated(tree, temperature):
    model = random_model(vocab=64, grid=8)
    decoder = build_decoder(model, spec(tree, mal=2.0), Sampling(temperature, cfg=2.0))
    trace = images(decoder, PROMPTS).trace
    committed = 63 * len(PROMPTS)
    mal = committed / int(trace.target_calls.sum())
    assert mal == pytest.approx(2.0, abs=0.1), "a step behind the end of an image commits less"
    kinds = torch.bincount(trace.kind.flatten().long(), minlength=5)
    assert kinds[CodeKind.RELAXED] > 0 == kinds[CodeKind.DRAFT]


@pytest.mark.parametrize("tree", [CHAIN, DYNAMIC])
def test_rates_are_those_of_the_levels(tree):
    decoder = build_decoder(random_model(vocab=64, grid=8), spec(tree, rates=[1.0]), Sampling())
    accepted = images(decoder, PROMPTS[:4]).trace.accepted
    assert set(accepted[accepted >= 0].tolist()) <= {0, 1}
    assert (accepted == 1).sum() > 0.9 * (accepted >= 0).sum()


def test_its_verdict_says_what_it_is():
    synthetic = spec(CHAIN, mal=2.0)
    assert is_synthetic(synthetic)
    report = check_decoder(synthetic, Sampling())
    assert report.text == "synthetic" and report.as_expected
    for given in ({}, {"mal": 2.0, "rates": [0.5]}):
        with pytest.raises(DecoderError, match=r"needs acceptance\.mal"):
            Synthetic(random_model(), **given)


def test_a_recorded_step_accepts_the_same():
    require_eager(Replayed(), spec(STATIC, mal=2.0))


@pytest.mark.parametrize(
    ("tree", "settings", "says"),
    [
        (CHAIN, {"mal": 9.0}, "9 levels or more"),
        (DYNAMIC, {"mal": 2.0}, "needs drafts of a known depth"),
        (CHAIN, {"rates": []}, "needs acceptance.mal"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_image(tree, settings, says):
    with pytest.raises(DecoderError, match=says):
        build_decoder(random_model(), spec(tree, **settings), Sampling())
