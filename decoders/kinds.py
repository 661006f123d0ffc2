"""What a value may be, by the annotation of whoever takes it: pydantic, strict.

Settings, keywords of plug-ins and entries of JSON files all come from outside. An annotation such
as `Annotated[int, Within(1)]` says what they must be. Three rules hold everywhere: a number is
finite, a whole number fits into 64 bits, a text holds no NUL.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval, MinLen

from decoders.errors import DecoderError, did_you_mean, unknown

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MOST_WHOLE = 2**63 - 1  # what tables, files and seeds can hold


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
Size = Annotated[int, Within(1, 2**24)]  # of one dimension of a network
Seed = Annotated[int, Within(0, MOST_WHOLE)]
NotNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
Share = Annotated[float, Within(0, 1)]
Name = Annotated[str, MinLen(1)]


def validate(where: str, value: Any, hint: Any, text: bool = False) -> Any:
    """Returns `value` as a `hint`, dataclasses made of mappings. where: its name in messages; text:
    it comes from a command line, where every value is text.

    A list is taken for a tuple, a text for a path and an integer for a float, as JSON and YAML have
    no others. A hint that pydantic does not know is not judged. Raises DecoderError.
    """
    from pydantic import PydanticUserError, ValidationError

    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    choices = typing.get_args(hint) if union else (hint,)
    cls = next(filter(dataclasses.is_dataclass, choices), None)
    if cls is not None and isinstance(value, Mapping):
        return _dataclass_of(where, value, cls, text)
    _require_storable(where, value)
    named = {where: value}
    try:
        adapter = _adapter(hint, strict=not text)
    except (PydanticUserError, NameError, TypeError):  # TypeError: it cannot be hashed
        return value
    try:
        return (adapter.validate_strings(named) if text else adapter.validate_python(named))[where]
    except ValidationError as error:
        wrong = error
    try:
        if not text:
            return adapter.validate_json(json.dumps(named))[where]
    except ValidationError as error:
        wrong = error
    except TypeError:  # it holds something that JSON cannot
        pass
    raise DecoderError(f"{where}: {_refusal(wrong)}") from wrong


def _dataclass_of(where: str, values: Mapping[str, Any], cls: Any, text: bool) -> Any:
    """The dataclass `cls` of a mapping: no unknown key, none missing, each as it is annotated."""
    hints, above = typing.get_type_hints(cls, include_extras=True), f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise DecoderError(unknown("setting", f"{above}{key}", [above + k for k in fields]))
    for key, field in fields.items():
        default = field.default, field.default_factory
        if key not in values and default == (dataclasses.MISSING, dataclasses.MISSING):
            raise DecoderError(f"{above}{key} is missing; give it a value")
    return cls(**{k: validate(f"{above}{k}", v, hints[k], text) for k, v in values.items()})


@functools.cache
def _adapter(hint: Any, strict: bool) -> TypeAdapter[dict[str, Any]]:
    """Of a mapping, since pydantic takes no configuration beside a bare dataclass."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, hint], config={"strict": strict, "allow_inf_nan": False})


def _require_storable(where: str, value: Any) -> None:
    """Raises DecoderError for a whole number or a text that no table, file or seed can hold."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            _require_storable(where, item)
    elif isinstance(value, int) and abs(value) > MOST_WHOLE:
        size = f"a number of {value.bit_length()} bits"  # whose digits Python may not print
        raise DecoderError(f"{where}: expected at most {MOST_WHOLE} (64 bits), found {size}")
    elif isinstance(value, str) and "\0" in value:
        raise DecoderError(f"{where}: expected text without NUL, found {value!r:.80}")


def _refusal(error: ValidationError) -> str:
    """What pydantic expected and found in the innermost place: that says more than that a list with
    one wrong item is no string."""
    errors = error.errors(include_url=False)
    inner = [one for one in errors if len(one["loc"]) == max(len(e["loc"]) for e in errors)]
    expected = " or ".join(dict.fromkeys(one["msg"] for one in inner))
    wrong = inner[0]["input"]
    hint = did_you_mean(wrong, re.findall("'([^']+)'", expected)) if isinstance(wrong, str) else ""
    quotes = re.search("string|'", expected)
    if isinstance(wrong, bool):
        hint = "; YAML reads an unquoted on, off, yes or no as true or false"
        hint += ': write "off"' if quotes else ""
    elif "boolean" in expected:
        hint = "; write true or false"
    elif isinstance(wrong, int | float) and quotes:
        hint = "; a text that reads as a number stands in quotes"
    return f"{expected}, found {wrong!r:.80} ({type(wrong).__name__}){hint}"


def hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a class's (or function's) parameters, those of a base class too, each as
    its own module names types. Those that cannot be resolved (a name that is imported for type
    checkers alone) are left out, so they are not judged."""
    owners = reversed(inspect.getmro(target)) if isinstance(target, type) else (target,)
    hints: dict[str, Any] = {}
    for owner in owners:
        call = owner.__init__ if isinstance(owner, type) else owner  # type: ignore[misc]
        call = inspect.unwrap(call.func if isinstance(call, functools.partial) else call)
        for name, hint in getattr(call, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            with suppress(NameError, AttributeError, TypeError, SyntaxError):
                scope = getattr(call, "__globals__", {})
                hints |= typing.get_type_hints(alone, scope, include_extras=True)
    return hints


def validate_fields(config: Any, where: str) -> None:
    """Asks of every field of a dataclass what its annotation says; `where`: what messages put
    before a field's name, a dot included. For `__post_init__`, so that no way to make one is
    unchecked. Raises DecoderError."""
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        validate(f"{where}{name}", getattr(config, name), hint)


def validate_entries(
    values: Mapping[str, Any], kinds: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """An object of a file whose keys are others' to name: those in `kinds` are checked (null means
    not given), the rest is passed on. Raises DecoderError."""
    return {
        key: validate(f"{where}: {key}", value, kinds[key]) if key in kinds else value
        for key, value in values.items()
        if value is not None or key not in kinds
    }
