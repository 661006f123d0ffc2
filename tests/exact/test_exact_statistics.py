"""The gate's own instruments: do its tests keep still on the truth and speak up on an error?"""

import pytest
import torch

from bench.gate.reference import ar_probabilities
from bench.gate.sampled import ALARM, MISSED, sample_and_test
from bench.gate.small import GateCase, RealModel
from decoders.api import Sampling
from decoders.models.random_weights import random_prompts, small_model
from metrics.output_law import draw_pvalues, pearson, resolution
from tests.exact.specs import TAU_1, composed, lantern, verifying

MODEL = small_model(4, 2, 5)
IMAGES = torch.cartesian_prod(*[torch.arange(4)] * 4)  # [256, 4]
LAW = ar_probabilities(MODEL, random_prompts(MODEL, 1, 5), IMAGES, TAU_1).prod(-1)  # [256]


def drawn(count: int, seed: int, law: torch.Tensor = LAW) -> torch.Tensor:
    """How often each image is drawn."""
    g = torch.Generator().manual_seed(seed)
    return torch.bincount(torch.multinomial(law, count, True, generator=g), minlength=256)


def test_pvalues_are_uniform_on_the_truth_and_vanish_on_an_error():
    assert float(LAW.sum()) == pytest.approx(1)
    found = torch.tensor([pearson(drawn(4000, seed), 4000 * LAW) for seed in range(60)])
    assert float(found.mean()) == pytest.approx(0.5, abs=0.1)
    assert float(found.min()) > 1e-4
    wrong = drawn(20_000, 1, LAW.roll(1) * 0.1 + LAW * 0.9)
    assert pearson(wrong, 20_000 * LAW) < 1e-9


def test_draws_are_still_on_the_truth_and_loud_on_an_error():
    g = torch.Generator().manual_seed(0)
    values, loud = [], []
    for _ in range(20):
        p = torch.randn(3000, 100, generator=g, dtype=torch.float64).softmax(-1)
        sharper, favoured = p**1.15, p.clone()
        favoured[:, 7] *= 3
        draws = [torch.multinomial(law, 1, generator=g)[:, 0] for law in (p, sharper, favoured)]
        each = [draw_pvalues([(p, codes)]) for codes in draws]  # of groups, of ranks
        values.append(each[0])
        loud.append([each[1][1], each[2][0]])
    assert torch.tensor(values).mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.17)
    assert min(map(min, values)) > 1e-4
    assert torch.tensor(loud).median(0).values.max() < 1e-3
    p[0] = torch.nan
    assert draw_pvalues([(p, draws[0])]) == [0]


def test_the_resolution_is_a_tv_that_is_found():
    """An error of that size is loud in so many samples; ten times as many see a third of it."""
    size = resolution(20_000, len(LAW), 4, ALARM, MISSED)
    assert resolution(200_000, len(LAW), 4, ALARM, MISSED) == pytest.approx(size / 10**0.5)
    wrong = LAW.roll(1)
    share = size / (0.5 * float((wrong - LAW).abs().sum()))
    counts = drawn(20_000, 1, (1 - share) * LAW + share * wrong)
    assert pearson(counts, 20_000 * LAW) * 4 < 1e-4


def test_an_alarm_is_looked_at_twice_but_not_a_certain_one():
    seen = []

    def sample():
        seen.append(1)
        return torch.zeros(1)

    for values, looks, kept in [([0.5], 1, 0.5), ([1e-6, 0.4], 2, 0.4), ([1e-6, 1e-7], 2, 1e-7),
                                ([1e-30], 1, 1e-30)]:  # fmt: skip
        seen.clear()
        left = iter(values)
        _, adjusted = sample_and_test(sample, lambda _, left=left: [next(left)])
        assert (len(seen), adjusted) == (looks, kept)
    _, adjusted = sample_and_test(sample, lambda _: [0.01, 1.0])
    assert adjusted == pytest.approx(0.02)  # of two tests


def test_the_composition_is_scaled_and_otherwise_kept():
    model = small_model(64, 3, 0)
    spec = GateCase(composed("dynamic", lantern()), TAU_1).small_spec(model)
    assert spec.acceptance.kwargs == {"k": 6, "delta": 0.2}
    assert spec.tree.kwargs == {"depth": 5, "top_k": 10, "nodes": 58}
    tiny = GateCase(composed("dynamic", lantern()), TAU_1).small_spec(MODEL)
    assert tiny.acceptance.kwargs["k"] == 1
    assert tiny.tree.kwargs == {"depth": 3, "top_k": 2, "nodes": 5}
    default = composed("chain", verifying("lantern.Lantern"))  # k = 1,000 where none is given
    assert GateCase(default, TAU_1).small_spec(model).acceptance.kwargs == {"k": 62}
    spec = composed()
    assert GateCase(spec, Sampling(top_k=1000), RealModel(16384)).filters(64).top_k == 4
    assert GateCase(spec, TAU_1).filters(64) == TAU_1
