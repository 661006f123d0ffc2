"""What a value may be, by the annotation of whoever takes it: pydantic, strict, with our messages.

Settings, keywords of plug-ins and entries of JSON files all come from outside. An annotation such
as `Annotated[int, Within(1)]` says what they must be. Two rules hold everywhere: a number is
finite, and a whole number fits into 64 bits.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union

from annotated_types import Interval

from decoders.nearest import did_you_mean, unknown

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")
MOST_WHOLE = 2**63 - 1  # what tables, files and seeds can hold


class KindError(ValueError):
    """A value of another kind or outside its range."""


def Within(
    least: float | None = None,
    most: float | None = None,
    above: bool = False,
    below: bool = False,
) -> Interval:
    """A range of numbers; `above`, `below`: without its ends."""
    low = {"gt" if above else "ge": least}
    return Interval(**low, **{"lt" if below else "le": most})


Count = Annotated[int, Within(1, 10**9)]
Amount = Annotated[int, Within(0, 10**9)]
Seed = Annotated[int, Within(0, MOST_WHOLE)]
NotNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
Share = Annotated[float, Within(0, 1)]

KINDS = {  # pydantic's word for a wrong kind, without `_type` and `_parsing`
    "int": "an integer", "float": "a number", "string": "a string", "bool": "true or false",
    "dict": "a mapping", "mapping": "a mapping", "dataclass": "a mapping", "list": "a list",
    "tuple": "a list", "is_instance_of": "a list", "path": "a path", "none_required": "null",
    "finite_number": "a finite number", "string_pattern_mismatch": "text without NUL",
}  # fmt: skip
RANGES = {
    "greater_than": ("above", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip


def fitted(where: str, value: Any, hint: Any) -> Any:
    """`value` as a `hint`; `where` names it in messages. An integer is taken for a float, a list
    for a tuple. Classes that are not of a configuration's kinds are their owner's business. Raises
    KindError."""
    from pydantic import ValidationError

    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        raise KindError(message(where, value, error)) from error


@functools.cache
def _cached(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(_strict(hint), config=ConfigDict(arbitrary_types_allowed=True))


def _adapter(hint: Any) -> Any:
    try:
        return _cached(hint)
    except TypeError:  # a hint that cannot be hashed
        return _cached.__wrapped__(hint)


def _strict(hint: Any) -> Any:
    """The hint as pydantic is asked: scalars are of their own kind, finite and of 64 bits."""
    from pydantic import AllowInfNan, Strict, StringConstraints

    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is int:
        return Annotated[int, Strict(), Interval(ge=-MOST_WHOLE, le=MOST_WHOLE)]
    if hint is float:
        return Annotated[float, Strict(), AllowInfNan(False)]
    if hint is str:
        return Annotated[str, StringConstraints(strict=True, pattern=r"^[^\x00]*$")]
    if hint is bool:
        return Annotated[bool, Strict()]
    if origin is Annotated:
        return Annotated[_strict(inner[0]), *inner[1:]]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_strict, inner))]  # noqa: UP007
    if origin is Literal or hint in (None, type(None)):
        return hint
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return kind
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return dict[Any, _strict(inner[1] if inner else Any)]  # type: ignore[misc]
    if kind in (list, tuple, Sequence):
        item = _strict(inner[0] if inner else Any)
        return tuple[item, ...] if kind is tuple else kind[item]  # type: ignore[valid-type]
    return Any


def message(where: str, value: Any, error: ValidationError) -> str:
    """What was expected and found, of the part of `value` deepest inside: that says more than that
    its list is no string. where: names the value, "" for none."""
    placed = [(*_place(where, value, one["loc"]), one) for one in error.errors(include_url=False)]
    deepest = max(depth for _, depth, _ in placed)
    place, _, first = next(one for one in placed if one[1] == deepest)
    words, found = dict[str, None](), first["input"]
    for one in (one for _, depth, one in placed if depth == deepest):
        kind, context = one["type"], one.get("ctx", {})
        if kind == "missing":
            return f"{place}.{one['loc'][-1]} is missing; give it a value".removeprefix(".")
        if kind in RANGES:
            word, bound = RANGES[kind][0], context[RANGES[kind][1]]
            bound = int(bound) if bound == int(bound) else bound
            words = {f"{word} {bound:,}" + " (64 bits)" * (abs(bound) == MOST_WHOLE): None}
            break
        if kind == "literal_error":
            names = context["expected"].replace("'", "").replace(" or ", ", ")
            words[f"one of {names}"] = None
        else:
            words[KINDS.get(kind.removesuffix("_type").removesuffix("_parsing"), one["msg"])] = None
    names = [name for word in words if word[:6] == "one of" for name in word[7:].split(", ")]
    near = did_you_mean(found, names) if isinstance(found, str) and names else ""
    kinds, shown = " or ".join(words), _short(found)
    return (
        f"{place.removeprefix('.')} must be {kinds}, found {shown} ({type(found).__name__}){near}"
    )


def _place(where: str, value: Any, loc: Sequence[Any]) -> tuple[str, int]:
    """(`x[1].name`, how deep that is) of pydantic's place, which names branches of unions too."""
    depth = 0
    for step in loc:
        if isinstance(value, Mapping) and step in value:
            where, value, depth = f"{where}.{step}", value[step], depth + 1
        elif isinstance(value, list | tuple) and isinstance(step, int):
            where, value, depth = f"{where}[{step}]", value[step], depth + 1
    return where, depth


