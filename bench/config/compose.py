"""Hydra at the edge: command-line overrides -> StudyConfig.

A study lists decoders; each is composed on its own from conf/entry.yaml, so that one study can hold
the same decoder under several settings. An override of the command line that names a part of a
decoder (`acceptance.delta=0.1`, `tree=static`, `sampling.temperature=0`) goes to every entry that
has this setting, after the entry's own overrides; all others go to the study (conf/config.yaml).
A sweep (`acceptance.delta=0.1,0.2`) makes one decoder for each of its values.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from bench.config.hydra_edge import (
    alternatives,
    compose_config,
    compose_root,
    dotted,
    hydra_session,
    nearest,
    parse_override,
    plain,
)
from bench.config.schema import (
    BackendConfig,
    DecoderEntry,
    LoaderConfig,
    SamplingConfig,
    StudyConfig,
)
from bench.config.words import group_of, key_of
from bench.data.errors import ConfigError
from decoders.kinds import validate
from decoders.spec import PARTS, DecoderSpec, PartSpec

log = logging.getLogger(__name__)
NOTHING = {"_target_": None}  # of a part that a decoder does not have


@dataclass(frozen=True)
class EntryConfig:
    """An item of `decoders`: an option of the group decoder, its name in the study ("": that of the
    option), overrides."""

    decoder: str
    name: str = ""
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Overrides:
    """A command line, sorted: the words of the study, of every entry (a sweep is several
    alternatives), and the decoder choice."""

    study: list[str]
    entry: list[list[Override]]
    searchpath: list[str]
    decoders: list[Any] | None


def compose_study(words: Sequence[str]) -> StudyConfig:
    """The validated study that the overrides describe.

    Raises ConfigError: unknown study, decoder, option or key (with the nearest known names), wrong
    type, impossible value; DecoderError where a part's own settings are refused.
    """
    with hydra_session():
        overrides = sort_overrides(words)
        root = compose_root("config", overrides.study + overrides.searchpath)
        chosen = _choose(validate("decoders", root.pop("decoders", None), list), overrides.decoders)
        sampling = validate("sampling", root.pop("sampling", None), SamplingConfig)
        study = _study(root)  # before the entries, which take many times as long
        entries = _entries(chosen, overrides, sampling)
    return dataclasses.replace(study, decoders=entries)


def _study(root: dict[str, Any]) -> StudyConfig:
    """The study of a resolved root, without its decoders."""
    for key in ("model", "prompts", "metric"):
        off = key == "metric" and validate(key, root.get(key), dict).get("_target_") is None
        root[key] = None if off else LoaderConfig.of(root.get(key), key)
    study: StudyConfig = validate("", root, StudyConfig)
    return dataclasses.replace(study, backend=choose_execution(study.backend))


def sort_overrides(words: Sequence[str]) -> Overrides:
    """Parses the words. Raises ConfigError on one that is not an override."""
    study, entry, searchpath = [], [], []
    decoders: list[Any] | None = None
    for word in words:
        override = parse_override(word, sweeps=True)
        top = override.key_or_group.split(".")[0].split("@")[0]
        if override.key_or_group == "decoders":
            swept = [one.value() for one in alternatives(override)]  # [a,b], and a,b too
            decoders = swept[0] if isinstance(swept[0], list) and len(swept) == 1 else swept
        elif top in PARTS or top == "sampling":
            entry.append(alternatives(override))
        elif parse_override(word).key_or_group == "hydra.searchpath":
            searchpath.append(word)
        else:
            study.append(str(override.input_line))
    return Overrides(study, entry, searchpath, decoders)


def _choose(listed: list[Any], wanted: list[Any] | None) -> list[EntryConfig]:
    """The entries to run. A name in `wanted` is first looked up in the study's list."""
    chosen = list(map(_entry, listed))
    if wanted is not None:
        by_name = {entry.name: entry for entry in chosen}
        chosen = [by_name.get(entry.name, entry) if isinstance(item, str) else entry
                  for item, entry in zip(wanted, map(_entry, wanted), strict=True)]  # fmt: skip
    if not chosen:
        raise ConfigError("a study needs at least one decoder; set decoders=[name,...]")
    return chosen


def _entry(item: Any) -> EntryConfig:
    """An item of the list `decoders`; a bare name is a decoder of that name. Raises ConfigError."""
    entry = validate("decoders[]", item, str | EntryConfig)
    entry = EntryConfig(entry) if isinstance(entry, str) else entry
    name = unicodedata.normalize("NFC", entry.name or entry.decoder)
    entry = dataclasses.replace(entry, name=name)
    if not re.fullmatch(r"[\w+-][\w.+-]*", entry.name):
        raise ConfigError(
            "an entry's name may hold letters, digits and _ . + - (no dot first), found "
            f"{entry.name!r}"
        )
    for word in entry.overrides:
        parse_override(word)
    return entry


