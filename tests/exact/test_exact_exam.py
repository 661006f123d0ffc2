"""The referee's exam: wrong plug-ins are never called exact, and the verdict says what is wrong;
right ones are never called broken."""

import pytest

from bench.judge.gate import check_decoder, sampled
from bench.judge.gate.laws import law_check, record_nodes
from bench.judge.gate.small import GateCase
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec
from tests.exact.specs import (
    TAU_0,
    TAU_1,
    TREES,
    composed,
    drafting,
    exam,
    lantern,
    planted,
    planting,
    verifying,
    window,
)

CHOICES = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]
FILTERED = Sampling(temperature=1.0, cfg=2.0, top_p=0.8)
LAW, TEACHER, GREEDY = "do not follow the AR law", "teacher forcing", "differ from greedy AR"
DECLARED = "where 0.0000 is declared"
HALF = composed("dynamic", planted("HalfAcceptance"))
NAN = planted("NoLogit", checkpoint="eagle")


def tree(name: str) -> DecoderSpec:
    return composed(exam(name, choices=CHOICES))


def drafter(name: str) -> DecoderSpec:
    return composed(drafter=exam(name, checkpoint="eagle"))


def loop(name: str, on: str | PartSpec = "chain") -> DecoderSpec:
    return composed(on, loop=exam(name))


def planted_loop(name: str, on: str = "small") -> DecoderSpec:
    return composed(on, loop=planted(name))


def relaxed(name: str, on: str = "dynamic") -> DecoderSpec:
    return composed(on, planted(name, k=100, delta=0.2))


