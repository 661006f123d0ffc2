"""Distributions and composition."""

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.compose import PartSpec, build_part, resolve
from decoders.distribution import guided, probabilities
from decoders.models.small import random_model

# ---- distributions ------------------------------------------------------------------------------


def test_guidance():
    logits = torch.tensor([[[1.0, 2.0]], [[3.0, 1.0]]], dtype=torch.bfloat16)
    result = guided(logits, 3.0)
    assert result.dtype == torch.float32
    assert result.tolist() == [[[3 + 3 * (1 - 3), 1 + 3 * (2 - 1)]]]
    assert torch.equal(guided(logits, 1.0), logits.float())


def test_filters():
    logits = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    p = probabilities(logits, Sampling(top_k=2))
    assert (p > 0).tolist() == [True, True, False, False, False]
    assert float(p.sum()) == pytest.approx(1.0)
    full = logits.softmax(-1)
    keep = Sampling(top_p=float(full[:2].sum()) - 1e-3)
    assert (probabilities(logits, keep) > 0).tolist() == [True, True, False, False, False]
    assert (probabilities(logits, Sampling(top_p=1e-6)) > 0).sum() == 1  # the best always stays
    torch.testing.assert_close(probabilities(logits, Sampling(temperature=2.0)),
                               (logits / 2).softmax(-1))  # fmt: skip
    greedy = Sampling(temperature=0.0, top_k=1, top_p=0.1)
    torch.testing.assert_close(probabilities(logits, greedy), full)  # raw


@pytest.mark.parametrize(
    ("setting", "far"),
    [("temperature", 1e-38), ("temperature", 1e-300), ("cfg", 1e38), ("top_p", 1e-46)],
)
def test_what_float32_cannot_hold_is_refused_by_its_name(setting: str, far: float) -> None:
    """And not met as NaN, which would be taken for the checkpoint's."""
    with pytest.raises(DecoderError, match=rf"sampling\.{setting} must be .*found 1e"):
        Sampling(**{setting: far})


def test_the_ends_of_the_ranges_are_finite() -> None:
    logits = torch.tensor([[[90.0, -80.0, 3.0]], [[-90.0, 60.0, 3.0]]])
    for sampling in (Sampling(1e-6), Sampling(1e30), Sampling(cfg=1e6), Sampling(top_p=1e-6)):
        p = probabilities(guided(logits, sampling.cfg), sampling)
        assert torch.isfinite(p).all() and torch.allclose(p.sum(-1), torch.ones(()))


# ---- composition --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("decoders.verify.lantern.Lanterm", "did you mean 'Lantern'"),
        ("decoders.verify.lanterm.Lantern", "did you mean 'lantern'"),
        ("Lantern", "names no class"),
        ("decoders.nothing.here:Thing", "cannot import"),
    ],
)
def test_unknown_parts_name_their_nearest(path, says):
    with pytest.raises(DecoderError, match=says):
        resolve(path)
    chain = "decoders.propose.trees.chain"
    assert resolve(f"{chain}.Chain") is resolve(f"{chain}:Chain")


def test_a_module_that_is_not_found_is_told_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_drafter_of_mine.py").write_text("import nothing_of_the_kind\n")
    for path, says in (
        ("a_drafter_of_mind.Marginal", f"_of_mine'.*Looked in {tmp_path}.*PYTHONPATH=DIR"),
        ("a_drafter_of_mine.Marginal", "nothing_of_the_kind.*mend the file"),
        ("decoders.propose.trees.nothing.Thing", r"Looked in \S+/decoders/propose/trees$"),
    ):
        with pytest.raises(DecoderError, match=says):
            resolve(path)


def test_an_unknown_option_names_its_nearest_and_all():
    part = PartSpec("decoders.verify.lantern.Lantern", {"detla": 0.1})
    with pytest.raises(
        DecoderError, match=r"Lantern 'detla'; did you mean 'delta'. Known: delta, k,"
    ):
        build_part(part, random_model())


@pytest.mark.parametrize(
    ("name", "change"),
    [("width", {"width": 16}), ("vocab", {"vocab": 9}), ("length", {"grid": 3})],
)
def test_a_drafter_of_another_target_is_refused(name, change):
    target, other = random_model(vocab=8), random_model(**{"vocab": 8, **change})
    target.drafters["eagle"] = other.drafters["eagle"]
    part = PartSpec("decoders.propose.drafters.eagle.Eagle")
    with pytest.raises(DecoderError, match=f"do not fit: {name}: drafter"):
        build_part(part, target)
