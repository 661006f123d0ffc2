"""DFlash and DSpark: one forward drafts a block, of any length up to the net's; a chain may end by
the drafter's confidence."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.api import CodeKind, DecoderError, ImageModel, Sampling
from decoders.cache import GrowingCache
from decoders.models.nets.block import BlockNet
from decoders.models.nets.transformer import transformer_of
from decoders.models.random_weights import random_model
from decoders.noise import Noise
from decoders.propose.drafters.dflash import DFlash, DFlashLearner
from decoders.propose.drafters.dspark import DSpark, DSparkLearner
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.confident import Confident
from decoders.propose.trees.static import Static
from decoders.training.drafter import LossConfig, drafter_loss
from decoders.verify.lantern import LanternPP
from tests.decoders.compositions import drafting, images, require_same, states_of

MODEL = random_model(vocab=24, grid=5, layers=3, seed=1)
TARGET = transformer_of(MODEL)
PROMPTS = [f"p{i}" for i in range(6)]
CHAIN, WIDE = Chain(depth=4), Static(choices=[[0], [1], [2], [0, 0], [0, 1], [1, 0]])
DRAFT, CORRECTED = int(CodeKind.DRAFT), int(CodeKind.CORRECTED)


@pytest.mark.parametrize("tree", [CHAIN, WIDE], ids=str)
@pytest.mark.parametrize("kind", [DFlash, DSpark])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_takes_one_forward_and_rows_of_a_batch_are_as_alone(
    kind: Any, tree: Any, temperature: float
) -> None:
    decoder = drafting(MODEL, kind(MODEL), tree, sampling=Sampling(temperature, cfg=2.0))
    every = images(decoder, PROMPTS[:3])
    trace = every.trace
    assert torch.equal(trace.drafter_calls, trace.target_calls)
    assert int(trace.accepted.max()) > 0  # rows stood at different positions
    for row, prompt in enumerate(PROMPTS[:3]):
        assert torch.equal(images(decoder, [prompt]).codes[0], every.codes[row])
    refilled = images(decoder, PROMPTS[:3], rows=2)
    require_same(every, refilled, "kind", "drafter_calls")


def test_dflash_drafts_by_depth_and_dspark_by_the_code_before() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, TARGET.width, generator=noise)
    for kind, follows in ((DFlash, False), (DSpark, True)):
        decoder = drafting(MODEL, kind(MODEL), CHAIN)
        text = MODEL.text.encode(["p0"])
        state = decoder.begin(text, Noise.for_prompts(0, ["p0"], TARGET.length))
        session = state.session.session  # type: ignore[attr-defined]
        one = torch.ones(1, dtype=torch.long)
        session.advance(hidden, torch.tensor([[3, 0, 0, 0, 0]]), one, one * 0)
        nodes = torch.tensor([1, 2])
        below = session.expand(torch.tensor([[4, 5]]), nodes, torch.zeros(1, 2).long(), 1)
        assert torch.equal(below[:, 0], below[:, 1]) != follows


def test_a_block_of_a_training_is_any_shorter_block_of_decoding() -> None:
    """Of six roots, every length from 1 to 6."""
    learner = DSparkLearner(MODEL, block=6)
    states, roots = states_of(MODEL, learner, 2), torch.tensor([0, 3, 5, 8, 11, 18])
    learner.net.train()
    with torch.no_grad():
        mixed = learner.draft(states, roots, 6)
        learner.net.eval()
        for index, length in enumerate(range(1, 7)):
            shorter = learner.draft(states, roots, length)
            assert len(shorter) == length
            for one, other in zip(mixed, shorter, strict=False):
                pair = one.hidden[:, index], other.hidden[:, index]
                torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


def test_the_loss_teaches_confidence_which_changes_no_draft() -> None:
    learner = DSparkLearner(MODEL)
    config = LossConfig(guided=True, cfg=2.0, regression=0.0, soft=0.1, overlap=1.8, rollout=4)
    loss, parts = drafter_loss(learner, TARGET, states_of(MODEL, learner, 2), config)
    assert 0 < float(parts["confidence"]) < 2
    loss.backward()
    assert float(learner.net.confidence.weight.grad.abs().max()) > 0
    other = DSparkLearner(MODEL)
    other.net.load_state_dict(learner.net.state_dict())
    torch.nn.init.constant_(other.net.confidence.weight, 1.0)
    drafter_loss(other, TARGET, states_of(MODEL, other, 2), config)[0].backward()
    for name, value in other.net.named_parameters():
        same = torch.allclose(value.grad, learner.net.get_parameter(name).grad, atol=1e-6)
        assert same != name.startswith("confidence"), name
    flat, parts = drafter_loss(DFlashLearner(MODEL), TARGET, states_of(MODEL, learner, 2), config)
    assert "confidence" not in parts and bool(flat.isfinite())


@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_context_has_the_keys_and_values_of_a_layer_that_reads_it(qk_norm: bool) -> None:
    torch.manual_seed(0)
    net = BlockNet(replace(TARGET.config, qk_norm=qk_norm), depth=3, layers=2)
    for value in net.parameters():
        value.data.add_(0.1 * torch.randn_like(value))
    context, cache = torch.randn(2, 5, TARGET.width), GrowingCache()
    net.remember(context, net.rope[7:12], cache, context)
    for number, layer in enumerate(net.layers):
        _, both = layer.attention.read(context, net.rope[7:12], 0, None, None)  # type: ignore
        torch.testing.assert_close(cache.read(number), both)


# ---- what is recorded ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [None, LanternPP(MODEL, k=4, lam=3.0)])
def test_every_tested_draft_has_a_confidence_in_the_trace(rule: Any) -> None:
    trace = images(drafting(MODEL, DSpark(MODEL), CHAIN, rule), PROMPTS).trace
    assert trace.confidence is not None
    tested = (trace.kind >= DRAFT) & (trace.kind <= CORRECTED)
    assert torch.equal(~trace.confidence.isnan(), tested)
    assert bool(((trace.confidence[tested] > 0) & (trace.confidence[tested] < 1)).all())
    assert len(trace.confidence[tested].unique()) > 20
    for drafter in (DFlash(MODEL), Eagle(MODEL)):
        none = images(drafting(MODEL, drafter, CHAIN), PROMPTS).trace.confidence
        assert none is not None and bool(none.isnan().all())


# ---- a chain that ends by confidence ------------------------------------------------------------


def test_a_chain_ends_at_the_first_draft_that_is_unsure_or_does_not_pay() -> None:
    sure = torch.tensor([[0.6, 0.2, 0.9, 0.9], [0.6, 0.6, 0.6, 0.1], [0.29, 0.9, 0.9, 0.9]])
    assert Confident(depth=4).tested(sure).sum(-1).tolist() == [1, 3, 0]
    cheap = Confident(depth=4, threshold=0.0, cost=[1.01, 1.02, 1.03, 1.04])
    assert cheap.tested(sure).sum(-1).tolist() == [4, 4, 4]
    dear = Confident(depth=4, threshold=0.0, cost=[1.5, 2.0, 2.5, 3.0])
    # 0.6 codes for a half; then 0.36 more for another: less than the 1.6 per 1.5 of before.
    assert dear.tested(sure).sum(-1).tolist() == [1, 1, 0]
    # The first draft is dear and more are free: it pays for who is as sure of all.
    steep = Confident(depth=4, threshold=0.0, cost=[2.0] * 4)
    assert steep.tested(sure).sum(-1).tolist() == [4, 4, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_tested_is_not_accepted(temperature: float) -> None:
    sampling, drafter = Sampling(temperature, cfg=2.0), DSpark(MODEL)
    whole = images(drafting(MODEL, drafter, CHAIN, sampling=sampling), PROMPTS).trace
    assert whole.confidence is not None
    middle = float(whole.confidence[whole.confidence > 0].median())
    tree = Confident(depth=4, threshold=middle)
    short = images(drafting(MODEL, drafter, tree, sampling=sampling), PROMPTS).trace
    assert short.confidence is not None and short.drafted_depth is not None
    tested = short.confidence[short.confidence > 0]
    assert len(tested) and float(tested.min()) >= middle
    assert float(short.drafted_depth.nan_to_num().mean()) < 4
    assert int(short.target_calls.sum()) >= int(whole.target_calls.sum())
    for never in (Confident(depth=4, threshold=1.0), Confident(depth=4, threshold=0.0)):
        trace = images(drafting(MODEL, drafter, never, sampling=sampling), PROMPTS).trace
        codes = trace.accepted[trace.accepted >= 0].sum()
        assert int(codes) == (0 if never.threshold else int(whole.accepted.clamp_min(0).sum()))


# ---- refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match=r"target's 3 layers, .* 0 to 2, found \[0, 3\]; null"):
        DFlash(MODEL, reads=[0, 3])
    with pytest.raises(DecoderError, match=r"different ones .* found \[1, 1\]"):
        DSpark(MODEL, reads=[1, 1])
    with pytest.raises(DecoderError, match=r"confidence, and this drafter says none .*=dspark"):
        images(drafting(MODEL, Eagle(MODEL), Confident(depth=2)), ["p0"])
    with pytest.raises(DecoderError, match=r"1 to 4 drafts .* found 2; lower tree.depth"):
        Confident(depth=4, cost=[1.1, 1.2])
    DSparkLearner(MODEL, rank=4).save(tmp_path)
    with pytest.raises(DecoderError, match="does not fit BlockNet"):
        DFlash(MODEL, str(tmp_path))
    model: ImageModel = replace(MODEL, drafters=copy.copy(MODEL.drafters))
    model.drafters["mine"] = DSpark(MODEL).net
    with pytest.raises(DecoderError, match=r"=mine has block 6, .* say 2; give drafter.block as"):
        DSpark(model, "mine", block=2)
