"""VVS (verification skipping) on small random models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.gate.reference import teacher_logits
from decoders.api import CodeKind, Sampling
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import probabilities
from decoders.loops import vvs
from decoders.models.random_weights import random_model
from tests.decoders.compositions import DYNAMIC, EAGLE, LOOP, images, part, require_same

MODEL = random_model(vocab=12, grid=6, seed=1)
PROMPTS = ["a", "b", "c"]
SAMPLING = Sampling(cfg=2.0)
OPT = part("propose.trees.opt.Opt", depth=3, top_k=3, nodes=7)
LANTERN = part("verify.lantern.Lantern", k=11, delta=0.9)


def decoded(interval=None, sampling=SAMPLING, tree=DYNAMIC):
    """interval None: without skipping."""
    loop = LOOP if interval is None else part("loops.vvs.Vvs", interval=interval)
    spec = DecoderSpec("vvs", loop, EAGLE, tree, LANTERN)
    return images(build_decoder(MODEL, spec, sampling), PROMPTS, seed=1)


@pytest.fixture
def drafts(monkeypatch):
    """Of every draft: its position, how many codes of a chain stand and their laws, its codes, and
    how many drafts were accepted."""
    every = []
    verify = vvs.SkipVerifier.verify

    def noting(self, probs, draft, noise, position, state):
        verified = verify(self, probs, draft, noise, position, state)
        skipped = isinstance(draft, vvs.SkippedDraft)
        stand = draft.untested.sum(1) if skipped else torch.zeros_like(position)
        laws = draft.probs.clone() if skipped else None
        every.append((position.clone(), stand, laws, draft.codes.clone(), verified.count))
        return verified

    monkeypatch.setattr(vvs.SkipVerifier, "verify", noting)
    return every


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_without_a_skipped_step_it_is_lantern_code_by_code(tau):
    sampling = replace(SAMPLING, temperature=tau)
    plain, same = decoded(None, sampling), decoded(10**6, sampling)
    require_same(plain, same, "kind", "step", "depth", "target_calls", "drafter_calls")
    torch.testing.assert_close(plain.trace.tv_shift, same.trace.tv_shift)


@pytest.mark.parametrize("tree", [DYNAMIC, OPT], ids=["dynamic", "opt"])
def test_a_skipped_code_records_its_distance_from_the_target(tree, drafts):
    """TV(p, q), p by teacher forcing of the finished images."""
    generation = decoded(2, tree=tree)
    codes, trace = generation.codes, generation.trace
    logits = teacher_logits(MODEL, MODEL.text.encode(PROMPTS), codes, SAMPLING.cfg)
    p = probabilities(logits, SAMPLING)
    count = 0
    for position, stand, laws, drafted, _ in drafts:
        for b in range(3):
            for i in range(int(stand[b])):
                here = int(position[b]) + i
                if here >= 36:
                    continue
                assert int(codes[b, here]) == int(drafted[b, i + 1])
                away = float(0.5 * (p[b, here] - laws[b, i]).abs().sum())
                assert float(laws[b, i].sum()) == pytest.approx(1.0, abs=1e-5)
                assert float(laws[b, i, codes[b, here]]) > 0
                for recorded in (trace.tv_shift, trace.bound):
                    assert float(recorded[b, here]) == pytest.approx(away, abs=1e-5)
                assert int(trace.kind[b, here]) == CodeKind.RELAXED
                assert here > 6  # never in the first row
                count += 1
    assert count > 5


def test_forwards_and_skipped_steps_add_up(drafts):
    plain, trace = decoded().trace, decoded(2).trace
    for b in range(3):
        steps = [int(count[b]) for position, _, _, _, count in drafts if int(position[b]) < 36]
        assert len(steps) == int(trace.target_calls[b])
        assert 1 + sum(n + 1 for n in steps) >= 36  # what was committed, chains with it
        accepted = trace.accepted[b]
        assert accepted[accepted >= 0].tolist()[:-1] == steps[:-1]
    assert not drafts[0][1].any()  # the first step has no mean
    assert any(stand.any() for _, stand, *_ in drafts)
    assert int(trace.target_calls.sum()) < int(plain.target_calls.sum())
    assert int(trace.drafter_calls.sum()) > 0
