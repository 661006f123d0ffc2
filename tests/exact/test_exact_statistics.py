"""The gate's own instruments: do its tests keep still on the truth and speak up on an error?"""

import pytest
import torch

from bench.judge.gate import check_decoder, statistics
from bench.judge.gate.reference import image_law, processed, teacher_logits
from bench.judge.gate.small import GateCase, RealModel, prompts, small_model, small_spec
from bench.judge.gate.statistics import (
    draw_pvalues,
    excess_tv,
    prefix_pvalues,
    resolution,
)
from decoders.api import Sampling
from decoders.compose import DecoderSpec
from decoders.distribution import probabilities
from tests.exact.specs import AR, TAU_1, composed, lantern, verifying

MODEL = small_model(4, 2, 5)
TEXT = prompts(MODEL, 1, 5)
LAW = image_law(MODEL, TEXT, TAU_1)


def drawn(count: int, seed: int, law: torch.Tensor | None = None) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    cells = torch.multinomial(LAW.probability if law is None else law, count, True, generator=g)
    return cells[:, None] // 4 ** torch.arange(3, -1, -1) % 4


def test_pvalues_are_uniform_on_the_truth_and_vanish_on_an_error():
    found = torch.tensor([prefix_pvalues(LAW, drawn(4000, seed)) for seed in range(60)])
    assert float(found.mean()) == pytest.approx(0.5, abs=0.1)
    assert float(found.min()) > 1e-4
    wrong = LAW.probability.roll(1) * 0.1 + LAW.probability * 0.9
    codes = drawn(20_000, 1, wrong)
    assert min(prefix_pvalues(LAW, codes)) < 1e-9
    assert excess_tv(LAW, codes) > 0.03
    assert excess_tv(LAW, drawn(20_000, 2)) < 0.01


def test_an_impossible_code_is_never_explained_away():
    law = image_law(MODEL, TEXT, Sampling(cfg=2.0, top_k=2))
    impossible = int((law.probability == 0).nonzero()[0])
    codes = drawn(2000, 0, law.probability)
    assert min(prefix_pvalues(law, codes)) > 1e-4
    codes[0] = impossible // 4 ** torch.arange(3, -1, -1) % 4
    assert min(prefix_pvalues(law, codes)) == 0


def test_draws_are_still_on_the_truth_and_loud_on_an_error():
    g = torch.Generator().manual_seed(0)
    values, loud = [], []
    for _ in range(40):
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
    size = resolution(20_000, len(LAW.probability), 4)
    assert resolution(200_000, len(LAW.probability), 4) == pytest.approx(size / 10**0.5)
    wrong = LAW.probability.roll(1)
    share = size / (0.5 * float((wrong - LAW.probability).abs().sum()))
    codes = drawn(20_000, 1, (1 - share) * LAW.probability + share * wrong)
    assert min(prefix_pvalues(LAW, codes)) * 4 < 1e-4


def test_an_alarm_is_looked_at_twice_but_not_a_certain_one(monkeypatch):
    seen = []

    def sample(first):
        seen.append(first)
        return torch.zeros(1)

    for values, looks, kept in [([0.5], 1, 0.5), ([1e-6, 0.4], 2, 0.4), ([1e-6, 1e-7], 2, 1e-7),
                                ([1e-30], 1, 1e-30)]:  # fmt: skip
        seen.clear()
        left = iter(values)
        _, adjusted = statistics.tested(sample, lambda _, left=left: [next(left)])
        assert (len(seen), adjusted) == (looks, kept)
    _, adjusted = statistics.tested(sample, lambda _: [0.01, 1.0])
    assert adjusted == pytest.approx(0.02)  # of two tests


@pytest.mark.parametrize("cfg", [1.0, 2.0])
def test_the_teacher_agrees_with_ar_decoding(cfg):
    """Two independent ways to the same tokens: cache and training forward."""
    sampling = Sampling(temperature=0.0, cfg=cfg)
    found = check_decoder(DecoderSpec("ar", AR), sampling)
    assert found.verdict == "exact"
    model = small_model(24, 3, 1)
    text = prompts(model, 4, 1)
    codes = torch.randint(0, 24, (4, 9), generator=torch.Generator().manual_seed(0))
    changed = codes.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 24
    before, after = (teacher_logits(model, text, c, cfg) for c in (codes, changed))
    assert torch.equal(before[:, :6], after[:, :6])  # causal
    assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.5, top_k=5), Sampling(top_p=0.7),
     Sampling(temperature=2.0, top_k=9, top_p=0.9)],
)  # fmt: skip
def test_the_second_writing_of_the_filters_agrees(sampling):
    logits = 2 * torch.randn(50, 20, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(probabilities(logits, sampling).double(), processed(logits, sampling),
                          atol=1e-6)  # fmt: skip


def test_the_composition_is_scaled_and_otherwise_kept():
    model = small_model(64, 3, 0)
    spec = small_spec(composed("dynamic", lantern()), model, RealModel(1024))
    assert spec.acceptance.kwargs == {"k": 6, "delta": 0.2}
    assert spec.tree.kwargs == {"depth": 5, "top_k": 10, "nodes": 58}
    tiny = small_spec(composed("dynamic", lantern()), MODEL, RealModel(1024))
    assert tiny.acceptance.kwargs["k"] == 1
    assert tiny.tree.kwargs == {"depth": 3, "top_k": 2, "nodes": 5}
    default = verifying("lantern.Lantern")  # k = 1,000 where none is given
    assert small_spec(composed("chain", default), model, RealModel(1024)).acceptance.kwargs == {
        "k": 62
    }
    spec = composed()
    assert GateCase(spec, Sampling(top_k=1000), RealModel(16384)).filters(64).top_k == 4
    assert GateCase(spec, TAU_1).filters(64) == TAU_1
