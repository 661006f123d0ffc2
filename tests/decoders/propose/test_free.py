"""FREE, untrained: what it drafts is what the target's first layers predict, whatever the tree, the
batch and the guidance, and the exact rule on it stays exact."""

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.loops.speculative import Speculative
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.free import Free
from decoders.propose.grown import Grown
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact

GRID = 4
LENGTH = GRID * GRID
MODEL = random_model(vocab=8, grid=GRID, layers=3)
PROMPTS = ["one", "two", "three"]
TREES = {
    "chain": Chain(depth=3),
    "static": Static(choices="binary_8"),
    "dynamic": Dynamic(depth=3, top_k=2, nodes=6),
}


def text(prompts):
    return MODEL.text.encode(["x"] * len(prompts))


def run(layers, tree, temperature, cfg=2.0, prompts=PROMPTS):
    sampling = Sampling(temperature=temperature, cfg=cfg)
    decoder = Speculative(
        MODEL, sampling, Grown(Free(MODEL, layers=layers), TREES[tree]), ByNode(Exact())
    )
    return decoder.generate(text(prompts), Noise.for_prompts(0, prompts, LENGTH))


@pytest.mark.parametrize("cfg", [1.0, 2.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_all_layers_it_is_the_target_and_every_draft_is_accepted(temperature, cfg):
    trace = run(3, "chain", temperature, cfg).trace
    steps = trace.target_calls.tolist()
    for row, count in zip(trace.accepted, steps, strict=True):
        assert row[: count - 1].eq(3).all()  # the last step may reach the image's end
    assert max(steps) == -(-(LENGTH - 1) // 4)


@pytest.mark.parametrize("tree", TREES)
def test_rows_do_not_depend_on_their_batch(tree):
    whole = run(2, tree, 1.0)
    for i, prompt in enumerate(PROMPTS):
        alone = run(2, tree, 1.0, prompts=[prompt])
        assert torch.equal(alone.codes[0], whole.codes[i])
        assert int(alone.trace.target_calls[0]) == int(whole.trace.target_calls[i])


def test_it_shares_the_target_s_parameters():
    net = Free(MODEL, layers=2).net.body
    own = {p.data_ptr() for p in MODEL.target.parameters()}
    assert {p.data_ptr() for p in net.parameters()} <= own
    assert len(net.layers) == 2


@pytest.mark.parametrize("layers", [0, 4])
def test_more_layers_than_the_target_has_are_refused(layers):
    with pytest.raises(DecoderError, match=f"from 1 to 3.*found {layers}"):
        Free(MODEL, layers=layers)
