"""VVS (verification skipping) and the baseline of truncating rules, on small random models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.judge.gate.reference import teacher_logits
from bench.judge.gate.small import Real, small_model, small_spec
from decoders.api import CodeKind, DecoderError, Draft, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.distribution import probabilities
from decoders.loops.skipping import vvs
from decoders.loops.skipping.proposer import Alike, SkippingSession
from decoders.models.small import random_model
from decoders.noise import TARGET_SLOT, Noise, sample
from decoders.verify.entropy import Typical
from tests.decoders.compositions import DYNAMIC, EAGLE, LOOP, STATIC

MODEL = random_model(vocab=12, grid=6, seed=1)
TEXT = MODEL.text.encode(["a", "b", "c"])
NOISE = Noise.for_prompts(1, ["a", "b", "c"], 36)
SAMPLING = Sampling(cfg=2.0)
LANTERN = PartSpec("decoders.verify.lantern.Lantern", {"k": 11, "delta": 0.9})


def spec(tree, interval=None):
    loop = (
        LOOP
        if interval is None
        else PartSpec("decoders.loops.skipping.vvs.Vvs", {"interval": interval})
    )
    return DecoderSpec("vvs", loop, EAGLE, tree, LANTERN)


def decoded(tree, interval=None, sampling=SAMPLING):
    return build_decoder(MODEL, spec(tree, interval), sampling).generate(TEXT, NOISE)


@pytest.fixture
def watched(monkeypatch):
    """The chains that a verifier is shown, with where they stand."""
    shown = []
    decide = vvs.Untested.decide

    def noting(self, law, draft, noise, place, state):
        made = decide(self, law, draft, noise, place, state)
        laws = None if draft.laws is None else draft.laws.clone()
        shown.append((place.clone(), draft.taken.clone(), laws, draft.codes.clone(), made.count))
        return made

    monkeypatch.setattr(vvs.Untested, "decide", noting)
    return shown


@pytest.mark.parametrize("tree", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_without_a_skipped_step_it_is_lantern_code_by_code(tree, tau):
    sampling = replace(SAMPLING, temperature=tau)
    plain, same = decoded(tree, None, sampling), decoded(tree, 0, sampling)
    assert torch.equal(plain.codes, same.codes)
    for name in ("kind", "step", "depth", "target_calls", "accepted", "drafter_calls"):
        assert torch.equal(getattr(plain.trace, name), getattr(same.trace, name)), name
    torch.testing.assert_close(plain.trace.moved, same.trace.moved)


@pytest.mark.parametrize("tree", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_a_skipped_code_records_its_distance_from_the_target(tree, watched):
    """TV(p, q), p by teacher forcing of the finished images."""
    made = decoded(tree, 2)
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
                assert float(made.trace.moved[b, here]) == pytest.approx(float(away), abs=1e-5)
                assert float(made.trace.bound[b, here]) == pytest.approx(float(away), abs=1e-5)
                assert int(made.trace.kind[b, here]) == CodeKind.RELAXED
                assert here > 6  # never in the first row
                seen += 1
    assert seen > 5


def test_forwards_and_skipped_steps_add_up(watched):
    plain, made = decoded(DYNAMIC, 0), None
    watched.clear()
    made = decoded(DYNAMIC, 2)
    for b in range(3):
        steps = [(int(t[b]), int(n[b])) for pl, t, _, _, n in watched if int(pl[b]) < 36]
        assert len(steps) == int(made.trace.target_calls[b])
        assert 1 + sum(n + 1 for _, n in steps) >= 36  # what was committed, chains with it
        assert (
            made.trace.accepted[b][made.trace.accepted[b] >= 0].tolist()[:-1]
            == [n for _, n in steps][:-1]
        )
    assert all(not t.any() for _, t, laws, _, _ in watched[:1])  # the first step has no mean
    assert any(t.any() for _, t, _, _, _ in watched)
    assert int(made.trace.target_calls.sum()) < int(plain.trace.target_calls.sum())
    assert int(made.trace.drafter_calls.sum()) > 0


def dynamic(tree, alike):
    loop = PartSpec("decoders.loops.skipping.vvs.Vvs", {"mode": "dynamic", "alike": alike})
    decoder = build_decoder(MODEL, replace(spec(tree), loop=loop), SAMPLING)
    return decoder, decoder.generate(TEXT, NOISE)


def test_dynamic_skips_where_paths_look_alike_and_nowhere_else(watched):
    """A threshold that none reaches is LANTERN; one that all reach skips before every draft."""
    never, always = dynamic(DYNAMIC, 1.0)[1], dynamic(DYNAMIC, -1.0)[1]
    assert torch.equal(never.codes, decoded(DYNAMIC).codes)
    assert torch.equal(always.codes, decoded(DYNAMIC, 2).codes)
    watched.clear()
    decoder, some = dynamic(DYNAMIC, 0.0)
    skipped = sum(int((taken > 0).sum()) for _, taken, *_ in watched)
    assert 0 < skipped < 3 * (len(watched) - 1)
    begin = decoder.proposer.begin

    def everywhere(start):
        session = begin(start)
        session.synchronous = False  # as on a device that nothing waits for
        return session

    decoder.proposer.begin = everywhere
    assert torch.equal(decoder.generate(TEXT, NOISE).codes, some.codes)


def test_paths_are_compared_level_by_level():
    """Root's children a, b; a has the children c, d: paths ac, ad, b."""
    latents = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0], [-3.0, 0.0], [0.0, 1.0]])
    parents, depth = torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 2, 2]])
    kids = torch.zeros(1, 5, 2, dtype=torch.long)
    kids[0, 0], kids[0, 1] = torch.tensor([1, 2]), torch.tensor([3, 4])
    draft = Draft(torch.tensor([[4, 0, 1, 2, 3]]), parents, depth, kids, None, levels=2)
    first, second = (1.0 + 0.6 + 0.6) / 3, 0.0
    wanted = (first + 0.9 * second) / 1.9
    assert float(Alike(latents, 0.5, 0.9).cosine(draft)) == pytest.approx(wanted)
    # As released: every second path, ac and b, of which b has no second level.
    assert float(Alike(latents, 0.5, 0.9, True).cosine(draft)) == pytest.approx(0.6 / 1.9)
    kids[0, 1, 1] = 0  # a child that cannot be drawn: one path of two levels is left
    assert float(Alike(latents, 0.5, 0.9).cosine(draft)) == pytest.approx(0.6)


