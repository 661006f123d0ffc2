"""What a value may be: kinds, ranges, and the annotations of parts that nobody here wrote.
Distributions and composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.compose import PartSpec, build_part, resolve
from decoders.distribution import guided, probabilities
from decoders.kinds import Within, hints_of, validate
from decoders.models.random_weights import random_model

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


class Plain:
    """A plug-in whose annotations cannot all be resolved."""

    def __init__(
        self,
        model: Unknown,
        width: int = 3,
        paths: str | Sequence[Sequence[int]] = "x",
        own: Unknown = None,
        depth: int = None,  # type: ignore[assignment]  # noqa: RUF013
        mode: Literal["a", "b"] = "a",
    ) -> None:
        self.width = width


@dataclass(frozen=True)
class Shape:
    width: Annotated[int, Within(1, 10)]
    widths: tuple[int, ...] = (1,)
    rate: Annotated[float, Within(0, 1, above=True)] | None = None


@pytest.mark.parametrize(
    ("value", "hint", "says"),
    [
        (True, int, "x: .* integer, found True"),
        (-math.inf, float | None, "x: .* finite number, found -inf"),
        (10**1000, int, "64 bits"),
        ("a\0b", str, "NUL"),
        ([[0], [True]], str | Sequence[Sequence[int]], "x: .* integer, found True"),
        (3, str | Sequence[int], "x: .*string or .*array, found 3"),
        ({"a": "b"}, dict[str, int], "x: .* integer, found 'b'"),
        ("c", Literal["a", "b"], "x: .*'a' or 'b', found 'c'"),
        (0.0, Annotated[float, Within(0, 1, above=True)], "x: .*greater than 0, found 0.0"),
        (11, Annotated[int, Within(1, 10)] | None, "x: .* 10, found 11"),
        (False, str, 'found False .*write "off"'),
        (7, Path, "x: .*, found 7"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, hint: Any, says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        validate("x", value, hint)


def test_a_part_is_judged_by_its_own_annotations() -> None:
    assert "own" not in hints_of(Plain) and "width" in hints_of(Plain)
    model: Any = None
    here = f"{__name__}.Plain"
    kept = {"own": object(), "depth": None, "mode": "b", "paths": [[0]]}
    assert build_part(PartSpec(here, {"width": 4, **kept}), model).width == 4
    for wrong in ({"width": True}, {"width": 2**70}, {"paths": [[0.5]]}, {"mode": "c"}):
        with pytest.raises(DecoderError, match=f"{next(iter(wrong))}: .*, found"):
            build_part(PartSpec(here, wrong), model)


def test_an_object_of_a_file_becomes_a_dataclass() -> None:
    assert validate("f", {"width": 3, "widths": [1, 2]}, Shape) == Shape(3, (1, 2))
    for values, says in (
        ({}, "f.width is missing"),
        ({"wdith": 3}, "did you mean 'f.width'"),
        ({"width": 0}, "f.width: .* 1, found 0"),
        ([1], r"f: .*, found \[1\]"),
    ):
        with pytest.raises(DecoderError, match=says):
            validate("f", values, Shape)


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
    with pytest.raises(DecoderError, match=rf"sampling\.{setting}.*found 1e"):
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
        ("a_drafter_of_mind.Marginal", r"_of_mine'.*Looked in \S*places.*PYTHONPATH=DIR"),
        ("a_drafter_of_mine.Marginal", "nothing_of_the_kind.*mend the file"),
        ("decoders.propose.trees.nothing.Thing", r"Looked in \S+/decoders/propose/trees$"),
    ],
)
def test_what_is_not_found_is_named_with_its_nearest_and_where_it_was_looked_for(
    path, says, tmp_path, monkeypatch
):
    (tmp_path / "places").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "places"))
    (tmp_path / "places" / "a_drafter_of_mine.py").write_text("import nothing_of_the_kind\n")
    with pytest.raises(DecoderError, match=says):
        resolve(path)


def test_a_class_is_named_behind_a_dot_or_a_colon():
    chain = "decoders.propose.trees.chain"
    assert resolve(f"{chain}.Chain") is resolve(f"{chain}:Chain")


def test_an_unknown_option_names_its_nearest_and_all():
    part = PartSpec("decoders.verify.lantern.Lantern", {"detla": 0.1})
    says = r"Lantern 'detla'; did you mean 'delta'. Known: delta, "
    with pytest.raises(DecoderError, match=says):
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