def _short(value: Any) -> str:
    """A value for a message: a number of ten thousand digits cannot even be printed."""
    if type(value) is int and abs(value) > 10**30:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a class's (or function's) parameters. Those that cannot be resolved (a
    name that is imported for type checkers alone) are left out, so they are not judged."""
    own = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    own = inspect.unwrap(own.func if isinstance(own, functools.partial) else own)
    raw = getattr(own, "__annotations__", {})
    scope = getattr(own, "__globals__", {})
    found: dict[str, Any] = {}
    for name, hint in raw.items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            found |= typing.get_type_hints(alone, scope, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError):
            continue
    return found


def require(config: Any, where: str, error: type[Exception] = KindError) -> None:
    """Asks of every field of a dataclass what its annotation says; `where`: what messages put
    before a field's name, a dot included. For `__post_init__`, so that no way to make one is
    unchecked. Raises `error`."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    try:
        for name, hint in hints.items():
            fitted(f"{where}{name}", getattr(config, name), hint)
    except KindError as wrong:
        raise error(str(wrong)) from wrong


def built(
    cls: type[T], values: Any, where: str, check: Callable[[str, Any, Any], Any] = fitted
) -> T:
    """The dataclass `cls` from a mapping: no unknown key, none missing, each as it is annotated.
    check: in the place of `fitted`. Raises KindError, and what `cls` itself refuses."""
    return cls(**fields_of(cls, values, where, check))


def fields_of(
    cls: type[Any], values: Any, where: str, check: Callable[[str, Any, Any], Any] = fitted
) -> dict[str, Any]:
    """The fields of a dataclass that is still to be made; see `built`."""
    hints, under = hints_of(cls), f" under `{where}`" if where else ""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    given = check(where, values, dict[str, Any])
    for key in given:
        if key not in fields:
            raise KindError(unknown(f"setting{under}", str(key), fields))
    place = f"{where}." if where else ""
    for key, spec in fields.items():
        bare = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if bare and key not in given:
            raise KindError(f"{place}{key} is missing; give it a value")
    return {key: check(f"{place}{key}", given[key], hints.get(key, Any)) for key in given}


def entries(found: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An object of a file whose keys are others' to name: those in `known` are checked (null means
    not given), the rest is passed on. Raises KindError."""
    given = {key: value for key, value in found.items() if value is not None or key not in known}
    return {
        key: fitted(f"{where}: {key}", value, known[key]) if key in known else value
        for key, value in given.items()
    }