def test_as_released_the_next_root_is_a_draft_at_the_mean_length(monkeypatch, watched):
    """A path is cut to the mean length of the draft's paths; nothing is skipped before six codes;
    the drafter reads as many of the last features as it takes codes."""
    cuts, told = [], []
    skip, tell = SkippingSession.skip, SkippingSession.told

    def noting(self, tree, last, noise, place):
        codes, taken, laws = skip(self, tree, last, noise, place)
        for b in range(len(place)):
            below = set(tree.parents[b, 1:].tolist())
            ends = [n for n in range(1, tree.codes.shape[1]) if n not in below]
            depth = [int(tree.depth[b, n]) for n in ends]
            mean = sum(depth) // len(ends)
            cuts.append((int(taken[b]), mean))
            found = [int(x) for x in codes[b, : int(taken[b])]]
            parent = 0
            for x in found:  # a path of the tree, from the root on
                parent = next(
                    n
                    for n in range(1, tree.codes.shape[1])
                    if int(tree.parents[b, n]) == parent and int(tree.codes[b, n]) == x
                )
        return codes, taken, laws

    def telling(self, seen, codes, taken, place):
        made = tell(self, seen, codes, taken, place)
        told.append((taken.clone(), made.hidden.clone(), self.cached.clone()))
        return made

    monkeypatch.setattr(SkippingSession, "skip", noting)
    monkeypatch.setattr(SkippingSession, "told", telling)
    loop = PartSpec("decoders.loops.skipping.vvs.Vvs", {"interval": 2, "released": True})
    tree = PartSpec(DYNAMIC.target, {"depth": 3, "top_k": 3, "nodes": 8})
    build_decoder(MODEL, replace(spec(tree), loop=loop), SAMPLING).generate(TEXT, NOISE)
    assert cuts and all(0 < taken <= mean for taken, mean in cuts)
    assert {taken == mean for taken, mean in cuts} >= {True}
    taken, hidden, cached = told[-1]
    for b, n in enumerate(taken.tolist()):
        if n:
            torch.testing.assert_close(hidden[b, :n], cached[b, -n:])
    places = [int(p[b]) for p, t, *_ in watched for b in range(3) if int(t[b])]
    assert places and min(places) >= 7


