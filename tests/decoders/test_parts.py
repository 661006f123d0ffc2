"""What a value may be: kinds, ranges, and the annotations of parts that nobody here wrote.
Composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from decoders.api import DecoderError
from decoders.compose import PartSpec, build_part, resolve
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


@pytest.mark.parametrize(("path", "changes", "label"), [
    ("verify.lantern.LanternPP", {"metric": "random", "seed": 1},
     "lantern_pp(k=3, lambda=2, residual=paper, random, seed=1)"),
    ("verify.lantern.Lantern", {"metric": "cosine", "distance": "jsd"},
     "lantern(k=3, delta=0.2, residual=paper, cosine, jsd)"),
    ("propose.trees.opt.Opt", {"top_k": 8}, "opt(theta=0.5, depth=10, nodes=60, top_k=8)"),
])  # fmt: skip
def test_decoders_that_differ_have_different_labels(path, changes, label):
    """What is the default is not shown, so labels of older runs stay as they are."""
    usual = {"k": 3} if "lantern" in path else {}
    parts = [PartSpec(f"decoders.{path}", usual | more) for more in ({}, changes)]
    one, other = (str(build_part(part, random_model())) for part in parts)
    assert other == label and label.startswith(one.removesuffix(")") + ", ")


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
