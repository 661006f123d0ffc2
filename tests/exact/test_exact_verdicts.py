"""What the gate says of the decoders of this repository, and that it says so for good reason.

The small codebooks cut the tree of 57 nodes to about that of 25, so that one of them is enough.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from bench.config.compose import compose_study
from bench.gate import RealModel, check_decoder
from bench.gate.laws import node_law_check
from bench.gate.long_images import CLOSE_BOUND, LongImages
from bench.gate.small import GateCase
from bench.gate.whole_law import whole_law
from decoders.api import DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec
from decoders.loops.zipar import ZipAR
from decoders.models.random_weights import random_model
from decoders.propose.drafters.medusa import MedusaLearner
from tests.exact.specs import (
    AR,
    SMALL,
    TAU_0,
    TAU_1,
    check,
    composed,
    drafting,
    lantern,
    lantern_pp,
    large,
    part,
    planting,
    proposing,
    ruling,
    verifying,
    window,
)

PLAIN, COOL = DecoderSpec("ar", AR), verifying("cool_sd.CoolSD", delta=1.5)
PRUNED = replace(composed(planting("dynamic.Dynamic", depth=3, top_k=4, nodes=12)), name="dynamic")


@pytest.mark.parametrize("spec", [PLAIN, PRUNED], ids=lambda s: s.name)
def test_exact_decoders_are_exact(spec):
    found = check_decoder(spec, TAU_1)
    assert (found.word, found.figure) == ("exact", 0.0), found
    if spec.acceptance is not None:
        assert check(found, "node law").count > 50
    laws = [check(found, f"{name} law") for name in ("whole", "position")]
    assert all(law.unfollowed < 1e-9 and law.tv < 1e-5 for law in laws)
    for looked in ("images of 3**4", "144 positions", "17 images in other batches"):
        assert looked in found.detail
    assert check(found, "wide").count == 1024


def test_greedy_decoders_give_the_tokens_of_greedy_ar():
    found = check_decoder(composed("static_25"), TAU_0, sizes=large("greedy codes"))
    assert (found.word, found.figure) == ("exact", 0.0), found
    assert check(found, "greedy").count == 64
    # Drafts were accepted, so equality is no empty claim.
    assert check(found, "greedy").drafts > 0.1


def test_a_wide_window_is_exact_where_not_all_is_followed(only, monkeypatch):
    """Guided images of a window of 16, and drafts of 1,024 codes with siblings, have more ways than
    are followed, which are few here."""
    monkeypatch.setattr("bench.gate.sampled.MOST_ROWS", 1024)
    monkeypatch.setattr("bench.gate.whole_law.whole_law", partial(whole_law, most=1024))
    jacobi = proposing("jacobi.Jacobi", window=16)
    small = replace(SMALL, guided=(3, 12, 3))
    found = check_decoder(window(jacobi), replace(TAU_1, top_k=500), sizes=small)
    assert check(found, "guided law").unfollowed > 1e-3
    assert found.word == "exact", found
    only("wide")
    pac = proposing("pac.Pac", window=16, candidates=2)
    found = check_decoder(window(pac), replace(TAU_1, top_k=500), sizes=large("wide"))
    assert found.word.startswith("exact"), found
    assert check(found, "wide").count == 1024


def test_filters_without_guidance_are_exact_too(only):
    only("whole law")
    sampling = Sampling(temperature=0.7, top_k=500, top_p=0.9)
    found = check_decoder(composed("small"), sampling)
    assert found.word == "exact" and "images of 3**4" in found.detail


def test_drawn_drafts_move_more_than_lantern_pp_declares(only):
    """p_A differs from draft to draft, so the law over drafts is no single p_A (METHODS 4)."""
    only("node law")
    found = check_decoder(composed("small", lantern_pp()), TAU_1)
    assert (found.word, found.text) == ("relaxed", "relaxed")
    assert found.detail.startswith("At temperature 1, guidance 2: output TV up to ")
    assert "within lemma R's bound" in found.detail
    assert re.search(r"TV\(p, p_A\) is declared .* where the output is 0", found.detail)
    assert found.figure > 0.1
    law = check(found, "node law").beyond.law
    assert law.declared < law.tv <= law.limit + 1e-5


SPECDEC = drafting("specdec.SpecDec")
RULES = {  # the spec, the sampling, the verdict, and the least figure
    "lantern": (composed("dynamic", lantern()), TAU_1, "relaxed", 0.1),
    "its released residual": (
        composed("dynamic", lantern(residual="released")), TAU_1, "broken", 0.2,
    ),
    "that of lantern_pp": (
        composed("static_25", lantern_pp(residual="released")), TAU_1, "broken", 0.2,
    ),
    # At temperature 0 the residual plays no part.
    "lantern, greedy": (composed("dynamic", lantern(residual="released")), TAU_0, "relaxed", 0),
    "lantern_pp, greedy": (composed("small", lantern_pp()), TAU_0, "relaxed", 0),
    "specdec": (
        composed(rule=verifying("specdec.SpecVerification"), drafter=SPECDEC), TAU_1, "relaxed", 0,
    ),
    "specdec, greedy": (
        composed(rule=verifying("specdec.SpecVerification"), drafter=SPECDEC), TAU_0, "relaxed", 0,
    ),
    "specdec of one code": (
        composed(rule=verifying("specdec.SpecVerification", beta=1), drafter=SPECDEC),
        TAU_0, "exact", -1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_relaxed_rules_are_called_what_they_are(name):
    spec, sampling, verdict, least = RULES[name]
    found = check_decoder(spec, sampling, sizes=SMALL)
    assert found.word == verdict and least < found.figure <= 1, found
    if verdict == "broken":
        assert "is exceeded" in found.detail and "norm((p - q a)+)" in found.detail
    else:  # the figure is of a small random model: no headline
        assert found.text == verdict
    if name == "lantern":
        assert found.figure <= check(found, "node law").bound


def test_a_rule_that_depends_on_the_depth_is_judged_at_every_depth(only):
    only("recorded_bound")
    found = check_decoder(composed("chain", COOL), TAU_1)
    assert found.text == "relaxed" and "lemma R's bound, which the rule declares" in found.detail
    worst, loop = check(found, "node law").worst, check(found, "loop")
    assert worst.spot.depth == 0  # omega is largest there
    assert 0.2 < worst.law.tv <= 1 - 1 / (1.5 * 2.144) + 1e-5
    assert loop.count > 40 and loop.gap <= CLOSE_BOUND
    assert check_decoder(composed("chain", COOL), TAU_0).word == "exact"


def test_a_rule_that_leaves_the_support_must_say_so():
    filtered = Sampling(temperature=1.0, cfg=2.0, top_k=500)
    silent = ruling("OutsideUnsaid", k=400, delta=0.6)
    for rule, error in ((silent, True), (verifying("lantern.Lantern", k=400), False)):
        case = GateCase(composed(rule=rule), filtered, sizes=SMALL)
        found = node_law_check(case, LongImages.of(case).done.trace)
        assert ("codes with p(x) = 0 are committed" in found.fault) == error
        assert found.outside > 0.01


# ---- loops that claim no law, and other targets -------------------------------------------------


@pytest.mark.parametrize("sampling", [TAU_1, TAU_0], ids=["sampled", "greedy"])
def test_another_target_is_no_tv_away_and_its_loop_is_exact_on_one_like_all_others(sampling):
    (entry,) = compose_study(["study=smoke", "decoders=[par]"]).decoders
    found = check_decoder(entry.spec, sampling, sizes=SMALL)
    assert (found.word, entry.expect) == ("relaxed", "relaxed"), found
    assert found.text == "relaxed (target changed)" and math.isnan(found.figure)
    assert found.detail.startswith("Codes are another target's")
    if sampling is TAU_1:
        assert "images follow the AR law" in found.detail


@pytest.mark.parametrize(
    ("name", "words", "least"),
    [
        ("zipar", "images of 3**4 do not follow the AR law: TV 0.", 0.12),
        ("pjd", "images of 3**4 do not follow the AR law: TV 0.", 0.1),
        ("vvs", "output TV up to 0.6", 0.6),
    ],
)
def test_a_loop_that_claims_no_law_is_relaxed_and_its_distance_is_named(name, words, least):
    (entry,) = compose_study(["study=smoke", f"decoders=[{name}]"]).decoders
    found = check_decoder(entry.spec, TAU_1, sizes=SMALL)
    assert (found.word, entry.expect) == ("relaxed", "relaxed"), found
    assert "the loop claims nothing of its codes' law" in found.detail and words in found.detail
    assert least < found.figure < 1
    assert check_decoder(entry.spec, TAU_0, sizes=SMALL).word == "relaxed"


class Boundless(ZipAR):
    """Declares no number."""

    @torch.inference_mode()
    def generate(self, *args, **options):
        made = super().generate(*args, **options)
        made.trace.bound.fill_(float("nan"))
        return made


def test_a_loop_that_claims_no_law_is_broken_where_what_it_says_is_no_number():
    found = check_decoder(DecoderSpec("x", PartSpec(f"{__name__}.Boundless")), TAU_0, sizes=SMALL)
    assert found.word == "broken"
    assert "the rule's TV shift or its bound is not finite" in found.detail


# ---- a trained drafter: its class is built small, without its weights ---------------------------

MODEL = random_model(vocab=40, grid=5, width=32)


@pytest.mark.parametrize("sampling", [TAU_0, TAU_1], ids=["greedy", "sampled"])
def test_a_trained_medusa_is_exact(sampling, tmp_path):
    learner = MedusaLearner(MODEL, heads=5)  # a small tree has no use for so many
    learner.save(tmp_path / "drafter")
    drafter = drafting("medusa.Medusa", checkpoint=str(tmp_path / "drafter"))
    found = check_decoder(composed(drafter=drafter), sampling, RealModel.of(MODEL), SMALL)
    assert found.word == "exact", found
    assert "its drafter untrained" in found.detail


class Rigid:
    """A drafter that reads its logits from a file."""

    def __init__(self, model, weights: str):
        self.logits = torch.load(weights, weights_only=True)


def test_a_drafter_that_cannot_be_built_without_its_weights_is_told_what_to_do(tmp_path):
    torch.save(torch.randn(40), tmp_path / "weights.pt")
    spec = composed(drafter=part(__name__, "Rigid", weights=str(tmp_path / "weights.pt")))
    with pytest.raises(DecoderError, match="default of None"):
        check_decoder(spec, TAU_1, RealModel.of(MODEL))