WRONG: dict[str, tuple[DecoderSpec, Sampling, str]] = {
    "t1 the number of the level above": (loop("DeepTwin"), TAU_1, "by enumeration"),
    "t2 q of its own rejected draft": (drafter("OwnRejected"), TAU_1, LAW),
    "t3 sharper, Gumbel rows": (tree("Sharper"), TAU_1, "or their drafts not q"),
    "t4 stale keys in row 1": (loop("StaleRow", "small"), TAU_1, "of row 1"),
    "loop: a full path is not moved": (loop("ForgetsFullPath", "small"), TAU_1, TEACHER),
    "loop: blind from place 30 on": (loop("LateBlindness"), TAU_1, TEACHER),
    "proposer: old drafts, new law": (window(exam("OldDraftsNewLaw", window=3)), TAU_1, "AR law"),
    "proposer: the last code's number": (window(exam("TargetsNumber", window=3)), TAU_1, "AR law"),
    "drafter: second level": (drafter("DeepRejected"), TAU_1, LAW),
    "tree: best first": (tree("BestFirst"), TAU_1, LAW),
    "tree: argmax, soft q": (tree("Argmax"), TAU_1, LAW),
    "verifier: generous below": (loop("DeepGenerous"), TAU_1, LAW),
    "verifier: the number that tested": (loop("TestedNumber"), TAU_1, "AR law"),
    "rule: padded": (composed(rule=exam("Padded")), TAU_1, DECLARED),
    "w1 kept drafts": (window(exam("KeptTwice", window=6)), TAU_1, "by enumeration"),
    "w2 a residual of 64": (composed(rule=exam("LargestLeft")), TAU_1, DECLARED),
    "w2 the same, in the verifier": (loop("LargestLast"), TAU_1, "images of 1024 codes"),
    "w3 a number every 16 places": (loop("SixteenNumbers"), TAU_1, "by enumeration"),
    "w4 sums in bfloat16": (tree("HalfSums"), TAU_1, "images of 1024 codes"),
    "w5 the last 96 codes": (loop("Last96"), TAU_1, "by enumeration"),
    "q with the rejected siblings": (planted_loop("StaleQ"), TAU_1, LAW),
    "q of the grandparent": (planted_loop("ParentQ"), TAU_1, LAW),
    "a cell too far": (planted_loop("ShiftedGrid"), TAU_1, TEACHER),
    "last code at the parent": (planted_loop("BonusAtParent"), TAU_1, LAW),
    "last code at the parent, relaxed": (  # tested with the exact rule in its place
        composed("dynamic", lantern(), planted("BonusAtParent")), TAU_1, LAW,
    ),
    "a target in bfloat16": (planted_loop("HalfTarget"), TAU_1, TEACHER),
    "a target that is not filtered": (planted_loop("UnfilteredTarget"), FILTERED, LAW),
    "one number for all siblings": (planted_loop("SharedUniform"), TAU_1, LAW),
    "draft and correction share one": (planted_loop("TwinUniform", "chain"), TAU_1, LAW),
    "a stale cache": (planted_loop("StaleCache"), TAU_1, LAW),
    "a stale cache, greedy": (planted_loop("StaleCache"), TAU_0, GREEDY),
    "a residual that adds up to less": (
        composed("small", planted("Unnormalised")), TAU_1, "is declared"),
    "acceptance in bfloat16": (HALF, TAU_1, DECLARED),
    "its own neighbour": (relaxed("SelfNeighbour"), TAU_1, "from its definition"),
    "its own neighbour, greedy": (relaxed("SelfNeighbour"), TAU_0, "not the largest entry"),
    "a hidden bound": (relaxed("HiddenBound"), TAU_1, DECLARED),
    "the second best": (composed("dynamic", planted("SecondBest")), TAU_0, GREEDY),
    "half of the peak": (relaxed("GenerousGreedy"), TAU_0, "not the largest entry"),
    "no number as a bound, chain": (relaxed("NoBound", "chain"), TAU_1, "finite"),
    "no number as a bound, greedy": (relaxed("NoBound", "small"), TAU_0, "finite"),
    "a NaN logit, chain": (composed(drafter=NAN), TAU_1, "no finite law"),
    "a NaN logit, greedy": (composed("dynamic", drafter=NAN), TAU_0, "NaN"),
}  # fmt: skip
RIGHT = {
    "loop: its own mask": (loop("Rewritten"), "exact"),
    "drafter: the last code": (drafter("LastCode"), "exact"),
    "drafter: adaptive": (drafter("Adaptive"), "exact"),
    "drafter: counting": (drafter("Counting"), "exact"),
    "drafter: blocks of two": (composed("small", drafter=drafting("falcon.Falcon")), "exact"),
    "drafter: two outputs": (composed(drafter=drafting("griffin.Griffin")), "exact"),
    "tree: CaPE": (composed(planting("cape.Cape", depth=3, nodes=16)), "exact"),
    "tree: Gumbel rows": (tree("Rows"), "exact as far as sampled"),
    "verifier: its own numbers": (loop("OwnNumbers"), "exact"),
    "verifier: blocks": (composed(rule=verifying("block.Block")), "exact"),
    "rule: in logarithms": (composed(rule=exam("InLogs")), "exact"),
    "rule: rounding of a bound": (composed(rule=exam("Power")), "exact"),
    # The loop samples in proportion: a chain with this rule is exact.
    "rule: not normalised": (composed(rule=planted("Unnormalised")), "exact"),
}  # fmt: skip


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plug_in_is_not_exact(name, found_once):
    spec, sampling, says = WRONG[name]
    found_once(says)
    found = check_decoder(spec, sampling)
    assert found.verdict == "broken", found
    assert says in found.detail
    assert found.figure == found.figure  # a number


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plug_in_is_not_broken(name):
    spec, says = RIGHT[name]
    found = check_decoder(spec, TAU_1)
    assert found.text.startswith(says), found
    assert ("sampled" in found.text) == ("sampled" in says)


def test_children_that_depend_on_the_noise_are_seen_in_images(monkeypatch):
    """What is done with their number has no threshold, so that nothing is enumerated."""
    monkeypatch.setattr(sampled, "DRAWN", 16 * sampled.BATCH)
    found = check_decoder(composed(planted("RandomDynamic", **TREES["dynamic"].kwargs)), TAU_1)
    assert found.verdict == "broken" and LAW in found.detail


def test_a_small_error_of_a_rule_is_seen():
    case = GateCase(HALF, TAU_1)
    assert 0 < law_check(case, record_nodes(case)).tv < 0.02
