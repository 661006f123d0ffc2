"""The Medusa drafter: decodes exactly, trained or not, and is trained by the trainer of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.medusa import Medusa, MedusaLearner
from decoders.propose.grown import Grown
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.training.losses import LossConfig, acceptance, drafter_loss, logits_at
from decoders.training.states import Images, States, target_states, transformer_of
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact

MODEL = random_model(vocab=24, grid=3)
TARGET = transformer_of(MODEL)
SAMPLING = Sampling(cfg=2.0)


def some_states(batch: int = 4) -> States:
    text = MODEL.text.encode([f"p{i}" for i in range(batch)])
    codes = torch.randint(24, (batch, 9), generator=torch.Generator().manual_seed(1))
    return target_states(TARGET, Images(text, codes))


@pytest.mark.parametrize("tree", [Chain(depth=3), Dynamic(depth=3, top_k=3, nodes=8)])
def test_greedy_equals_ar(tree: object) -> None:
    greedy = Sampling(temperature=0, cfg=2.0)
    prompts = ["a", "bb", "ccc"]
    text, noise = MODEL.text.encode(prompts), Noise.for_prompts(0, prompts, 9)
    ar = Autoregressive(MODEL, greedy).generate(text, noise)
    made = Speculative(MODEL, greedy, Grown(Medusa(MODEL, heads=3), tree), ByNode(Exact()))  # type: ignore
    assert torch.equal(made.generate(text, noise).codes, ar.codes)


def test_an_untrained_head_drafts_the_targets_own_next_code() -> None:
    states = some_states()
    first = MedusaLearner(MODEL, heads=2).draft(states, torch.tensor([0]), 1)[0]
    assert torch.equal(first.places, torch.arange(1, 9))
    own = TARGET.logits(states.hidden[:, TARGET.prefix - 1 : -1])
    torch.testing.assert_close(first.head.logits(first.hidden), own)


def test_training_drafts_what_decoding_drafts() -> None:
    torch.manual_seed(0)
    learner, states = MedusaLearner(MODEL, heads=3), some_states()
    for value in learner.net.parameters():
        torch.nn.init.normal_(value, std=0.3)
    drafts = learner.draft(states, torch.tensor([0]), 3)
    part = Medusa(MODEL, heads=3)
    part.net.load_state_dict(learner.net.state_dict())
    root = 4
    session = part.begin(states.images.text, states.hidden, SAMPLING, 1, 3)
    read = states.hidden[:, TARGET.prefix - 1 : TARGET.prefix + root]
    count = torch.full((4,), root + 1)
    zero = torch.zeros(4, dtype=torch.long)
    found = [session.advance(read, states.images.codes[:, : root + 1], count, zero)]
    for d in (1, 2):
        nodes = torch.zeros(4, 2, dtype=torch.long)
        wide = session.expand(nodes, torch.tensor([1, 2]), nodes, d)
        assert wide.shape == (4, 2, 24)
        found.append(wide[:, 1])
    for d, logits in enumerate(found):
        torch.testing.assert_close(logits_at(drafts[d], 4, 2.0)[:, root], logits)


def test_training_raises_acceptance_and_what_is_saved_loads(tmp_path: Path) -> None:
    learner, states = MedusaLearner(MODEL, heads=2), some_states(8)
    before = acceptance(learner, TARGET, [states], SAMPLING, 4)
    optimiser = torch.optim.AdamW(learner.net.parameters(), lr=1e-2)
    loss = LossConfig(guided=True, cfg=2.0, soft=1.0, regression=0.0, rollout=2)
    for step in range(40):
        drafter_loss(learner, TARGET, states, loss, step=step)[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    after = acceptance(learner, TARGET, [states], SAMPLING, 4)
    assert len(after.overlap) == 2  # as deep as it has heads
    assert all(b > a + 0.1 for a, b in zip(before.overlap, after.overlap, strict=True))
    learner.save(tmp_path)
    again = MedusaLearner(MODEL, str(tmp_path), heads=4)
    assert len(again.net.heads) == 2  # the file says how many
    saved = acceptance(again, TARGET, [states], SAMPLING, 4)
    assert saved.overlap == pytest.approx(after.overlap, abs=0.02)


def test_a_tree_deeper_than_the_heads_is_refused() -> None:
    decoder = Speculative(
        MODEL, SAMPLING, Grown(Medusa(MODEL, heads=2), Chain(depth=3)), ByNode(Exact())
    )
    with pytest.raises(DecoderError, match="deeper than the drafter's 2 heads"):
        decoder.generate(MODEL.text.encode(["x"]), Noise.for_prompts(0, ["x"], 9))


def test_a_drafter_without_heads_is_refused() -> None:
    with pytest.raises(DecoderError, match=r"drafter.heads must be at least 1, found 0"):
        Medusa(MODEL, heads=0)


def test_a_folder_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match=r"no config\.json"):
        Medusa(MODEL, str(tmp_path))
