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
Seed = Annotated[int, Within(0, MOST_WHOLE)]
NotNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
Share = Annotated[float, Within(0, 1)]

KINDS = {  # pydantic's word for a wrong kind, without `_type` and `_parsing`
    "int": "an integer", "float": "a number", "string": "a string", "bool": "true or false",
    "dict": "a mapping", "mapping": "a mapping", "dataclass": "a mapping",
    "arguments": "a mapping", "list": "a list", "tuple": "a list", "is_instance_of": "a list",
    "none_required": "null", "finite_number": "a finite number",
}  # fmt: skip
RANGES = {
    "greater_than": ("above", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip


def fitted(where: str, value: Any, hint: Any, text: bool = False) -> Any:
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
        return _made(where, value, cls, text)
    _require_storable(where, value)
    held = {where: value}
    try:
        adapter = _adapter(hint, strict=not text)
    except (PydanticUserError, NameError):
        return value
    try:
        return (adapter.validate_strings(held) if text else adapter.validate_python(held))[where]
    except ValidationError as error:
        wrong = error
    try:
        if not text:
            return adapter.validate_json(json.dumps(held))[where]
    except ValidationError as error:
        wrong = error
    except TypeError:  # it holds something that JSON cannot
        pass
    raise DecoderError(_refusal(held, wrong)) from wrong


def _made(where: str, values: Mapping[str, Any], cls: Any, text: bool) -> Any:
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
    return cls(**{k: fitted(f"{above}{k}", v, hints[k], text) for k, v in values.items()})


def _adapter(hint: Any, strict: bool) -> TypeAdapter[dict[str, Any]]:
    try:
        return _cached(hint, strict)
    except TypeError:  # a hint that cannot be hashed
        return _cached.__wrapped__(hint, strict)


@functools.cache
def _cached(hint: Any, strict: bool) -> TypeAdapter[dict[str, Any]]:
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
    place, _, first = next(one for one in placed if one[1] == deepest)
    words, found = dict[str, None](), first["input"]
    for one in (one for _, depth, one in placed if depth == deepest):
        kind, context = one["type"], one.get("ctx", {})
        if kind in RANGES:
            word, bound = RANGES[kind][0], context[RANGES[kind][1]]
            words = {f"{word} {int(bound) if bound == int(bound) else bound:,}": None}
            break
        if kind == "literal_error":
            names = context["expected"].replace("'", "").replace(" or ", ", ")
            words[f"one of {names}"] = None
        else:
            words[KINDS.get(kind.removesuffix("_type").removesuffix("_parsing"), one["msg"])] = None
    kinds, shown = " or ".join(words), _short(found)
    names = [name for word in words if word[:6] == "one of" for name in word[7:].split(", ")]
    hint = did_you_mean(found, names) if isinstance(found, str) and names else ""
    setting = place.replace(".", "").isidentifier()
    if kinds == "a string" and isinstance(found, int | float) and setting:  # as in run_dir=2026
        hint = f"; a text that looks like a number is quoted twice: '{place}=\"{found}\"'"
    return f"{place} must be {kinds}, found {shown} ({type(found).__name__}){hint}"


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


def require(config: Any, where: str) -> None:
    """Asks of every field of a dataclass what its annotation says; `where`: what messages put
    before a field's name, a dot included. For `__post_init__`, so that no way to make one is
    unchecked. Raises DecoderError."""
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        fitted(f"{where}{name}", getattr(config, name), hint)


def entries(found: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An object of a file whose keys are others' to name: those in `known` are checked (null means
    not given), the rest is passed on. Raises DecoderError."""
    given = {key: value for key, value in found.items() if value is not None or key not in known}
    return {
        key: fitted(f"{where}: {key}", value, known[key]) if key in known else value
        for key, value in given.items()
    }
