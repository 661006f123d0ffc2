"""Wrong plug-ins are never called exact, and the verdict says what is wrong; right ones are never
called broken."""

import pytest

from bench.judge.gate import check_decoder, sampled
from bench.judge.gate.laws import node_law_check, visited
from bench.judge.gate.small import GateCase
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec
from tests.exact.specs import (
    TAU_0,
    TAU_1,
    TREES,
    composed,
    drafting,
    lantern,
    planted,
    planting,
    ruling,
    verifying,
    window,
)

CHOICES = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]
FOUR = planting("static.Static", choices=[[0], [1], [2], [3], [0, 0], [0, 1], [1, 0]])
FILTERED = Sampling(temperature=1.0, cfg=2.0, top_p=0.8)
LAW, GREEDY, DECLARED = "do not follow the AR law", "differ from greedy AR", "where 0.0000 is"
WHOLE, PLACES = f"images of 3**3 {LAW}", f"places (each alone) {LAW}"
HALF = composed("dynamic", ruling("HalfAcceptance"))
NAN = planted("NoLogit", checkpoint="eagle")
DUO = planting("chain.Chain", depth=3)


def tree(name: str) -> DecoderSpec:
    return composed(planted(name, choices=CHOICES))


def drafter(name: str) -> DecoderSpec:
    return composed(drafter=planted(name, checkpoint="eagle"))


def loop(name: str, on: str | PartSpec = "chain") -> DecoderSpec:
    return composed(on, loop=planted(name))


def verifier(name: str, on: str | PartSpec = "chain") -> DecoderSpec:
    return composed(on, loop=ruling(name))


def relaxed(name: str, on: str = "dynamic") -> DecoderSpec:
    return composed(on, ruling(name, k=100, delta=0.2))


def jacobi(name: str, size: int) -> DecoderSpec:
    return window(planted(name, window=size))


