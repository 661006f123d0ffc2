"""Accepted lengths follow METHODS section 5; the output law of a node against enumeration by hand,
against sampling, and of exact rules; reliability of confidences."""

import numpy as np
import pytest
import torch

from decoders.api import CodeKind, Trace, VerifiedPairs
from decoders.models.random_weights import small_model
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from metrics import MetricError
from metrics.output_law import along, ordered_draws, output_law, output_tv
from metrics.traces import from_trace, image_acceptance, reliability, tv_shift_summary
from tests.exact.planted import finds

V = 7


def test_mean_accepted_length_with_and_without_the_bonus():
    """Two images of 8 codes: one steady, one whose last step is cut by the image's end."""
    step = torch.tensor([[0, 1, 1, 1, 2, 3, 3, 3], [0, 1, 1, 1, 1, 2, 2, 2]], dtype=torch.int32)
    zeros, calls = torch.zeros(2, 8), torch.tensor([3, 2], dtype=torch.int32)
    accepted = torch.tensor([[2, 0, 2], [3, 3, -1]], dtype=torch.int16)
    kind = zeros.to(torch.uint8)
    trace = Trace(
        kind=kind, step=step, depth=kind, tv_shift=zeros, bound=zeros, accepted=accepted,
        target_calls=calls, drafter_calls=calls,
    )  # fmt: skip
    first, second = from_trace(trace)
    assert first == {"nfe": 3, "mal": 7 / 3, "mal_no_bonus": 4 / 3}
    assert second == {"nfe": 2, "mal": 7 / 2, "mal_no_bonus": 6 / 2}


def test_traces_that_do_not_fit_are_refused():
    with pytest.raises(MetricError):
        image_acceptance([1, 1], [0, 1, 1, 2, 2], 3)  # three forwards, two steps
    with pytest.raises(MetricError):
        image_acceptance([3, 0], [0, 1, 1, 2], 2)  # three drafts accepted, two codes committed


EXACT, RELAXED = Exact(), Lantern(small_model(V, 2, 0), k=1, delta=0.5)
# No number as the residual where nothing is left of it.
UNDEFINED = finds(
    residual=lambda found, *_: torch.where(found.accept[..., None] == 1, torch.nan, found.residual)
)()
NO_NUMBER = finds(bound=lambda found, *_: torch.full_like(found.bound, torch.nan))()


STOOD = torch.zeros(5).long(), torch.zeros(5).long(), 1, torch.zeros(5).long()  # no rule asks


def pairs(stochastic: bool, count: int = 5, children: int = 3, seed: int = 0) -> VerifiedPairs:
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(count, V, generator=g).softmax(-1)
    q = (2 * torch.rand(count, V, generator=g)).softmax(-1) if stochastic else None
    if q is not None:
        q[:, 2] = 0
        q /= q.sum(-1, keepdim=True)
    tested = torch.stack([torch.randperm(V, generator=g)[:children] for _ in range(count)])
    valid = torch.ones(count, children, dtype=torch.bool)
    valid[0, 1:] = False
    valid[1:2] = False
    return VerifiedPairs(p, q, tested, valid, *STOOD)


@pytest.mark.parametrize("stochastic", [False, True])
def test_exact_rules_have_no_tv_even_where_a_residual_is_undefined(stochastic):
    made = pairs(stochastic)
    made.p[2] = 0
    made.p[2, made.children[2, 0]] = 1.0  # accepted for certain: nothing is left
    tv, declared, limit = output_tv(UNDEFINED, made)
    assert tv.shape == declared.shape == limit.shape == (5,)
    assert tv.max() < 1e-6
    assert declared.max() == 0
    assert limit.max() < 1e-6


def test_relaxed_deterministic_law_is_the_sequential_one():
    made = pairs(False)
    for row in range(len(made.p)):
        current, alive, want, kept = made.p[row], 1.0, torch.zeros(V), 1.0
        for x in made.children[row][made.valid[row]]:
            test = RELAXED.test(current, None, x)
            want[x] += alive * float(test.accept)
            alive *= 1 - float(test.accept)
            kept *= 1 - float(test.bound)
            current = test.residual
        law = output_law(RELAXED, made.p[row], None, made.children[row][made.valid[row]])
        assert law.out == pytest.approx((want + alive * current).double(), abs=1e-6)
        assert law.declared == pytest.approx(1 - kept, abs=1e-6)


@pytest.mark.parametrize("stochastic", [False, True])
def test_no_pairs_give_no_figures_and_what_is_no_number_an_error(stochastic):
    made = pairs(stochastic)
    q = None if made.q is None else made.q[:0]
    empty = VerifiedPairs(made.p[:0], q, made.children[:0], made.valid[:0], *STOOD)
    assert [figures.shape for figures in output_tv(EXACT, empty)] == [(0,)] * 3
    with pytest.raises(MetricError, match="answers NaN"):
        output_tv(NO_NUMBER, made)
    (made.p if q is None else made.q)[2] *= float("nan") if q is None else 1.1
    with pytest.raises(MetricError, match="is not a distribution"):
        output_tv(EXACT, made)


