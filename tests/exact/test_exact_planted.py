"""Every planted error is caught: the gate's verdict is `broken`, and it says where."""

from __future__ import annotations

import pytest

from bench.judge.gate import check_decoder, sampled
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec
from decoders.executed import executed
from decoders.execution.cpu.speculation import NativeStep
from decoders.execution.cpu.structures import Filter
from decoders.models.small import random_model
from decoders.noise import DRAFT_SLOT
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.exact.specs import EAGLE, EXACT, SPECULATIVE, TREES, composed, lantern

TAU_1 = Sampling(temperature=1.0, cfg=2.0)
TAU_0 = Sampling(temperature=0.0, cfg=2.0)
FILTERED = Sampling(temperature=1.0, cfg=2.0, top_p=0.8)


def planted(name: str, **options) -> PartSpec:
    return PartSpec(f"tests.exact.planted.{name}", options)


@pytest.mark.parametrize(
    ("loop", "tree", "sampling", "says"),
    [
        ("StaleQ", "small", TAU_1, "do not follow the AR law"),
        ("ParentQ", "small", TAU_1, "do not follow the AR law"),
        ("LongestPath", "static_25", TAU_1, "do not follow the AR law"),
        ("ShiftedGrid", "small", TAU_1, "teacher forcing"),
        ("BonusAtParent", "small", TAU_1, "do not follow the AR law"),
        ("HalfTarget", "small", TAU_1, "teacher forcing"),
        ("UnfilteredTarget", "small", FILTERED, "do not follow the AR law"),
        ("SharedUniform", "small", TAU_1, "do not follow the AR law"),
        ("TwinUniform", "chain", TAU_1, "do not follow the AR law"),
        ("StaleCache", "small", TAU_1, "do not follow the AR law"),
        ("ShiftedGrid", "small", TAU_0, "differ from greedy AR"),
        ("BonusAtParent", "small", TAU_0, "differ from greedy AR"),
        ("StaleCache", "small", TAU_0, "differ from greedy AR"),
    ],
)
def test_errors_of_a_loop_are_caught(loop, tree, sampling, says, monkeypatch):
    if loop not in ("LongestPath", "TwinUniform"):  # fewer images, which save time, show the others
        monkeypatch.setattr(sampled, "DRAWN", 4096)
    found = check_decoder(composed(tree, loop=planted(loop)), sampling)
    assert found.verdict == "broken"
    assert says in found.detail


@pytest.mark.parametrize(
    ("rule", "tree", "says"),
    [
        (planted("Unnormalised"), "small", "is declared"),
        (planted("HalfAcceptance"), "dynamic", "where 0.0000 is declared"),
        (planted("SelfNeighbour", k=100, delta=0.2), "dynamic", "from its definition"),
        (planted("HiddenBound", k=100, delta=0.2), "dynamic", "where 0.0000 is declared"),
    ],
)
def test_errors_of_a_rule_are_caught(rule, tree, says, few_images):
    found = check_decoder(composed(tree, rule), TAU_1)
    assert found.verdict == "broken"
    assert says in found.detail
    if "HalfAcceptance" in rule.target:
        assert 0 < found.evidence["node law"]["max_tv"] < 0.02  # small, yet seen


def test_an_unnormalised_residual_is_harmless_with_a_single_child(monkeypatch):
    """The loop samples in proportion: a chain with this rule is exact, and the gate agrees."""
    monkeypatch.setattr(sampled, "DRAWN", 4096)
    assert check_decoder(composed("chain", planted("Unnormalised")), TAU_1).verdict == "exact"


def test_children_that_depend_on_the_noise_are_caught():
    tree = PartSpec("tests.exact.planted.RandomDynamic", TREES["dynamic"].kwargs)
    spec = DecoderSpec("random", SPECULATIVE, EAGLE, tree, EXACT)
    assert check_decoder(spec, TAU_1).verdict == "broken"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (planted("SecondBest"), "differ from greedy AR"),
        (planted("GenerousGreedy", k=100, delta=0.2), "not the largest entry"),
        (planted("SelfNeighbour", k=100, delta=0.2), "not the largest entry"),
    ],
)
def test_errors_of_greedy_rules_are_caught(rule, says):
    found = check_decoder(composed("dynamic", rule), TAU_0)
    assert found.verdict == "broken"
    assert says in found.detail


def test_a_relaxed_rule_does_not_hide_an_error_of_its_loop():
    """The rule's own law is fine: the loop is tested with the exact rule in its place."""
    spec = composed("dynamic", lantern(), loop=planted("BonusAtParent"))
    found = check_decoder(spec, TAU_1)
    assert found.verdict == "broken"
    assert "do not follow the AR law" in found.detail


@pytest.mark.parametrize(
    ("tree", "sampling"), [("chain", TAU_1), ("small", TAU_0), ("dynamic", TAU_1)]
)
def test_a_bound_that_is_no_number_is_not_kept(tree, sampling, few_images):
    found = check_decoder(composed(tree, planted("NoBound", k=100, delta=0.2)), sampling)
    assert found.verdict == "broken"
    assert "finite" in found.detail
    assert found.figure == found.figure  # a number


@pytest.mark.parametrize(
    ("tree", "sampling"), [("chain", TAU_1), ("small", TAU_1), ("dynamic", TAU_0)]
)
def test_a_drafter_with_a_nan_logit_is_not_exact(tree, sampling, few_images):
    drafter = planted("NoLogit", checkpoint="eagle")
    found = check_decoder(DecoderSpec("nan", SPECULATIVE, drafter, TREES[tree], EXACT), sampling)
    assert found.verdict == "broken"
    assert "drafter's logits hold NaN" in found.detail or "no finite law" in found.detail


@needs_kernel
@pytest.mark.parametrize(
    ("part", "field", "wrong", "sampling", "says"),
    [
        (None, "", None, TAU_1, "images follow the AR law"),
        ("_settling", "filter", Filter(0.6, 1.0, 0), TAU_1, "teacher forcing"),
        ("_settling", "accept_slot", DRAFT_SLOT, TAU_1, "do not follow the AR law"),
        ("_verifying", "cfg", 1.0, TAU_1, "teacher forcing"),
        (None, "", None, TAU_0, "tokens equal greedy AR"),
        ("_verifying", "cfg", 1.0, TAU_0, "differ from greedy AR"),
    ],
)
def test_errors_of_the_cpu_kernel_are_caught(part, field, wrong, sampling, says, monkeypatch):
    monkeypatch.setattr(sampled, "DRAWN", 4096)
    made = NativeStep.__init__

    def broken(self, *args):
        made(self, *args)
        if part is not None:
            setattr(getattr(self, part), field, wrong)

    monkeypatch.setattr(NativeStep, "__init__", broken)
    real = random_model(width=32)
    real = executed(real, "cpu")
    found = check_decoder(composed("small"), sampling, real)
    assert found.verdict == ("exact" if part is None else "broken")
    assert says in found.detail
