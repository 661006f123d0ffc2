"""The methods of papers: `published` in a decoder's YAML says what a paper calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from bench.config.arguments import groups
from decoders.errors import DecoderError, unknown
from decoders.kinds import validate

IN_PAPERS = {  # what papers call a class, where it is not so called
    "Cape": "CaPE",
    "Eagle": "EAGLE",
    "Eagle3": "EAGLE-3",
    "Free": "FREE",
    "Glide": "GliDe",
    "Griffin": "GRIFFIN",
}


@dataclass(frozen=True)
class Method:
    """`published` in a decoder's YAML: its method in the papers.

    name: as in published.csv; parts: options (tree: static) whose classes, and the loop of the YAML
    with its target, make a decoder one of it; settings: of the authors' code, as another tree is
    another method; params: where the settings that papers state are here (k: acceptance.k)."""

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, float | str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


def load_methods() -> dict[str, Method]:
    """Reads `published` of conf/decoder, by name, with classes for parts. Raises DecoderError on a
    part that is no option."""
    options, methods = groups(), dict[str, Method]()
    for decoder, text in options["decoder"].items():
        config = yaml.safe_load(text)
        if (written := config.get("published")) is None:
            continue
        method: Method = validate(f"{decoder}: published", written, Method)
        loop = config["loop"]
        classes = {f"loop.{key}": loop[key] for key in ("_target_", "target") if key in loop}
        for part, option in method.parts.items():
            known = options.get(part, {})
            if option not in known:
                raise DecoderError(f"{decoder}: published: {unknown(part, option, known)}")
            classes[f"{part}._target_"] = yaml.safe_load(known[option])["_target_"]
        methods[method.name] = replace(method, parts=classes)
    return methods


def settings_of(parts: Mapping[str, Any], methods: Mapping[str, Method]) -> dict[str, str]:
    """The settings of a decoder that papers state of its method, `lambda = 20` by acceptance.lam.
    parts: its specification, flat (`bench.store.facts.flat`)."""
    _, method = method_of(parts, methods)
    params = {} if method is None else method.params
    return {key: f"{name} = {parts[key]}" for name, key in params.items() if key in parts}


def detailed(name: str, *details: str) -> str:
    """`LANTERN++ (DSpark, lambda = 20)`: no comma outside brackets, which would end it in a list.
    A name that has details gets these behind them."""
    more = ", ".join(filter(None, details))
    return f"{name} ({more})".replace(") (", ", ") if more else name


def short_names(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What a reader of papers calls the decoders of a study: `LANTERN++`; `LANTERN++ chain` where
    the rule is a method's and the tree another one; with the drafter, where it is not the method's,
    and with what tells decoders of one method apart (`LANTERN (delta = 0.2)`). Those of no method
    have none, nor those that this leaves with equal names. specs: by decoder, flat."""
    methods = load_methods()
    found = {name: method_of(parts, methods) for name, parts in specs.items()}
    titles = dict[str, str]()
    for name, (title, method) in found.items():
        same = [specs[other] for other, one in found.items() if one[0] == title]
        own = method.parts.keys() if method else ()
        keys = [key for key in ("tree._target_", "drafter._target_") if key not in own]
        told = [class_name(specs[name], key) for key in keys if differ(same, key)]
        settings = {} if method is None else method.params
        told += [
            f"{n} = {specs[name].get(key)}" for n, key in settings.items() if differ(same, key)
        ]
        titles[name] = title and detailed(title, *told)
    counts = Counter(titles.values())
    return {name: title for name, title in titles.items() if title and counts[title] == 1}


def differ(specs: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether decoders differ in this setting."""
    return len({str(parts.get(key)) for parts in specs}) > 1


def class_name(parts: Mapping[str, Any], key: str) -> str:
    """What papers call the class of a part; "" without one. key: such as tree._target_."""
    name = str(parts.get(key) or "").rpartition(".")[2]
    return IN_PAPERS.get(name, name)


def method_of(parts: Mapping[str, Any], methods: Mapping[str, Method]) -> tuple[str, Method | None]:
    """The method of a decoder, the one that says most of those all of whose parts it has, or that
    of its rule, with its name; ("", None) without one."""
    whole = [one for one in methods.values() if one.parts.items() <= parts.items()]
    if whole:
        method = max(whole, key=lambda one: len(one.parts))
        return method.name, method
    rule, loop = parts.get("acceptance._target_"), parts.get("loop._target_")
    tree = class_name(parts, "tree._target_")
    shape = " chain" if tree == "Chain" else " tree" if tree else ""
    if str(rule).endswith(".Exact") and str(loop).endswith(".Speculative"):
        return f"Exact{shape}" if shape else "", None
    of_rule = [
        one
        for one in methods.values()
        if rule
        and one.parts.get("acceptance._target_") == rule
        and one.parts["loop._target_"] == loop
    ]
    if not of_rule:
        return "", None
    method = min(of_rule, key=lambda one: len(one.parts))
    key = "drafter._target_"
    other = (
        "" if parts.get(key) == method.parts.get(key, parts.get(key)) else class_name(parts, key)
    )
    same = parts.get("tree._target_") == method.parts.get("tree._target_")
    return detailed(method.name + shape * (not same), other), method