def test_the_output_tv_of_drawn_siblings_is_not_that_of_one_draft(monkeypatch):
    """The law of a node is that of all its children; where their draws are many, those that were
    recorded are followed."""
    made = pairs(True)
    made.children = torch.tensor([[0, 1, 3]] * 5)  # codes that q draws
    made.valid[:] = True
    tv, differ = output_tv(RELAXED, made)[0], []
    monkeypatch.setattr("metrics.output_law.MAX_DRAWS", 50)  # 6 * 5 * 4 are more
    followed = output_tv(RELAXED, made)[0]
    for row, (p, q) in enumerate(zip(made.p, made.q, strict=True)):
        law, one = (output_law(RELAXED, p, q, n) for n in (3, 1))
        assert float(tv[row]) == pytest.approx(law.tv, abs=1e-6)
        differ.append(abs(law.tv - one.tv))
        wanted = along(RELAXED, p, q, made.children[row])[0]
        assert float(followed[row]) == pytest.approx(wanted, abs=1e-6)
    assert max(differ) > 1e-3


@pytest.mark.parametrize("rule", [EXACT, RELAXED])
def test_along_recorded_siblings_the_tv_is_on_average_no_less_than_the_node_s(rule):
    """What stands in for the node's law where its draws are too many to enumerate."""
    made = pairs(True, count=2)
    for p, q in zip(made.p, made.q, strict=True):
        codes, weight = ordered_draws(q, 3)
        each = torch.tensor([along(rule, p, q, x) for x in codes], dtype=torch.float64)
        tv, _, limit = (weight @ each).tolist()
        law = output_law(rule, p, q, 3)
        assert law.tv - 1e-6 <= tv < law.tv + 0.1
        assert limit == pytest.approx(law.limit, abs=1e-6)
        assert along(rule, p, q, codes[0, :1])[0] == pytest.approx(output_law(rule, p, q, 1).tv)


def test_tv_shift_counts_tested_positions_only():
    kind = [[CodeKind.TARGET, CodeKind.DRAFT, CodeKind.RELAXED, CodeKind.BONUS, CodeKind.CORRECTED]]
    found = tv_shift_summary([[9.0, 0.0, 0.3, 9.0, 0.6]], [[0.0, 0.2, 0.4, 0.0, 0.4]], kind)
    assert found == pytest.approx((0.3, 0.6, 0.4))  # mean, largest, largest bound
    assert tv_shift_summary([0.0], [0.0], [CodeKind.TARGET]) == (0.0, 0.0, 0.0)


# ---- confidences --------------------------------------------------------------------------------

NONE = float("nan")  # no draft was tested
D, R, C, B = CodeKind.DRAFT, CodeKind.RELAXED, CodeKind.CORRECTED, CodeKind.BONUS


def test_a_draft_counts_at_its_depth_and_a_relaxed_one_as_rejected() -> None:
    kind = [CodeKind.TARGET, D, D, B, C, R, C]
    step = [0, 1, 1, 1, 2, 3, 3]
    sure = [NONE, 0.9, 0.7, NONE, 0.3, 0.5, 0.6]
    first, second = reliability([(kind, step, sure)])
    assert (first.depth, first.drafts, second.depth, second.drafts) == (1, 3, 2, 2)
    assert first.predicted == pytest.approx((0.9 + 0.3 + 0.5) / 3)
    assert first.accepted == pytest.approx(1 / 3)
    assert [b.accepted for b in first.bins] == [0, 0, 1]
    assert first.error == pytest.approx((0.3 + 0.5 + 0.1) / 3)
    assert second.error == pytest.approx((0.3 + 0.6) / 2)
    assert reliability([]) == reliability([(kind, step, [NONE] * 7)]) == []


def test_the_error_is_small_of_a_calibrated_drafter_and_its_bias_of_another() -> None:
    random = np.random.default_rng(0)
    sure = random.uniform(0.05, 0.75, 20_000)
    kind = np.where(random.uniform(size=20_000) < sure, D, C)
    step = np.arange(1, 20_001)
    (right,) = reliability([(kind, step, sure)])
    (wrong,) = reliability([(kind, step, sure + 0.2)])
    assert right.error < 0.02 and sum(b.drafts for b in right.bins) == 20_000
    assert wrong.error == pytest.approx(0.2, abs=0.02)


def test_what_is_no_confidence_is_named() -> None:
    with pytest.raises(MetricError, match="from 0 to 1"):
        reliability([([D], [1], [1.5])])
    with pytest.raises(MetricError, match=r"equal length, found \(1,\), \(2,\)"):
        reliability([([D], [1, 1], [0.5])])
