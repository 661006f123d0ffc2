"""What a value may be, by the annotation of whoever takes it: pydantic, strict, with our messages.

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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

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

PLAIN = {  # pydantic's words in those of YAML; the longer ones come first
    "Arguments must be an array or an object": "a mapping",
    "greater than or equal to": "at least", "less than or equal to": "at most",
    "greater than": "above", "less than": "below", "a valid boolean": "true or false",
    "a valid integer": "an integer", "a valid dictionary": "a mapping", "an object": "a mapping",
    "a valid array": "a list", "a valid tuple": "a list", "an instance of Sequence": "a list",
    "a valid ": "a ", "None": "null",
}  # fmt: skip


def validate(where: str, value: Any, hint: Any, text: bool = False) -> Any:
    """`value` as a `hint`, dataclasses made of mappings; `where` names it in messages. text: of a
    command line, on which all values are texts.

    A list is taken for a tuple, a text for a path and an integer for a float, as JSON and YAML have
    no others. A hint that pydantic does not know is not judged. Raises DecoderError.
    """
    from pydantic import PydanticUserError, ValidationError

    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    cls = next(filter(dataclasses.is_dataclass, kinds), None)
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
    raise DecoderError(_refusal(named, wrong)) from wrong


def _dataclass_of(where: str, values: Mapping[str, Any], cls: Any, text: bool) -> Any:
    """The dataclass `cls` of a mapping: no unknown key, none missing, each as it is annotated."""
    hints, above = typing.get_type_hints(cls, include_extras=True), f"{where}." if where else ""
    fields = {above + field.name: field for field in dataclasses.fields(cls)}
    for key in (f"{above}{key}" for key in values):
        if key not in fields:
            raise DecoderError(unknown("setting", key, fields))
    for key, field in fields.items():
        default = field.default, field.default_factory
        if field.name not in values and default == (dataclasses.MISSING, dataclasses.MISSING):
            raise DecoderError(f"{key} is missing; give it a value")
    return cls(**{k: validate(f"{above}{k}", v, hints[k], text) for k, v in values.items()})


@functools.cache
def _adapter(hint: Any, strict: bool) -> TypeAdapter[dict[str, Any]]:
    """Of a mapping with one such value, whose name is then a part of what pydantic reports."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, hint], config={"strict": strict, "allow_inf_nan": False})


def _require_storable(where: str, value: Any) -> None:
    """Raises DecoderError for a whole number or a text that no table, file or seed can hold."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_storable(f"{where}.{key}", item)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _require_storable(f"{where}[{place}]", item)
    elif isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise DecoderError(
            f"{where} must be at most {MOST_WHOLE:,} (64 bits), found {_short(value)}"
        )
    elif isinstance(value, str) and "\0" in value:
        raise DecoderError(f"{where} must be text without NUL, found {_short(value)}")


def _refusal(value: Any, error: ValidationError) -> str:
    """What was expected and found, of the part of `value` deepest inside: that says more than that
    its list is no string."""
    placed = [(*_place(value, one["loc"]), one) for one in error.errors(include_url=False)]
    deepest = max(depth for _, depth, _ in placed)
    inner = [(place, one) for place, depth, one in placed if depth == deepest]
    place, wrong = inner[0][0], inner[0][1]["input"]
    expected = " or ".join(dict.fromkeys(_plain(one["msg"]) for _, one in inner))
    hint = did_you_mean(wrong, re.findall("'([^']+)'", expected)) if isinstance(wrong, str) else ""
    setting = place.replace(".", "").isidentifier()
    if expected == "a string" and isinstance(wrong, int | float) and setting:  # as in run_dir=2026
        hint = f"; a text that looks like a number is quoted twice: '{place}=\"{wrong}\"'"
    return f"{place} must be {expected}, found {_short(wrong)} ({type(wrong).__name__}){hint}"


def _plain(message: str) -> str:
    """What pydantic expected, in the words of YAML."""
    text = message.removeprefix("Input should be ").partition(", unable to ")[0]
    for words, plain in PLAIN.items():
        text = text.replace(words, plain)
    return text


def _place(value: Any, loc: Sequence[Any]) -> tuple[str, int]:
    """(`x[1].name`, how deep that is) of pydantic's place, which names branches of unions too."""
    where, depth = "", 0
    for step in loc:
        if isinstance(value, Mapping) and step in value:
            where = f"{where}.{step}" if where else str(step)
            value, depth = value[step], depth + 1
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
    """The annotations of a class's (or function's) parameters, those of a base class too: each is
    in the words of its own module. Those that cannot be resolved (a name that is imported for type
    checkers alone) are left out, so they are not judged."""
    owners = reversed(inspect.getmro(target)) if isinstance(target, type) else (target,)
    hints: dict[str, Any] = {}
    for owner in owners:
        call = owner.__init__ if isinstance(owner, type) else owner  # type: ignore[misc]
        call = inspect.unwrap(call.func if isinstance(call, functools.partial) else call)
        for name, hint in getattr(call, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                scope = getattr(call, "__globals__", {})
                hints |= typing.get_type_hints(alone, scope, include_extras=True)
            except (NameError, AttributeError, TypeError, SyntaxError):
                hints.pop(name, None)
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
