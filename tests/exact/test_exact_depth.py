"""The gate on rules that depend on the depth or the position, on rules with a bound on the output,
and on codes that the target rules out."""

import re
from copy import copy
from dataclasses import replace

import pytest
import torch

from bench.gate import check_decoder
from bench.gate.laws import CLOSE, node_law_check, node_trace
from bench.gate.small import GateCase
from decoders.api import Sampling
from decoders.verify.cool_sd import Lenience
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from tests.exact.planted import finds, judging
from tests.exact.specs import TAU_0, TAU_1, composed, part, verifying

COOL = verifying("cool_sd.CoolSD", delta=1.5)


class DeepOnly(Exact):
    """Takes every draft of level 3 and declares nothing; exact at all others."""

    free = None

    def at(self, draft, position):
        made = copy(self)
        made.free = self.where(draft.depth, position[:, None])
        return made

    def where(self, depth, position):
        return depth == 2

    def test(self, p, q, x):
        found = super().test(p, q, x)
        return replace(found, accept=torch.where(self.free, 1.0, found.accept))


class MiddleOnly(DeepOnly):
    """The same at positions 64 to 191 of an image."""

    def where(self, depth, position):
        return (position + depth >= 64) & (position + depth < 192)


class Outside(Lantern):
    """Commits codes that the target rules out, and does not say so."""

    beyond_support = False


# Declares half of what it moves.
HalfBound = finds(Lenience, bound=lambda found, *_: found.bound / 2)
# Declares more than what it moves, so its law stays within.
Generous = finds(Lenience, bound=lambda found, *_: (found.bound + 0.2).clamp_max(1))
# Tells the rule that the draft lies one level deeper.
DeeperLoop = judging(
    verdicts=lambda usual, law, draft, *rest: usual(
        law, replace(draft, depth=draft.depth + 1, levels=draft.levels), *rest
    )
)


def here(name: str, **options):
    return part(__name__, name, **options)


def test_a_rule_that_depends_on_the_depth_is_judged_at_every_depth(only):
    only("recorded_bound")
    found = check_decoder(composed("chain", COOL), TAU_1)
    assert found.text == "relaxed" and "lemma R's bound, which the rule declares" in found.detail
    worst, loop = found.evidence["node law"]["worst"], found.evidence["loop"]
    assert worst.spot.depth == 0  # omega is largest there
    assert 0.2 < worst.law.tv <= 1 - 1 / (1.5 * 2.144) + 1e-5
    assert loop["nodes"] > 40 and loop["gap"] <= CLOSE
    assert check_decoder(composed("chain", COOL), TAU_0).verdict == "exact"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (composed(rule=here("DeepOnly")), "where 0.0000 is declared .* at depth 2"),
        (composed(rule=here("MiddleOnly")), "where 0.0000 is declared .* at depth ., position"),
        (composed(rule=COOL, loop=here("DeeperLoop")), "another bound than the rule gives"),
        (composed(rule=here("HalfBound")), "is declared"),
        (composed(rule=here("Generous")), "declares another output bound"),
    ],
)
def test_an_error_at_one_depth_or_place_and_a_wrong_output_bound_are_caught(spec, says, only):
    only("recorded_bound")
    found = check_decoder(spec, TAU_1)
    assert found.verdict == "broken"
    assert re.search(says, found.detail)


def test_a_rule_that_leaves_the_support_must_say_so():
    filtered = Sampling(temperature=1.0, cfg=2.0, top_k=500)
    silent = here("Outside", k=400, delta=0.6)
    for rule, error in ((silent, True), (verifying("lantern.Lantern", k=400), False)):
        case = GateCase(composed(rule=rule), filtered)
        found = node_law_check(case, node_trace(case))
        assert ("codes with p(x) = 0 are committed" in found.fault) == error
        assert found.evidence["outside"] > 0.01