WRONG: dict[str, tuple[DecoderSpec, Sampling, str]] = {
    "t1 the number of the level above": (verifier("DeepTwin"), TAU_1, PLACES),
    "t2 q of its own rejected draft": (drafter("OwnRejected"), TAU_1, LAW),
    "t3 sharper, Gumbel rows": (tree("Sharper"), TAU_1, "or their drafts not q"),
    "t4 stale keys in row 1": (loop("StaleRow", "small"), TAU_1, "alone than in a batch"),
    "w1 kept drafts": (jacobi("KeptTwice", 6), TAU_1, "by enumeration"),
    "w2 a residual of 64": (composed(rule=ruling("LargestLeft")), TAU_1, DECLARED),
    "w2 the same, in the verifier": (verifier("LargestLast"), TAU_1, "images of 1024 codes"),
    "w3 a number every 16 places": (verifier("SixteenNumbers"), TAU_1, PLACES),
    "w4 sums in bfloat16": (tree("HalfSums"), TAU_1, "images of 1024 codes"),
    "w5 the last 96 codes": (loop("Last96"), TAU_1, PLACES),
    "x1 one number for two places": (verifier("PlaceTwice"), TAU_1, "first at place 100"),
    "x1 numbers of 150 places before": (verifier("LateNumbers"), TAU_1, "first at place 15"),
    "x2 levels 9 to 12 of a window": (jacobi("LevelsTwice", 16), TAU_1, PLACES),
    "x3 numbers of the first image": (verifier("FirstImage"), TAU_1, "image 1 has other codes"),
    "x4 rows that are taken over": (loop("TakesOver"), TAU_1, "on 2 rows that are refilled"),
    "x5 four siblings": (composed(FOUR, ruling("ThreeOfFour")), TAU_1, f"4 siblings {LAW}"),
    "x5 four siblings, in the loop": (verifier("FourSiblings", FOUR), TAU_1, f"4 siblings {LAW}"),
    "proposer: old drafts, new law": (jacobi("OldDraftsNewLaw", 3), TAU_1, WHOLE),
    "drafter: second level": (drafter("DeepRejected"), TAU_1, LAW),
    "tree: argmax, soft q": (tree("Argmax"), TAU_1, WHOLE),
    "loop: an empty slot": (loop("EmptySlot"), TAU_1, WHOLE),
    "loop: kept after a rejection": (loop("KeptOn", DUO), TAU_1, WHOLE),
    "verifier: generous below": (verifier("DeepGenerous"), TAU_1, WHOLE),
    "verifier: the longest path": (verifier("LongestPath", "small"), TAU_1, WHOLE),
    "q with the rejected siblings": (verifier("StaleQ", "small"), TAU_1, WHOLE),
    "a cell too far": (loop("ShiftedGrid", "small"), TAU_1, WHOLE),
    "last code at the parent": (verifier("BonusAtParent", "small"), TAU_1, WHOLE),
    "last code at the parent, relaxed": (  # tested with the exact rule in its place
        composed("dynamic", lantern(), ruling("BonusAtParent")), TAU_1, WHOLE,
    ),
    "a target in bfloat16": (loop("HalfTarget", "small"), TAU_1, WHOLE),
    "a target that is not filtered": (loop("UnfilteredTarget", "small"), FILTERED, WHOLE),
    "one number for all siblings": (verifier("SharedUniform", "small"), TAU_1, LAW),
    "draft and correction share one": (verifier("TwinUniform"), TAU_1, LAW),
    "a stale cache": (loop("StaleCache", "small"), TAU_1, WHOLE),
    "a stale cache, greedy": (loop("StaleCache", "small"), TAU_0, GREEDY),
    "a residual that adds up to less": (
        composed("small", ruling("Unnormalised")), TAU_1, "is declared"),
    "acceptance in bfloat16": (HALF, TAU_1, DECLARED),
    "a code of probability zero": (composed(rule=ruling("Outside")), FILTERED, DECLARED),
    "its own neighbour": (relaxed("SelfNeighbour"), TAU_1, "from its definition"),
    "its own neighbour, greedy": (relaxed("SelfNeighbour"), TAU_0, "not the largest entry"),
    "a hidden bound": (relaxed("HiddenBound"), TAU_1, DECLARED),
    "the second best": (composed("dynamic", ruling("SecondBest")), TAU_0, GREEDY),
    "half of the peak": (relaxed("GenerousGreedy"), TAU_0, "not the largest entry"),
    "no number as a bound, chain": (relaxed("NoBound", "chain"), TAU_1, "finite"),
    "no number as a bound, greedy": (relaxed("NoBound", "small"), TAU_0, "finite"),
    "a NaN logit, chain": (composed(drafter=NAN), TAU_1, "no finite law"),
    "a NaN logit, greedy": (composed("dynamic", drafter=NAN), TAU_0, "NaN"),
}  # fmt: skip
RIGHT = {
    "loop: its own mask": (loop("Rewritten"), "exact"),
    "loop: kept behind a rejected draft": (loop("KeptBehind", DUO), "exact"),
    "drafter: the last code": (drafter("LastCode"), "exact"),
    "drafter: adaptive": (drafter("Adaptive"), "exact"),
    "drafter: counting": (drafter("Counting"), "exact"),
    "drafter: its own generator": (
        drafter("OwnGenerator"), "exact as far as sampled",
        "change with a second run of the same noise",
    ),
    "drafter: its own seed": (drafter("OwnSeed"), "exact as far as sampled", "(randn)"),
    "drafter: blocks of two": (composed("small", drafter=drafting("falcon.Falcon")), "exact"),
    "drafter: two outputs": (composed(drafter=drafting("griffin.Griffin")), "exact"),
    "tree: CaPE": (composed(planting("cape.Cape", depth=2, nodes=6)), "exact"),
    "tree: Gumbel rows": (tree("Rows"), "exact as far as sampled"),
    "verifier: its own numbers": (verifier("OwnNumbers"), "exact"),
    "verifier: in the place of a rule": (composed(FOUR, ruling("InOneGo")), "exact"),
    "verifier: blocks": (composed(rule=verifying("block.Block")), "exact"),
    "rule: in logarithms": (composed(rule=ruling("InLogs")), "exact"),
    "rule: rounding of a bound": (composed(rule=ruling("Power")), "exact"),
    "rule: relaxes nothing": (composed(rule=lantern(delta=0.0)), "exact"),
    # The loop samples in proportion: a chain with this rule is exact.
    "rule: not normalised": (composed(rule=ruling("Unnormalised")), "exact"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plug_in_is_not_exact(name, found_once, request):
    spec, sampling, says = WRONG[name]
    request.getfixturevalue("small_images" if says == WHOLE else "few_images")
    found_once(says)
    found = check_decoder(spec, sampling)
    assert found.verdict == "broken", found
    assert says in found.detail
    assert found.figure == found.figure  # a number


@pytest.mark.usefixtures("small_images")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plug_in_is_not_broken(name):
    """Random numbers of its own are named."""
    spec, says, *named = RIGHT[name]
    found = check_decoder(spec, TAU_1)
    assert all(reason in found.detail for reason in named)
    assert found.text.startswith(says), found
    assert ("sampled" in found.text) == ("sampled" in says)


def test_children_that_depend_on_the_noise_are_seen_in_images(small_images, monkeypatch):
    """What is done with their number has no threshold, so that nothing is enumerated."""
    monkeypatch.setattr(sampled, "DRAWN", 16 * sampled.BATCH)
    found = check_decoder(composed(planted("RandomDynamic", **TREES["dynamic"].kwargs)), TAU_1)
    assert found.verdict == "broken" and LAW in found.detail


def test_a_small_error_of_a_rule_is_seen():
    case = GateCase(HALF, TAU_1)
    assert 0 < node_law_check(case, visited(case)).tv < 0.02
