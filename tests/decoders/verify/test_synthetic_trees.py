"""The stated number of codes per forward on trees whose first child is not their deepest."""

import pytest

from decoders.api import DecoderError, Sampling
from decoders.compose import build_decoder
from decoders.models.random_weights import random_model
from tests.decoders.compositions import images, part
from tests.decoders.verify.test_synthetic import PROMPTS, spec

BROAD = [[0], [1], [1, 0]]
UNEVEN = [[0], [1], [0, 0], [1, 0], [1, 0, 0]]


def tree(choices):
    return part("propose.trees.static.Static", choices=choices)


@pytest.mark.parametrize(
    ("choices", "mal"), [(BROAD, 1.7), (UNEVEN, 2.5), ([[0], [0, 0], [0, 1]], 2.5)]
)
def test_images_accept_as_much_as_is_stated_whichever_child_is_the_deepest(choices, mal):
    decoder = build_decoder(
        random_model(vocab=64, grid=8), spec(tree(choices), mal=mal), Sampling(cfg=2.0)
    )
    trace = images(decoder, PROMPTS).trace
    committed = 63 * len(PROMPTS) / int(trace.target_calls.sum())
    assert committed == pytest.approx(mal, abs=0.1)


@pytest.mark.parametrize(("choices", "mal", "levels"), [(BROAD, 2.2, 2), (UNEVEN, 3.0, 3)])
def test_more_than_first_children_can_give_is_refused_with_what_would_do(choices, mal, levels):
    with pytest.raises(DecoderError, match=rf"first children go {levels} levels or more"):
        build_decoder(random_model(vocab=64, grid=8), spec(tree(choices), mal=mal), Sampling())
    deep = [[0] * d for d in range(1, levels + 1)]
    build_decoder(random_model(vocab=64, grid=8), spec(tree([*deep, [1]]), mal=mal), Sampling())


def test_as_many_nodes_as_levels_are_no_chain_where_a_node_may_have_two_children():
    few = part("propose.trees.dynamic.Dynamic", depth=3, top_k=2, nodes=3)
    with pytest.raises(DecoderError, match="needs drafts of a known depth"):
        build_decoder(random_model(vocab=64, grid=8), spec(few, mal=2.0), Sampling())
