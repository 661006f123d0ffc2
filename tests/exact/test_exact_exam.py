"""Wrong plug-ins are never called exact, and the verdict says what is wrong; right ones are never
called broken."""

from dataclasses import replace
from typing import Any

import pytest

from bench.gate import check_decoder
from decoders.api import DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec
from tests.exact.specs import (
    SMALL,
    TAU_0,
    TAU_1,
    composed,
    drafting,
    lantern,
    large,
    part,
    planted,
    planting,
    proposing,
    ruling,
    verifying,
    window,
)

CHOICES = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]
FOUR = planting("static.Static", choices=[[0], [1], [2], [3], [0, 0], [0, 1], [1, 0]])
FILTERED = Sampling(temperature=1.0, cfg=2.0, top_p=0.8)
# The check that finds an error, and what it says.
Finding = tuple[str, str]
LAW = "do not follow the AR law"
WHOLE, SIBLINGS = ("whole law", f"images of 3**4 {LAW}"), ("sibling law", f"4 siblings {LAW}")
LEVELS = ("position law", f"codes of 36 positions {LAW}")  # of small images
PLACES, WIDE = ("position law", f"positions {LAW}"), ("wide", "images of 1024 codes")
GUIDED, BELOW = ("guided law", f"positions {LAW}"), ("node law below", f"3 siblings {LAW}")
LONG, MOVED = ("long law", f"images of 2**8 {LAW}"), ("batches", "on another row than in a batch")
DRAWN = ("wide", "not drawn from the q that is declared")
NODES, IMAGES = ("node law", "where 0.0000 is declared"), ("images", f"images of 5**4 {LAW}")
ALONE, REFILLED = ("batches", "alone than in a batch"), ("batches", "3 rows that are refilled")
PLACE_100, LATE = ("position law", "first at position 100"), ("late law", "first at position 15")
FAR = ("late law", "first at position 60")
VERIFIED = ("verified_law", "the law that is verified is not the target's")
NUMBERS = ("numbers", "numbers that depend on each other")
BOUND = ("node law", "above its declared bound")
FULL_GREEDY = ("greedy codes", "differ from greedy AR")
# What these look at is as large as in a run.
AT_FULL_SIZE = (
    ALONE, REFILLED, MOVED, WIDE, DRAWN, PLACES, PLACE_100, LATE, FAR, GUIDED, VERIFIED,
    NUMBERS, FULL_GREEDY,
)  # fmt: skip
GREEDY, PEAK = ("greedy", "differ from greedy AR"), ("greedy", "not the largest entry")
BLOCK, DEEP = verifying("block.Block"), planting("chain.Chain", depth=6)
TOP_K = Sampling(temperature=1.0, cfg=2.0, top_k=500)
NAN, DSPARK = planted("NoLogit", checkpoint="eagle"), drafting("dspark.DSpark")
DUO, COOL = planting("chain.Chain", depth=3), verifying("cool_sd.CoolSD", delta=1.5)


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


def outside(name: str, on: str | PartSpec = "chain", **options: Any) -> DecoderSpec:
    return composed(on, loop=part("tests.exact.planted_outside", name), **options)


def unseen(name: str, on: str | PartSpec = "chain", **options: Any) -> DecoderSpec:
    return composed(on, loop=part("tests.exact.planted_long", name), **options)


def long_part(name: str, **options: Any) -> PartSpec:
    return part("tests.exact.planted_long", name, **options)


def drawing(name: str) -> DecoderSpec:
    return composed(part("tests.exact.planted_outside", name, choices=CHOICES))


