"""What a value may be: kinds, ranges, and the annotations of parts that nobody here wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from decoders.api import DecoderError
from decoders.compose import PartSpec, build_part
from decoders.kinds import Seed, Within, hints_of, validate

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
    ("value", "hint", "found"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (None, int | None, None),
        (2**63 - 1, Seed, 2**63 - 1),
        ([1, 2], Sequence[int], [1, 2]),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        ("/x", Path, Path("/x")),
        (object, Any, object),
        ("a", Literal["a", "b"], "a"),
    ],
)
def test_what_fits_is_taken(value: Any, hint: Any, found: Any) -> None:
    assert validate("x", value, hint) == found


@pytest.mark.parametrize(
    ("value", "hint", "says"),
    [
        (True, int, "x must be an integer, found True"),
        (-math.inf, float | None, "a finite number, found -inf"),
        (10**1000, int, "64 bits"),
        ("a\0b", str, "NUL"),
        ([[0], [True]], str | Sequence[Sequence[int]], r"x\[1\]\[0\] must be an integer"),
        (3, str | Sequence[int], "a string or a list, found 3"),
        ({"a": "b"}, dict[str, int], "x.a must be an integer"),
        ("c", Literal["a", "b"], "must be 'a' or 'b', found 'c'"),
        (0.0, Annotated[float, Within(0, 1, above=True)], "above 0, found 0.0"),
        (11, Annotated[int, Within(1, 10)] | None, "at most 10, found 11"),
        (7, Path, "a string, found 7"),
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
        with pytest.raises(DecoderError, match=f"{next(iter(wrong))}.* must"):
            build_part(PartSpec(here, wrong), model)


def test_an_object_of_a_file_becomes_a_dataclass() -> None:
    assert validate("f", {"width": 3, "widths": [1, 2]}, Shape) == Shape(3, (1, 2))
    for values, says in (
        ({}, "f.width is missing"),
        ({"wdith": 3}, "did you mean 'f.width'"),
        ({"width": 0}, "f.width must be at least 1"),
        ([1], "f must be a mapping"),
    ):
        with pytest.raises(DecoderError, match=says):
            validate("f", values, Shape)