def _entries(
    chosen: list[EntryConfig], words: Overrides, study: SamplingConfig
) -> tuple[DecoderEntry, ...]:
    """Every entry composed, once for each combination of what is swept and it has; a global
    override that no entry has is an error."""
    unused = {str(o.input_line) for either in words.entry for o in either}
    entries: list[DecoderEntry] = []
    settable: set[str] = set()
    for item in chosen:
        first_words = [f"decoder={item.decoder}", *item.overrides, *words.searchpath]
        done: list[list[str]] = []  # what of the combinations applied to this entry
        for combination in itertools.product(*words.entry):
            base, entry_words, options = _with_options(first_words, combination)
            settable |= set(dotted(plain(base)))
            settings = [o for o in combination if o.key_or_group not in PARTS and _applies(base, o)]
            fits = [str(o.input_line) for o in (*options, *settings)]
            unused.difference_update(fits)
            if fits in done:
                continue
            done.append(fits)
            config = compose_config("entry", entry_words + fits) if settings else base
            swept = [o for o, either in zip(combination, words.entry, strict=True)
                     if len(either) > 1 and str(o.input_line) in fits]  # fmt: skip
            name = "_".join([item.name, *map(_label, swept)])
            values = plain(config)
            if _replaces_rule([*item.overrides, *fits]):
                values["expect"] = None  # it was said of the rule that is replaced
            entry = _decoder_entry(name, values, study)
            twin = next((e for e in entries if fits and _same(e, entry)), None)
            if twin is None:
                entries.append(entry)
            else:
                log.warning("%s is %s under these overrides; it runs once", entry.name, twin.name)
    if unused:
        first, part = key_of(min(unused)), group_of(min(unused))
        keys = {key_of(word) for word in unused}
        # Values of a sweep are of one setting, which is named once.
        names = ", ".join(map(repr, sorted(keys if len(keys) < len(unused) else unused)))
        if part in PARTS and all(getattr(entry.spec, part) is None for entry in entries):
            raise ConfigError(f"{names}: no decoder of the study has a part `{part}`")
        raise ConfigError(
            f"no decoder of the study has the setting {names}{nearest(first, settable)}"
        )
    return tuple(entries)


def _replaces_rule(words: Sequence[str]) -> bool:
    """Whether an entry has another rule than its decoder, and says nothing of the verdict on it."""
    keys = {parse_override(word).key_or_group for word in words}
    return not keys.isdisjoint({"acceptance", "acceptance._target_"}) and "expect" not in keys


def _label(swept: Override) -> str:
    """What a swept setting adds to its decoder's name: `delta0.1` for `acceptance.delta=0.1`."""
    key, _, value = str(swept.input_line).lstrip("+~").partition("=")
    text = value if key in PARTS else key.rpartition(".")[2] + value
    return re.sub(r"[^\w.+-]+", "-", text)


def _with_options(
    words: list[str], overrides: Sequence[Override]
) -> tuple[DictConfig, list[str], list[Override]]:
    """An entry with the options that the command line chooses for its parts (`tree=static`), its
    overrides without settings that these options have not, and the options. Which settings a part
    has depends on its option, so these come first."""
    base = compose_config("entry", words)
    options = [o for o in overrides if o.key_or_group in PARTS and _applies(base, o)]
    if options:
        chosen = [str(o.input_line) for o in options]
        replaced = tuple(f"{o.key_or_group}." for o in options)
        others = [word for word in words if not key_of(word).startswith(replaced)]
        bare = compose_config("entry", others + chosen)
        words = [word for word in words if word in others or _applies(bare, parse_override(word))]
        base = compose_config("entry", words + chosen)
    return base, words, options


def _same(one: DecoderEntry, other: DecoderEntry) -> bool:
    """Equal but for the name."""
    spec = dataclasses.replace(other.spec, name=one.spec.name)
    return (one.spec, one.sampling) == (spec, other.sampling)


def _applies(entry: DictConfig, override: Override) -> bool:
    """Whether an entry has the part (for `tree=static`) or setting (`acceptance.k=10`)."""
    key = override.key_or_group
    if override.input_line and override.input_line.startswith("+"):
        key = key.rsplit(".", 1)[0]
    if key in PARTS:
        return OmegaConf.select(entry, f"{key}._target_") is not None
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(entry, parent)
    return isinstance(node, DictConfig) and last in node


def _decoder_entry(name: str, raw: dict[str, Any], study: SamplingConfig) -> DecoderEntry:
    """The DecoderEntry of a composed config, whose keys it removes from the mapping."""
    parts: dict[str, Any] = {}
    for key in PARTS:
        values = dict(validate(f"{name}: {key}", raw.pop(key, None), dict | None) or NOTHING)
        if "_target_" not in values:
            raise ConfigError(
                f"{name}: conf/{key}/NAME.yaml has no `_target_`, which names the class, as in "
                f"`_target_: module.Class`; found {', '.join(values)}"
            )
        target = validate(f"{name}: {key}._target_", values.pop("_target_", None), str | None)
        parts[key] = None if target is None else PartSpec(target, values)
    if parts["loop"] is None:
        raise ConfigError(f"the decoder {name} has no loop; set loop._target_ in its YAML")
    sampling = validate(f"{name}: sampling", raw.pop("sampling", None), SamplingConfig)
    raw.pop("published", None)  # of `bench.compare.published`
    spec = DecoderSpec(name, **parts)
    values = raw | {"name": name, "spec": spec, "sampling": sampling.resolve(study)}
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
