"""What differs between two configurations or machines, in the words of a command line.

Why: a folder keeps the resolved configuration (`StudyConfig.measured`), whose names are those of
the dataclasses. A user wrote `acceptance.k=5` and `model=tiny`, not
`decoders.lantern.spec.acceptance.kwargs.k`, and is told so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_SHOWN = 8  # differences listed in an error
LONGEST = 60  # characters of a value
ASKED = ("in the folder", "asked for")
MACHINES = ("there", "here")
GROUPS = ("model", "backend", "prompts")  # chosen by name: another name explains all below it


def differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], sides: tuple[str, str] = ASKED
) -> str:
    """`latency.prompts: 54 in the folder, 20 asked for; ...`, at most `MAX_SHOWN` of them with a
    count of the rest; "" where nothing differs. sides: what the two are called.

    Both are plain containers: two `StudyConfig.measured()`, or any other two mappings.
    """
    old, new = dict(there), json.loads(json.dumps(wanted))
    for group in GROUPS:
        names = [side.get(group, {}).get("name") for side in (old, new)]
        if names[0] != names[1]:
            old[group], new[group] = names
    one, other = _settings(old, new), _settings(new, old)
    lines = [
        f"{key}: {_value(one.get(key))} {sides[0]}, {_value(other.get(key))} {sides[1]}"
        for key in sorted({**one, **other}, key=lambda key: key not in ("name", "decoders"))
        if one.get(key) != other.get(key)
    ]
    more = len(lines) - MAX_SHOWN
    return "; ".join(lines[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a configuration as one level; of its decoders those that the other has."""
    entries = {entry["name"]: entry for entry in config.get("decoders") or []}
    shared = [entry["name"] for entry in other.get("decoders") or [] if entry["name"] in entries]
    settings = {**_flat(config), "decoders": [*entries]}
    for name in shared:
        settings |= {f"{key} ({name})": v for key, v in settings_of(entries[name]).items()}
    return settings


def settings_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a decoder of study.json, by the names that a command line has for them."""
    parts = {**entry, **entry.get("spec", {})}
    return _flat({key: value for key, value in parts.items() if key not in ("name", "spec")})


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted names; `target` and `kwargs` of what is imported are
    `_target_` and its keywords, as in YAML."""
    out: dict[str, Any] = {}
    if value.keys() >= {"target", "kwargs"}:
        value = {**value, "_target_": value["target"], **value["kwargs"]}
        value = {key: inner for key, inner in value.items() if key not in ("target", "kwargs")}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            out |= _flat(inner, f"{above}{key}.")
        else:
            out[f"{above}{key}"] = inner
    return out


def _value(value: Any) -> str:
    """The value as YAML writes it."""
    if value is None:
        return "not set"
    return _short(value if isinstance(value, str) and value else json.dumps(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + " …"
