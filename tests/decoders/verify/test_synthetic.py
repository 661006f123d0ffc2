"""Drafts that are accepted at stated rates: images commit the stated number of codes per forward,
also on trees whose first child is not their deepest."""

import pytest
import torch

from bench.gate import check_decoder
from decoders.api import CodeKind, DecoderError, Sampling
from decoders.compose import DecoderSpec, build_decoder, is_synthetic
from decoders.models.random_weights import random_model
from decoders.verify.synthetic import Synthetic, rate_of
from tests.decoders.compositions import CHAIN, DYNAMIC, EAGLE, LOOP, STATIC, images, part

PROMPTS = [f"{a} {b}" for a in "abcdef" for b in "ghijkl"]


def tree(*choices):
    return part("propose.trees.static.Static", choices=[list(map(int, path)) for path in choices])


BROAD, UNEVEN = tree("0", "1", "10"), tree("0", "1", "00", "10", "100")


def spec(tree, **settings):
    return DecoderSpec("s", LOOP, EAGLE, tree, part("verify.synthetic.Synthetic", **settings))


def traced(tree, temperature=1.0, prompts=PROMPTS, cfg=2.0, **settings):
    model = random_model(vocab=64, grid=8)
    decoder = build_decoder(model, spec(tree, **settings), Sampling(temperature, cfg=cfg))
    return images(decoder, prompts).trace


@pytest.mark.parametrize(("mal", "levels"), [(2.1, 5), (3.34, 5), (1.0, 2), (2.999, 2)])
def test_the_rate_gives_the_mean_accepted_length(mal, levels):
    rate = rate_of(mal, levels)
    assert sum(rate**depth for depth in range(levels + 1)) == pytest.approx(mal, abs=1e-9)


@pytest.mark.parametrize(
    ("tree", "mal", "temperature"),
    [
        *((tree, 2.0, temperature) for tree in (CHAIN, STATIC) for temperature in (0.0, 1.0)),
        (BROAD, 1.7, 1.0), (UNEVEN, 2.5, 1.0), (tree("0", "00", "01"), 2.5, 1.0),
    ],
)  # fmt: skip
def test_images_accept_as_much_as_is_stated(tree, mal, temperature):
    trace = traced(tree, temperature, mal=mal)
    committed = 63 * len(PROMPTS) / int(trace.target_calls.sum())
    assert committed == pytest.approx(mal, abs=0.1), "a step behind an image's end commits less"
    kinds = torch.bincount(trace.kind.flatten().long(), minlength=5)
    assert kinds[CodeKind.RELAXED] > 0 == kinds[CodeKind.DRAFT]


@pytest.mark.parametrize("tree", [CHAIN, DYNAMIC])
def test_rates_are_those_of_the_levels(tree):
    accepted = traced(tree, prompts=PROMPTS[:4], cfg=1.0, rates=[1.0]).accepted
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


def chain(levels):
    return part("propose.trees.chain.Chain", depth=levels)


FEW = part("propose.trees.dynamic.Dynamic", depth=3, top_k=2, nodes=3)  # as many nodes as levels


@pytest.mark.parametrize(
    ("tree", "settings", "says", "enough"),
    [
        (chain(2), {"mal": 3.0}, "at most 3 codes.*go 3 levels or more", chain(3)),
        (chain(2), {"mal": 3.5}, "at most 3 codes.*go 3 levels or more", chain(3)),
        (chain(3), {"mal": 9.0}, "go 9 levels or more", None),
        (BROAD, {"mal": 2.2}, "go 2 levels or more", tree("0", "00", "1")),
        (UNEVEN, {"mal": 3.0}, "go 3 levels or more", tree("0", "00", "000", "1")),
        (DYNAMIC, {"mal": 2.0}, "needs drafts of a known depth", None),
        (FEW, {"mal": 2.0}, "needs drafts of a known depth", None),
        (CHAIN, {"rates": []}, "needs acceptance.mal", None),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_image(tree, settings, says, enough):
    with pytest.raises(DecoderError, match=says):
        build_decoder(random_model(), spec(tree, **settings), Sampling())
    if enough is not None:
        build_decoder(random_model(), spec(enough, **settings), Sampling())
