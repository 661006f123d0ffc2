"""VVS (verification skipping) on small random models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.judge.gate.reference import teacher_logits
from decoders.api import CodeKind, DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.distribution import probabilities
from decoders.loops import vvs
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import DYNAMIC, EAGLE, LOOP, STATIC

MODEL = random_model(vocab=12, grid=6, seed=1)
TEXT = MODEL.text.encode(["a", "b", "c"])
NOISE = Noise.for_prompts(1, ["a", "b", "c"], 36)
SAMPLING = Sampling(cfg=2.0)
OPT = PartSpec("decoders.propose.trees.opt.Opt", {"depth": 3, "top_k": 3, "nodes": 7})
LANTERN = PartSpec("decoders.verify.lantern.Lantern", {"k": 11, "delta": 0.9})


def spec(interval=None, tree=DYNAMIC):
    loop = LOOP if interval is None else PartSpec("decoders.loops.vvs.Vvs", {"interval": interval})
    return DecoderSpec("vvs", loop, EAGLE, tree, LANTERN)


def decoded(interval=None, sampling=SAMPLING, **given):
    return build_decoder(MODEL, spec(interval, **given), sampling).generate(TEXT, NOISE)


@pytest.fixture
def watched(monkeypatch):
    """Of every draft: its place, how many codes of a chain stand and their laws, its codes, and how
    many drafts were accepted."""
    shown = []
    verify = vvs.Untested.verify

    def noting(self, law, draft, noise, place, state):
        made = verify(self, law, draft, noise, place, state)
        skipped = isinstance(draft, vvs.Skipped)
        taken = draft.stands.sum(1) if skipped else torch.zeros_like(place)
        laws = draft.laws.clone() if skipped else None
        shown.append((place.clone(), taken, laws, draft.codes.clone(), made.count))
        return made

    monkeypatch.setattr(vvs.Untested, "verify", noting)
    return shown


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_without_a_skipped_step_it_is_lantern_code_by_code(tau):
    sampling = replace(SAMPLING, temperature=tau)
    plain, same = decoded(None, sampling), decoded(10**6, sampling)
    assert torch.equal(plain.codes, same.codes)
    for name in ("kind", "step", "depth", "target_calls", "drafter_calls"):
        assert torch.equal(getattr(plain.trace, name), getattr(same.trace, name)), name
    torch.testing.assert_close(plain.trace.tv_shift, same.trace.tv_shift)


@pytest.mark.parametrize("tree", [DYNAMIC, OPT], ids=["dynamic", "opt"])
def test_a_skipped_code_records_its_distance_from_the_target(tree, watched):
    """TV(p, q), p by teacher forcing of the finished images."""
    made = decoded(2, tree=tree)
    logits = teacher_logits(MODEL, TEXT, made.codes, SAMPLING.cfg)
    p = probabilities(logits, SAMPLING)
    seen = 0
    for place, taken, laws, codes, _ in watched:
        for b in range(3):
            for i in range(int(taken[b])):
                here = int(place[b]) + i
                if here >= 36:
                    continue
                assert int(made.codes[b, here]) == int(codes[b, i + 1])
                away = 0.5 * (p[b, here] - laws[b, i]).abs().sum()
                assert float(laws[b, i].sum()) == pytest.approx(1.0, abs=1e-5)
                assert float(laws[b, i, made.codes[b, here]]) > 0
                assert float(made.trace.tv_shift[b, here]) == pytest.approx(float(away), abs=1e-5)
                assert float(made.trace.bound[b, here]) == pytest.approx(float(away), abs=1e-5)
                assert int(made.trace.kind[b, here]) == CodeKind.RELAXED
                assert here > 6  # never in the first row
                seen += 1
    assert seen > 5


def test_forwards_and_skipped_steps_add_up(watched):
    plain = decoded()
    made = decoded(2)
    for b in range(3):
        steps = [(int(t[b]), int(n[b])) for pl, t, _, _, n in watched if int(pl[b]) < 36]
        assert len(steps) == int(made.trace.target_calls[b])
        assert 1 + sum(n + 1 for _, n in steps) >= 36  # what was committed, chains with it
        accepted = made.trace.accepted[b]
        assert accepted[accepted >= 0].tolist()[:-1] == [n for _, n in steps][:-1]
    assert not watched[0][1].any()  # the first step has no mean
    assert any(t.any() for _, t, *_ in watched)
    assert int(made.trace.target_calls.sum()) < int(plain.trace.target_calls.sum())
    assert int(made.trace.drafter_calls.sum()) > 0


def test_what_it_cannot_do_is_refused():
    with pytest.raises(DecoderError, match="at least 2, found 1"):
        build_decoder(MODEL, spec(1), SAMPLING)
    with pytest.raises(DecoderError, match="a tree that is not drawn"):
        decoded(2, tree=STATIC)
    graph = replace(MODEL, execution=SimpleNamespace(name="graph"))
    with pytest.raises(DecoderError, match=r"needs backend\.execution=eager, found 'graph'"):
        build_decoder(graph, spec(4), SAMPLING)
    jacobi = DecoderSpec("x", spec(4).loop, acceptance=LANTERN,
                         proposer=PartSpec("decoders.propose.jacobi.Jacobi"))  # fmt: skip
    with pytest.raises(DecoderError, match="draft tree"):
        build_decoder(MODEL, jacobi, SAMPLING)
