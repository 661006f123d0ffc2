"""Arguments of a command line -> StudyConfig: Hydra composes, dataclasses are validated.

A study lists decoders; each is composed on its own from conf/entry.yaml, so that one study can hold
the same decoder under several settings. An argument that names a part of a decoder
(`acceptance.delta=0.1`, `tree=static`, `sampling.temperature=0`) goes to every entry that has this
setting, after the entry's own overrides; all others go to the study (conf/config.yaml). A sweep
(`acceptance.delta=0.1,0.2`) makes one decoder for each of its values.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from bench.config.arguments import key_of
from bench.config.hydra_edge import (
    SEARCHPATH_KEY,
    compose_config,
    composed,
    dotted,
    hydra_session,
    nearest,
    values_of,
)
from bench.config.schema import (
    BackendConfig,
    DecoderEntry,
    LoaderConfig,
    SamplingConfig,
    StudyConfig,
)
from bench.errors import ConfigError
from decoders.kinds import validate
from decoders.spec import PARTS, DecoderSpec, PartSpec

log = logging.getLogger(__name__)
Texts = Annotated[  # a text alone is a list of one
    list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]


@dataclass(frozen=True)
class EntryConfig:
    """An item of `decoders`: an option of the group decoder, its name in the study ("": that of the
    option), overrides, or one of them as a text."""

    decoder: str
    name: str = ""
    overrides: Texts = field(default_factory=list)


@dataclass(frozen=True)
class Overrides:
    """A command line, sorted: arguments of the study, of its entries (a sweep is several
    alternatives), search paths, and the choice of decoders."""

    study: list[str]
    entry: list[list[str]]
    searchpath: list[str]
    decoders: list[Any] | None


def compose_study(arguments: Sequence[str]) -> StudyConfig:
    """The validated study that the arguments describe.

    Raises ConfigError: unknown study, decoder, option or key (with the nearest known names), wrong
    type, impossible value; DecoderError where a part's own settings are refused.
    """
    with hydra_session(arguments):
        given = sort_overrides(arguments)
        root = composed("config", given.study + given.searchpath)
        listed = [_entry(one) for one in validate("decoders", root.pop("decoders", None), list)]
        chosen = (
            listed
            if given.decoders is None
            else [_begin_with_listed(x, listed) for x in given.decoders]
        )
        if not chosen:
            raise ConfigError("a study needs at least one decoder; set decoders=[name,...]")
        sampling = validate("sampling", root.pop("sampling", None), SamplingConfig)
        for key in ("model", "prompts", "metric"):
            values = validate(key, root.get(key), dict)
            off = key == "metric" and values.get("_target_", "") is None
            root[key] = None if off else LoaderConfig.of(_option(key, values, given), key)
        study: StudyConfig = validate("", root, StudyConfig)
        if study.replicate and "run_dir" not in map(key_of, given.study):
            study = dataclasses.replace(study, run_dir=f"{study.run_dir}-{study.replicate}")
        study = dataclasses.replace(study, backend=choose_execution(study.backend))
        # Last, as they take many times as long.
        return dataclasses.replace(study, decoders=_entries(chosen, given, sampling))


def sort_overrides(arguments: Sequence[str]) -> Overrides:
    """Parses the arguments. Raises ConfigError on one that is no override."""
    given = Overrides([], [], [], None)
    for argument in arguments:
        key = key_of(argument)
        if key == "decoders":
            values = [*values_of(argument, sweeps=True).values()]  # of [a,b], and of a,b
            one_list = len(values) == 1 and isinstance(values[0], list)
            given = dataclasses.replace(given, decoders=values[0] if one_list else values)
        elif re.split("[.@]", key)[0] in (*PARTS, "sampling"):
            given.entry.append([*values_of(argument, sweeps=True)])
        else:
            values_of(argument)
            (given.searchpath if key == SEARCHPATH_KEY else given.study).append(argument)
    return given


def _option(group: str, values: dict[str, Any], given: Overrides) -> dict[str, Any]:
    """`values` of a group; where the arguments choose another option of it than the study does,
    without what the study sets of its own: `metric.reference=128` is nothing to another metric."""
    mine = [one for one in given.study if key_of(one).partition(".")[0] == group]
    if group not in map(key_of, mine):
        return values
    others = [one for one in given.study if one not in mine] + given.searchpath
    studys = compose_config("config", others, whole=False).get(group) or {}
    if all(studys.get(key) == values.get(key) for key in ("name", "_target_")):
        return values
    alone = ["~study", f"name={group}", *mine, *given.searchpath]
    return dict(compose_config("config", alone)[group])


def _entry(item: Any) -> EntryConfig:
    """An item of the list `decoders`; a bare name is a decoder of that name. Raises ConfigError."""
    entry = validate("decoders[]", item, str | EntryConfig)
    entry = EntryConfig(entry) if isinstance(entry, str) else entry
    name = unicodedata.normalize("NFC", entry.name or entry.decoder)
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise ConfigError(
            f"an entry's name may hold letters, digits and _ . + - (no dot first), found {name!r}"
        )
    for override in entry.overrides:
        values_of(override)
    return dataclasses.replace(entry, name=name)


def _begin_with_listed(item: Any, listed: list[EntryConfig]) -> EntryConfig:
    """An entry of the command line. It begins with the study's own entry of that name, or the only
    one of that decoder, so that both have the same settings but for what the command line says."""
    entry = _entry(item)
    matches = [one for one in listed if one.name == entry.decoder]
    matches = matches or [one for one in listed if one.decoder == entry.decoder]
    if len(matches) != 1:
        return entry
    overrides = _append_overrides(matches[0].overrides, entry.overrides)
    return EntryConfig(matches[0].decoder, entry.name, overrides)


def _append_overrides(overrides: list[str], more: list[str]) -> list[str]:
    """`overrides`, then `more`. Where `more` chooses another option for a part, earlier settings of
    that part are dropped; where it chooses another acceptance rule, an earlier `expect` is too."""
    parts = [key for key in map(key_of, more) if key in PARTS]
    dropped = (*(f"{key}." for key in parts), *(["expect"] if "acceptance" in parts else []))
    return [one for one in overrides if not key_of(one).startswith(dropped)] + more


def _entries(
    chosen: list[EntryConfig], given: Overrides, study: SamplingConfig
) -> tuple[DecoderEntry, ...]:
    """Composes every entry once per combination of the swept values that apply to it. Raises
    ConfigError on an argument that applies to no entry."""
    unused_keys = {key_of(one) for alternatives in given.entry for one in alternatives}
    entries: list[DecoderEntry] = []
    settable: set[str] = set()
    for item in chosen:
        seen: list[list[str]] = []  # arguments of combinations that applied to this entry
        for combination in itertools.product(*given.entry):
            overrides, applied = [f"decoder={item.decoder}", *item.overrides], []
            values = _compose_entry(overrides + given.searchpath)
            # Which settings a part has depends on its option, so options come first.
            for stage in ("options", "settings"):
                names = {*dotted(values)}
                applicable = [
                    one
                    for one in combination
                    if (key_of(one) in PARTS) == (stage == "options")
                    and _required_name(one) in names
                ]
                if applicable:
                    overrides = _append_overrides(overrides, applicable)
                    values = _compose_entry(overrides + given.searchpath)
                    applied += applicable
                settable |= names
            unused_keys.difference_update(map(key_of, applied))
            if applied in seen:
                continue
            seen.append(applied)
            keys = {*map(key_of, overrides)}
            if keys & {"acceptance", "acceptance._target_"} and "expect" not in keys:
                values["expect"] = None  # it was said of the rule that is replaced
            name = item.name
            for one, alternatives in zip(combination, given.entry, strict=True):
                if len(alternatives) > 1 and one in applied:
                    # `delta0.1` for `acceptance.delta=0.1`
                    key, value = key_of(one), one.partition("=")[2]
                    text = value if key in PARTS else key.rpartition(".")[2] + value
                    name += "_" + re.sub(r"[^\w.+-]+", "-", text)
            entry = _decoder_entry(name, values, study)
            twin = next((e for e in entries if applied and _same(e, entry)), None)
            if twin is None:
                entries.append(entry)
            else:
                log.warning("%s is %s under these overrides; it runs once", name, twin.name)
    if unused_keys:
        key, missing = min(unused_keys), ", ".join(map(repr, sorted(unused_keys)))
        part = key.partition(".")[0]
        if part in PARTS and part not in settable:
            raise ConfigError(
                f"{missing}: no decoder of the study has a part `{part}`; leave it out, or choose "
                "decoders that have one"
            )
        raise ConfigError(
            f"no decoder of the study has the setting {missing}{nearest(key, settable)}"
        )
    return tuple(entries)


def _compose_entry(overrides: list[str]) -> dict[str, Any]:
    """conf/entry.yaml under overrides, without the parts that the decoder does not have."""
    values = compose_config("entry", overrides)
    values.pop("published", None)  # of `bench.config.methods`
    for key in PARTS:
        part = values.get(key)
        if not part or (isinstance(part, dict) and part.get("_target_", "") is None):
            values.pop(key, None)
    return values


def _required_name(argument: str) -> str:
    """The name that an entry must have for an argument to apply: of the setting itself, or of the
    group of one that is added (`+acceptance.mine=1`)."""
    key = key_of(argument)
    is_addition = argument.startswith("+") and not argument.startswith("++")
    return key.rpartition(".")[0] if is_addition else key


def _same(one: DecoderEntry, other: DecoderEntry) -> bool:
    """Equal but for the name."""
    spec = dataclasses.replace(other.spec, name=one.spec.name)
    return (one.spec, one.sampling) == (spec, other.sampling)


def _decoder_entry(name: str, values: dict[str, Any], study: SamplingConfig) -> DecoderEntry:
    """The DecoderEntry of a composed config, whose keys it removes from the mapping."""
    parts: dict[str, Any] = {
        key: PartSpec.of(values.pop(key), f"{name}: {key}") for key in PARTS if key in values
    }
    if "loop" not in parts:
        raise ConfigError(f"the decoder {name} has no loop; set loop._target_ in its YAML")
    sampling = validate(f"{name}: sampling", values.pop("sampling", None), SamplingConfig)
    spec = DecoderSpec(name, **parts)
    values |= {"name": name, "spec": spec, "sampling": sampling.resolve(study)}
    entry: DecoderEntry = validate(name, values, DecoderEntry)
    return entry


def choose_execution(backend: BackendConfig) -> BackendConfig:
    """`execution: compile` on a processor without a C++ compiler is `eager`, with a warning: a
    run's configuration says what ran."""
    if backend.device != "cpu" or backend.execution != "compile":
        return backend
    from decoders.execution.cpu.library import missing

    reason = missing()
    if reason is None:
        return backend
    log.warning(
        "backend.execution=eager: PyTorch's operators, several times slower on a small model than "
        "the project's C++ operators: %s",
        reason,
    )
    return dataclasses.replace(backend, execution="eager")