def test_the_gate_sees_the_skipped_steps_of_the_dynamic_mode():
    """Random latents do not look alike, so the gate's models skip without a threshold."""
    loop = PartSpec("decoders.loops.skipping.vvs.Vvs", {"mode": "dynamic", "alike": 0.9})
    asked = replace(spec(DYNAMIC), loop=loop)
    small = small_spec(asked, small_model(12, 3, 0, ("eagle",)), Real())
    assert small.loop.kwargs == {"mode": "dynamic", "alike": -1.0}
    assert small_spec(spec(DYNAMIC), MODEL, Real()).loop == LOOP


def test_what_it_cannot_do_is_refused():
    with pytest.raises(DecoderError, match="uniform, dynamic, found 'cosine'"):
        loop = PartSpec("decoders.loops.skipping.vvs.Vvs", {"mode": "cosine"})
        build_decoder(MODEL, replace(spec(DYNAMIC), loop=loop), SAMPLING)
    with pytest.raises(DecoderError, match="skips every step"):
        build_decoder(MODEL, spec(DYNAMIC, 1), SAMPLING)
    graph = replace(MODEL, execution=SimpleNamespace(name="graph"))
    with pytest.raises(DecoderError, match="eager"):
        build_decoder(graph, spec(DYNAMIC, 4), SAMPLING)
    jacobi = DecoderSpec("x", spec(DYNAMIC, 4).loop, acceptance=LANTERN,
                         proposer=PartSpec("tests.decoders.test_contracts.Jacobi"))  # fmt: skip
    with pytest.raises(DecoderError, match="drafter"):
        build_decoder(MODEL, jacobi, SAMPLING)


TRUNCATED = DecoderSpec(
    "cut", PartSpec("decoders.loops.truncated.Truncated"),
    acceptance=PartSpec("decoders.verify.entropy.Typical", {"eps": 0.09, "alpha": 0.9}),
)  # fmt: skip


def test_the_truncated_baseline_samples_from_the_rule_s_own_cut():
    """Every code is what the noise picks from the cut law of its teacher-forced p."""
    made = build_decoder(MODEL, TRUNCATED, SAMPLING).generate(TEXT, NOISE)
    p = probabilities(teacher_logits(MODEL, TEXT, made.codes, SAMPLING.cfg), SAMPLING)
    passes = p > torch.exp((p * p.log()).sum(-1, keepdim=True)).mul(0.9).clamp_max(0.09)
    cut = torch.where(passes, p, 0.0)
    assert (~passes).any()
    wanted = sample(cut, NOISE.uniform[:, :36, TARGET_SLOT])
    assert torch.equal(made.codes, wanted)
    torch.testing.assert_close(made.trace.moved, 1 - cut.sum(-1), atol=1e-5, rtol=0)
    plain = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))
    greedy = replace(SAMPLING, temperature=0.0)
    same = [build_decoder(MODEL, s, greedy).generate(TEXT, NOISE).codes for s in (TRUNCATED, plain)]
    assert torch.equal(*same)


def test_typical_drafts_come_from_the_same_cut():
    """What the baseline is for: the rule accepts nothing that the baseline never says."""
    rule = Typical(eps=0.09, alpha=0.9)
    p = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)).softmax(-1)
    cut = rule.truncated(p)
    for x in range(12):
        accept = rule.test(p, None, torch.full((50,), x)).accept
        assert torch.equal(accept > 0, cut[:, x] > 0)


def test_the_truncated_loop_needs_a_rule_that_cuts():
    exact = replace(TRUNCATED, acceptance=PartSpec("decoders.verify.exact.Exact"))
    with pytest.raises(DecoderError, match="acceptance=typical"):
        build_decoder(MODEL, exact, SAMPLING)