WRONG: dict[str, tuple[DecoderSpec, Sampling, Finding]] = {
    "t1 the number of the level above": (verifier("DeepTwin"), TAU_1, LEVELS),
    "t3 sharper, Gumbel rows": (tree("Sharper"), TAU_1, IMAGES),
    "t4 stale keys in row 1": (loop("StaleRow", "small"), TAU_1, ALONE),
    "w1 kept drafts": (jacobi("KeptTwice", 6), TAU_1, WHOLE),
    "w3 a fill that is declared as drawn": (
        window(planted("FillAsDrawn", window=6, fill="above")), TAU_1, WHOLE,
    ),
    "w2 a residual of 64": (composed(rule=ruling("LargestLeft")), TAU_1, NODES),
    "w2 the same, in the verifier": (verifier("LargestLast"), TAU_1, WIDE),
    "w4 sums in bfloat16": (tree("HalfSums"), TAU_1, WIDE),
    "w5 the last 96 codes": (loop("Last96"), TAU_1, PLACES),
    "x1 one number for two positions": (verifier("PlaceTwice"), TAU_1, PLACE_100),
    "x1 numbers of 150 positions before": (verifier("LateNumbers"), TAU_1, LATE),
    "x2 levels 9 to 12 of a window": (jacobi("LevelsTwice", 13), TAU_1, LEVELS),
    "x4 rows that are taken over": (loop("TakesOver"), TAU_1, REFILLED),
    "a row index in the session": (drafter("RowIndex"), TAU_1, ("batches", "an index of rows")),
    "x5 four siblings": (composed(FOUR, ruling("ThreeOfFour")), TAU_1, SIBLINGS),
    "t2 q of its own rejected draft": (drafter("DeepRejected"), TAU_1, WHOLE),
    "tree: argmax, soft q": (tree("Argmax"), TAU_1, WHOLE),
    "loop: kept after a rejection": (loop("KeptOn", DUO), TAU_1, WHOLE),
    "verifier: the longest path": (verifier("LongestPath", "small"), TAU_1, WHOLE),
    "q with the rejected siblings": (verifier("StaleQ", "small"), TAU_1, WHOLE),
    "last code at the parent, relaxed": (  # tested with the exact rule in its place
        composed("dynamic", lantern(), ruling("BonusAtParent")), TAU_1, WHOLE,
    ),
    "a target in bfloat16": (loop("HalfTarget", "small"), TAU_1, WHOLE),
    "a target that is not filtered": (loop("UnfilteredTarget", "small"), FILTERED, WHOLE),
    "one number for all siblings": (verifier("SharedUniform", "small"), TAU_1, WHOLE),
    "a stale cache": (loop("StaleCache", "small"), TAU_1, WHOLE),
    "greedy codes from position 40 on": (unseen("LateGreedy"), TAU_0, FULL_GREEDY),
    "greedy, the last of two that tie": (
        unseen("LastOfTies"), TAU_0, ("greedy", "not the first of two that tie"),
    ),
    "a stale cache, greedy": (loop("StaleCache", "small"), TAU_0, GREEDY),
    "a residual that adds up to less": (composed("small", ruling("Unnormalised")), TAU_1, NODES),
    "acceptance in bfloat16": (composed("dynamic", ruling("HalfAcceptance")), TAU_1, NODES),
    "a code of probability zero": (composed(rule=ruling("Outside")), FILTERED, NODES),
    "its own neighbour": (relaxed("SelfNeighbour"), TAU_1, ("definition", "from its definition")),
    "a hidden bound": (relaxed("HiddenBound"), TAU_1, NODES),
    "half of the peak": (relaxed("GenerousGreedy"), TAU_0, PEAK),
    "no number as a bound, chain": (relaxed("NoBound", "chain"), TAU_1, ("node law", "finite")),
    "no number as a bound, greedy": (relaxed("NoBound", "small"), TAU_0, ("greedy", "finite")),
    "a NaN logit, chain": (composed(drafter=NAN), TAU_1, ("node law", "no finite law")),
    "a NaN logit, greedy": (composed("dynamic", drafter=NAN), TAU_0, ("greedy", "NaN")),
    "a free draft at depth 2": (composed(rule=ruling("DeepOnly")), TAU_1, NODES),
    "free drafts in the middle": (composed(rule=ruling("MiddleOnly")), TAU_1, NODES),
    "half of its bound": (
        composed(rule=ruling("HalfBound")), TAU_1, ("node law", "is declared"),
    ),
    "more than its bound": (
        composed(rule=ruling("Generous")), TAU_1, ("node law", "declares another output bound"),
    ),
    "one level deeper": (
        composed(rule=COOL, loop=ruling("DeeperLoop")), TAU_1,
        ("recorded_bound", "another bound than the rule gives"),
    ),
    "the first code unguided": (outside("UnguidedFirst"), TAU_1, WHOLE),
    "the first code unfiltered": (outside("UnfilteredFirst"), TOP_K, WHOLE),
    "the deepest level unguided": (outside("UnguidedDeepest"), TAU_1, WHOLE),
    "level 5 unguided": (outside("UnguidedFifth", DEEP), TAU_1, GUIDED),
    "the bonus unguided": (outside("UnguidedBonus"), TAU_1, GUIDED),
    "the bonus unguided, block": (outside("UnguidedBonus", rule=BLOCK), TAU_1, LONG),
    "the bonus unfiltered": (outside("UnfilteredBonus"), TOP_K, GUIDED),
    "a correction from position 4 on": (outside("LateCorrection"), TAU_1, GUIDED),
    "three siblings below the first level": (outside("ThirdBelow", "static_25"), TAU_1, BELOW),
    "three siblings below the second level": (outside("ThirdDeep", "static_25"), TAU_1, BELOW),
    "the second level of a block from position 32 on": (
        composed(DEEP, part("tests.exact.planted_outside", "LateSecond")), TAU_1, FAR,
    ),
    "the fourth level of a block": (
        composed(DEEP, part("tests.exact.planted_outside", "FourthOfBlock")), TAU_1, LONG,
    ),
    "unguided from position 150 on": (outside("LateUnguided"), TAU_1, VERIFIED),
    "the third row unfiltered": (outside("UnfilteredThirdRow"), TOP_K, GUIDED),
    "the first node from depth 3 on": (outside("FirstNodes", "static_25"), TAU_1, VERIFIED),
    "the second column of padding": (outside("SecondPad"), TAU_1, VERIFIED),
    "padding of the seventh row": (outside("SeventhRow"), TAU_1, VERIFIED),
    "a row from step 60 on": (outside("LateRow", "static_25"), TAU_1, MOVED),
    "guidance rows from depth 4 on": (outside("DeepGuidance", "static_25"), TAU_1, GUIDED),
    "the path of row 0": (outside("PathOfRow0", "static_25"), TAU_1, ALONE),
    "padding of the third row, refilled": (outside("ThirdRefilled"), TAU_1, REFILLED),
    "the fifth row": (outside("FifthRow"), TAU_1, ALONE),
    "drawn in bfloat16": (drawing("HalfDraws"), TAU_1, DRAWN),
    "siblings drawn in bfloat16": (drawing("HalfSiblings"), TAU_1, DRAWN),
    "lower levels drawn in bfloat16": (drawing("HalfBelow"), TAU_1, DRAWN),
    "a code that is never drafted": (drawing("NeverDrafted"), TAU_1, DRAWN),
    "a ring of 16 numbers": (unseen("Ring"), TAU_1, NUMBERS),
    "rotations of four numbers": (unseen("Rotations"), TAU_1, NUMBERS),
    "numbers of its own, wrong from level 4 on": (
        composed(long_part("FourthLevel", choices=[[0] * n for n in range(1, 7)])), TAU_1, NUMBERS,
    ),
    "numbers of its own, sums in float16": (
        unseen("OwnNumbers", long_part("Float16Sums", choices=[[0]])), TAU_1, WIDE,
    ),
    "the fifth sibling tested as the first": (
        unseen("FifthSibling", planting("static.Static", choices=[[i] for i in range(5)])), TAU_1,
        ("sibling law", f"5 siblings {LAW}"),
    ),
    "a third sibling behind position 16": (unseen("LateThird", "static_25"), TAU_1, BELOW),
    "another rule after four steps of one draft": (
        composed(rule=long_part("AfterFour")), TAU_1, PLACES,
    ),
    "rows r and r + 8 share numbers": (unseen("EightRows"), TAU_1, MOVED),
    "a row after its second image": (unseen("SecondRefill"), TAU_1, REFILLED),
    "barred codes one position off": (unseen("BarredOneOff"), TAU_1, VERIFIED),
    "a bound that is less than the moved mass": (
        composed(rule=long_part("SmallBound", k=100, delta=0.5)), TAU_1, BOUND,
    ),
    "the same, not said": (
        composed(rule=long_part("SmallShift", k=100, delta=0.5)), TAU_1, BOUND,
    ),
    "the best length of a whole block": (
        composed(planted("BestOfBlock", depth=3), drafter=DSPARK), TAU_1, WHOLE,
    ),
    "more mass than q": (
        composed(rule=part("tests.exact.planted_outside", "MoreThanQ")), TAU_1,
        ("node law", "the mass that the rule accepts is more than q"),
    ),
}  # fmt: skip
RIGHT = {
    "drafter: adaptive": (drafter("Adaptive"), "exact"),
    "drafter: its own generator": (
        drafter("OwnGenerator"), "exact as far as sampled",
        "change with a second run of the same noise",
    ),
    "drafter: its own seed": (drafter("OwnSeed"), "exact as far as sampled", "(randn)"),
    "loop: its own numbers": (
        unseen("OwnNumbers"), "exact as far as sampled",
        "change with a second run of the same noise",
    ),
    "tree: Gumbel rows": (tree("Rows"), "exact as far as sampled"),
    "independent siblings, tested with the whole q": (
        composed(long_part("Independent", choices=[[0], [1], [0, 0]]), long_part("WholeQ")),
        "exact",
    ),
    "verifier: its own numbers": (verifier("OwnNumbers"), "exact"),
    "rule: rounding of a bound": (composed(rule=ruling("Power")), "exact"),
    # The loop samples in proportion: a chain with this rule is exact.
    "rule: not normalised": (composed(rule=ruling("Unnormalised")), "exact"),
}  # fmt: skip
OURS = {
    "Falcon": composed("small", drafter=drafting("falcon.Falcon")),
    "GRIFFIN": composed(drafter=drafting("griffin.Griffin")),
    "FREE": composed(drafter=drafting("free.Free")),
    "DFlash": composed("small", drafter=drafting("dflash.DFlash")),
    "DSpark": composed("small", drafter=DSPARK),
    "DSpark, block by block": composed(rule=BLOCK, drafter=DSPARK),
    "a chain that ends by confidence": composed(
        planting("confident.Confident", depth=3, threshold=0.45), drafter=DSPARK
    ),
    "a chain whose drafts pay": composed(
        planting("confident.Confident", depth=3, threshold=0.0, cost=[1.85] * 3), drafter=DSPARK
    ),
    "the same, verified as a whole": composed(
        planting("confident.Confident", depth=2, threshold=0.45), BLOCK, drafter=DSPARK
    ),
    "Jacobi, codes one row up": window(proposing("jacobi.Jacobi", window=6, fill="above")),
    "CaPE": composed(planting("cape.Cape", depth=2, nodes=6)),
    "LANTERN that relaxes nothing": composed(rule=lantern(delta=0.0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plug_in_is_not_exact(name, only):
    spec, sampling, finding = WRONG[name]
    check, says = finding
    only(check)
    found = check_decoder(spec, sampling, sizes=large(check) if finding in AT_FULL_SIZE else SMALL)
    assert found.word == "broken", found
    assert says in found.detail
    assert found.figure == found.figure  # a number


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plug_in_is_not_broken(name):
    """Random numbers of its own are named."""
    spec, says, *named = RIGHT[name]
    found = check_decoder(spec, TAU_1, sizes=SMALL)
    assert all(reason in found.detail for reason in named)
    assert found.text.startswith(says), found
    assert ("in images of 4 codes" in found.text) == ("sampled" in says)


def test_probabilities_in_place_of_logits_are_named(only):
    only("none")
    drafter = part("tests.exact.planted_outside", "Probabilities", checkpoint="eagle")
    found = check_decoder(composed(drafter=drafter), TAU_1, sizes=SMALL)
    assert found.word == "exact" and "return their logarithm" in found.detail
    assert "Warning" not in check_decoder(composed(), TAU_1, sizes=SMALL).detail


def test_a_rule_that_returns_a_tuple_hears_what_to_return():
    with pytest.raises(DecoderError, match=r"Pair.test must return a decoders.api.Acceptance"):
        check_decoder(composed(rule=part("tests.exact.planted_outside", "Pair")), TAU_1)


def test_children_that_depend_on_the_noise_are_seen_in_images(only):
    """What is done with their number has no threshold, so that nothing is enumerated."""
    only("images")
    spec = composed(planted("RandomDynamic", depth=3, top_k=3, nodes=8))
    found = check_decoder(spec, TAU_1, sizes=replace(SMALL, drawn=16_384))
    assert found.word == "broken" and LAW in found.detail


@pytest.mark.parametrize("name", OURS)
def test_a_part_of_this_project_is_exact_by_enumeration(name, only):
    only("whole law")
    found = check_decoder(OURS[name], TAU_1, sizes=SMALL)
    assert found.text == "exact" and "images of 3**" in found.detail, found
