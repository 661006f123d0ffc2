"""No setting of a study, or a training, and none of a part, takes a value of another kind,
nor one beyond its range: every field of every class, without a command line."""

import inspect
import json
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import Interval

from bench.commands.train import compose_train
from bench.config.arguments import groups
from bench.config.compose import compose_study
from bench.errors import ConfigError
from decoders.api import DecoderError, Sampling
from decoders.compose import check_keywords, resolve
from decoders.files import read_object
from decoders.kinds import hints_of, validate
from decoders.models.loading.checkpoint import CONFIG_KINDS
from decoders.training.drafter import LossConfig

WRONG: dict[type, tuple[Any, ...]] = {
    float: (True, None, math.nan, math.inf, -math.inf, "warm", [1]),
    int: (True, None, 1.5, math.inf, "many", [1]),
    str: (3, True, None, ["a"], {"a": 1}, "a\0b"),
    bool: (1, None, "yes"),
}
BEYOND: dict[type, tuple[Any, ...]] = {float: (-0.5, 10**400), int: (-1, 2**63, 10**30)}
SEEDS = ("seed",)  # the only whole numbers without a bound of their own


def kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows, without ranges."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(kinds, inner))
    if origin is Annotated:
        return kinds(inner[0])
    return {str} if origin is Literal else {hint}


def wrong(allowed: set[Any], beyond: bool = True) -> list[Any]:
    """Values that types do not allow; beyond: also those that no setting's range holds."""
    kind = next((kind for kind in WRONG if kind in allowed), None)
    if kind is None:
        return []
    values = [*WRONG[kind], *(BEYOND.get(kind, ()) if beyond else ())]
    return [v for v in values if v is not None or type(None) not in allowed]


def outside(hint: Any) -> list[float]:
    """The nearest values that the ranges in an annotation exclude."""
    found: list[float] = []
    for one in typing.get_args(hint):
        if isinstance(one, Interval):
            step = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
            ends = {name: getattr(one, name) for name in step}
            found += [end + step[name] for name, end in ends.items() if end is not None]
        elif one is not hint:
            found += outside(one)
    return found


def settings() -> list[Any]:
    """One of each class of settings, as its defaults are."""
    study, training = compose_study(["study=smoke", "decoders=[ar]"]), compose_train([])
    parts = study.backend, study.latency, study.quality, study.decoders[0].sampling
    return [study, *parts, training.train, training.data, LossConfig(), Sampling()]


def test_no_setting_takes_another_kind_or_a_value_beyond_its_range() -> None:
    judged = 0
    for one in settings():
        for name, hint in typing.get_type_hints(type(one), include_extras=True).items():
            allowed = kinds(hint)
            too_much = [10**12] if int in allowed and name not in SEEDS else []
            for value in wrong(allowed) + too_much:
                judged += 1
                with pytest.raises((ConfigError, DecoderError), match=name):
                    validate("", vars(one) | {name: value}, type(one))
                    pytest.fail(f"{type(one).__name__}.{name} takes {value!r}")
    assert judged > 500


def parts() -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, class and keywords of every part that conf/ describes, of decoders the loop."""
    found, of_decoders = [], ("drafter", "tree", "acceptance", "proposer", "decoder")
    for group in (*of_decoders, "prompts", "model", "metric", "data"):
        for name, option in groups()[group].items():
            part = yaml.safe_load(option) or {}
            part = part.get("loop") or {} if group == "decoder" else part
            if part.get("_target_"):
                found.append((f"{group} {name}", resolve(part["_target_"]), part))
    return found


def test_no_part_takes_another_kind_or_a_value_beyond_its_range() -> None:
    """Every keyword in the YAML of a part of a decoder, and of what a study or a training loads."""
    judged = ranges = 0
    for name, target, part in parts():
        hints, parameters = hints_of(target), inspect.signature(target).parameters
        for key in part.keys() & hints.keys():
            beyond = outside(hints[key])
            ranges += len(beyond)
            for value in wrong(kinds(hints[key]), beyond=False) + beyond:
                if key in parameters and value is parameters[key].default:
                    continue
                judged += 1
                with pytest.raises(DecoderError, match=key):
                    check_keywords(name, target, {key: value})
                    pytest.fail(f"{name}.{key} takes {value!r}")
    assert judged > 100 and ranges > 50


def test_no_entry_of_a_checkpoint_takes_another_kind(tmp_path: Path) -> None:
    """What config.json may say of a model; null means that it does not."""
    path = tmp_path / "config.json"
    for key, hint in CONFIG_KINDS.items():
        for value in wrong(kinds(hint) | {type(None)}):
            path.write_text(json.dumps({key: value}))
            with pytest.raises(DecoderError, match=r"config\.json"):
                read_object(path, CONFIG_KINDS)
                pytest.fail(f"{key} takes {value!r}")
