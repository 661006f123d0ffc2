"""What a value may be: its kind, its range, its size; read off the annotations of whoever takes it.

Why one mechanism: settings, keywords of plug-ins and entries of JSON files all come from outside,
and each would else need its own tests for NaN, for 2**70, for a boolean where a number stands.
`Annotated[int, Within(1)]` says what else than its kind a value must be. Two rules hold everywhere:
a number is finite, and a whole number fits into 64 bits. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar, Union

T = TypeVar("T")
MOST_WHOLE = 2**63 - 1  # what tables, files and seeds can hold
WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    type(None): "null",
    PurePath: "a path",
}


class KindError(ValueError):
    """A value of another kind or outside its range. `near`: the kind is right, the range is not."""

    def __init__(self, message: str, near: bool = False) -> None:
        super().__init__(message)
        self.near = near


@dataclass(frozen=True)
class Within:
    """A range of numbers; `above`, `below`: without its ends."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def wrong(self, value: float) -> str | None:
        """What a value outside must be; None within."""
        if value <= self.least if self.above else value < self.least:
            return f"{'above' if self.above else 'at least'} {self.least:,}"
        if value >= self.most if self.below else value > self.most:
            return f"{'below' if self.below else 'at most'} {self.most:,}"
        return None


Count = Annotated[int, Within(1, 10**9)]
Amount = Annotated[int, Within(0, 10**9)]
Seed = Annotated[int, Within(0, MOST_WHOLE)]
NotNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
Share = Annotated[float, Within(0, 1)]


def did_you_mean(name: str, known: Iterable[Any]) -> str:
    """`; did you mean 'x' or 'y'?` of the nearest known names; "" where none is near."""
    close = difflib.get_close_matches(str(name), list(map(str, known)), n=3, cutoff=0.4)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message about an unknown name: the nearest ones first, then all of them."""
    names = sorted(known)
    hint = did_you_mean(name, names) or "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(names) or '(none)'}"


def fitted(where: str, value: Any, hint: Any) -> Any:
    """`value` as a `hint`; `where` names it in messages. An integer is taken for a float.

    Hints: int, float, str, bool, None, Path, Literal, lists, tuples and mappings of them, unions,
    and `Annotated` with `Within`; any other is its owner's business. Raises KindError.
    """
    if typing.get_origin(hint) is Annotated:
        base, *marks = typing.get_args(hint)
        found = fitted(where, value, base)
        numeric = type(found) in (int, float)
        for mark in (m for m in marks if numeric and isinstance(m, Within)):
            if wrong := mark.wrong(found):
                raise KindError(f"{where} must be {wrong}, found {value!r}", near=True)
        return found
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return _plain(where, value, hint)
    errors = []
    for option in typing.get_args(hint):
        try:
            return fitted(where, value, option)
        except KindError as error:
            errors.append(error)
    raise next((e for e in errors if e.near), _other(where, value, hint))


def _plain(where: str, value: Any, hint: Any) -> Any:
    """`fitted` for what is no union."""
    kind = typing.get_origin(hint) or hint
    if kind is Literal:
        if value not in (known := typing.get_args(hint)):
            near = did_you_mean(value, known) if isinstance(value, str) else ""
            raise KindError(f"{_other(where, value, hint)}{near}", near=True)
        return value
    if kind in (int, float, str, bool, None, type(None)):
        return _scalar(where, value, type(None) if kind is None else kind)
    return _container(where, value, kind, typing.get_args(hint))


def _scalar(where: str, value: Any, kind: type) -> Any:
    """A finite number, a text without NUL, a switch or null."""
    whole = type(value) is int
    if type(value) is not kind and not (kind is float and whole):
        raise _other(where, value, kind)
    if whole and abs(value) > MOST_WHOLE:
        said = f"{where} must fit into 64 bits (at most ±{MOST_WHOLE}), found {_short(value)}"
        raise KindError(said, near=True)
    if kind is float and not math.isfinite(value):
        raise KindError(f"{where} must be a finite number, found {value}", near=True)
    if kind is str and "\0" in value:
        raise KindError(f"{where} must be text without NUL, found {_short(value)}", near=True)
    return float(value) if kind is float else value


def _container(where: str, value: Any, kind: Any, inner: tuple[Any, ...]) -> Any:
    """Lists, tuples, mappings, paths; any other class is not judged."""
    if not isinstance(kind, type):
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str | PurePath):
            raise _other(where, value, PurePath)
        return value
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            raise _other(where, value, dict)
        hint = inner[1] if inner else Any
        return {key: _inner(f"{where}.{key}", item, hint) for key, item in value.items()}
    if kind in (list, tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise _other(where, value, list)
        hint = inner[0] if inner else Any
        items = [_inner(f"{where}[{at}]", item, hint) for at, item in enumerate(value)]
        return tuple(items) if tuple in (kind, type(value)) and kind is not list else items
    return value


def _inner(where: str, value: Any, hint: Any) -> Any:
    """`fitted` for an item: what is wrong with it says more than that its list is no string."""
    try:
        return fitted(where, value, hint)
    except KindError as error:
        raise KindError(str(error), near=True) from error


def _other(where: str, value: Any, hint: Any) -> KindError:
    return KindError(f"{where} must be {_words(hint)}, found {_short(value)} "
                     f"({type(value).__name__})")  # fmt: skip


def _words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _words(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, typing.get_args(hint)))
    if origin is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return WORDS[dict]
    return WORDS[list] if kind in (tuple, Sequence) else WORDS.get(kind, str(hint))


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
