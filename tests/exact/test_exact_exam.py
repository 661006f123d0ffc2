"""The referee's exam: wrong plug-ins are never called exact, right ones never broken."""

from __future__ import annotations

from typing import Any

import pytest

from bench.judge.gate import check_decoder
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec
from tests.exact.specs import AR, EAGLE, EXACT, SPECULATIVE, TREES

SAMPLING = Sampling(temperature=1.0, cfg=2.0)
EXAM, CONTRACTS = "tests.exact.exam", "tests.decoders.test_contracts"
VERTICAL = "decoders.propose.drafters.vertical"
CHOICES = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]


def exam(name: str, **options: Any) -> PartSpec:
    return PartSpec(f"{EXAM}.{name}", options)


def of(
    loop: PartSpec = SPECULATIVE,
    drafter: PartSpec = EAGLE,
    tree: PartSpec = TREES["chain"],
    rule: PartSpec = EXACT,
) -> DecoderSpec:
    return DecoderSpec("exam", loop, drafter, tree, rule)


def window(part: PartSpec) -> DecoderSpec:
    return DecoderSpec("window", SPECULATIVE, acceptance=EXACT, proposer=part)


def drafting(name: str) -> DecoderSpec:
    return of(drafter=exam(name, checkpoint="eagle"))


TREE = TREES["small"]
CHAINS = exam("Twins", choices=[[0], [1], [0, 0], [1, 0]])
WRONG = {
    "t1 the number of the level above": (of(exam("DeepTwin")), "by enumeration"),
    "t2 q of its own rejected draft": (drafting("OwnRejected"), "no function of the committed"),
    "t3 sharper, Gumbel rows": (of(tree=exam("Sharper", choices=CHOICES)), "not drawn from the q"),
    "t3 sharper, whole numbers": (of(tree=exam("SharperWhole", choices=CHOICES)), "not drawn from"),
    "t4 stale keys in row 1": (of(exam("StaleRow"), tree=TREE), "of row 1"),
    "loop: a full path is not moved": (of(exam("ForgetsFullPath"), tree=TREE), "teacher forcing"),
    "loop: blind from place 30 on": (of(exam("LateBlindness")), "teacher forcing"),
    "proposer: old drafts, new law": (window(exam("OldDraftsNewLaw", width=2)), "AR law"),
    "proposer: the last code's number": (window(exam("TargetsNumber", width=2)), "AR law"),
    "drafter: second level": (drafting("DeepRejected"), "no function of the committed"),
    "drafter: favours": (drafting("Favours"), "no function of the committed"),
    "tree: pruned": (of(tree=exam("Pruned", choices=CHOICES)), "not drawn from"),
    "tree: best first": (of(tree=exam("BestFirst", choices=CHOICES)), "not drawn from"),
    "tree: argmax, soft q": (of(tree=exam("Argmax", choices=CHOICES)), "not drawn from"),
    "verifier: longest chain": (of(exam("LongestChain"), tree=CHAINS), "AR law"),
    "verifier: generous below": (of(exam("DeepGenerous")), "another probability"),
    "verifier: the number that tested": (of(exam("TestedNumber")), "AR law"),
    "rule: padded": (of(rule=exam("Padded")), "where 0.0000 is declared"),
    "rule: trusting": (of(rule=exam("Trusting")), "where 0.0000 is declared"),
    "w1 kept drafts": (window(exam("KeptTwice", window=6)), "by enumeration"),
    "w2 a residual of 64": (of(rule=exam("LargestLeft")), "where 0.0000 is declared"),
    "w2 the same, in the verifier": (of(exam("LargestLast")), "images of 1024 codes"),
    "w3 a number every 16 places": (of(exam("SixteenNumbers")), "by enumeration"),
    "w3 a number every 6 places": (of(exam("SixNumbers")), "by enumeration"),
    "w4 sums in bfloat16": (of(tree=exam("HalfSums", choices=CHOICES)), "images of 1024 codes"),
    "w5 the last 96 codes": (of(exam("Last96")), "by enumeration"),
}
COOL = PartSpec("decoders.verify.cool_sd.CoolSD", {"delta": 1.5})
RIGHT = {
    "loop: its own mask": (of(exam("Rewritten")), "exact"),
    "loop: plain": (DecoderSpec("ar", AR), "exact"),
    "proposer: jacobi": (window(PartSpec(f"{CONTRACTS}.Jacobi", {"width": 2})), "exact"),
    "proposer: a block of heads": (window(PartSpec(f"{CONTRACTS}.Coupled", {"width": 2})), "exact"),
    "drafter: the last code": (drafting("LastCode"), "exact"),
    "drafter: adaptive": (drafting("Adaptive"), "exact as far as sampled"),
    "drafter: counting": (drafting("Counting"), "exact"),
    "drafter: one row up": (of(drafter=PartSpec(f"{VERTICAL}.Vertical")), "exact"),
    "drafter: EAGLE and one row up": (of(drafter=PartSpec(f"{VERTICAL}.EagleVertical")), "exact"),
    "tree: twins are dropped": (of(tree=exam("Twins", choices=CHOICES)), "exact"),
    "tree: Gumbel rows": (of(tree=exam("Rows", choices=CHOICES)), "exact as far as sampled"),
    "verifier: its own numbers": (of(exam("OwnNumbers")), "exact"),
    "verifier: blocks": (of(rule=PartSpec(f"{CONTRACTS}.BlockVerification")), "exact"),
    "rule: in logarithms": (of(rule=exam("InLogs")), "exact"),
    "rule: rounding of a bound": (of(rule=exam("Power")), "exact"),
    "rule: a bound of its own": (of(rule=COOL), "relaxed"),
}


pytestmark = pytest.mark.usefixtures("few_images")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plug_in_is_not_exact(name: str) -> None:
    spec, says = WRONG[name]
    found = check_decoder(spec, SAMPLING)
    assert found.verdict == "broken", found
    assert says in found.detail


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plug_in_is_not_broken(name: str) -> None:
    spec, says = RIGHT[name]
    found = check_decoder(spec, SAMPLING)
    assert found.text.startswith(says), found
    assert ("sampled" in found.text) == ("sampled" in says)
