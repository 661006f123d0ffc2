"""What `bench tune` is asked for: its grid (conf/tune_config.yaml) and the study it measures in.

Why through Hydra: a candidate is a tree and a rule of conf/, with the same names and settings as in
a study, and an override of the command line (`drafter=medusa`, `sampling.temperature=0`) reaches
every candidate just as it reaches every decoder of a study.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bench.config.compose import compose_study
from bench.config.describe import PARTS, own_words
from bench.config.hydra_edge import composed, with_study
from bench.config.schema import DecoderEntry, StudyConfig, build
from bench.config.words import split
from bench.data.errors import ConfigError
from decoders.compose import PartSpec
from decoders.kinds import Count, Share, Within, require


@dataclass(frozen=True)
class TuneConfig:
    """See conf/tune_config.yaml. k, delta and lam are the grids that `rules` refers to."""

    exactness: Literal["exact", "relaxed", "any"]
    tv: Share | None
    base: str
    trees: list[Any]
    rules: list[Any]
    k: list[Any]
    delta: list[Any]
    lam: list[Any]
    prompts: Count
    pairs: Count
    probes: Count
    measure: Annotated[int, Within(1, 10**6)]
    out: str | None

    def __post_init__(self) -> None:
        require(self, "tune.", ConfigError)
        if self.out is not None and not self.out.endswith(".yaml"):
            raise ConfigError(f"tune.out must end in .yaml, found {self.out!r}")
        for name in ("trees", "rules"):
            if not getattr(self, name):
                raise ConfigError(f"tune.{name} is empty: expected at least one item")


@dataclass(frozen=True)
class Option:
    """A tree or an acceptance rule of the grid; slug: its name and settings as one word; built: by
    the search, on its model."""

    slug: str
    spec: PartSpec
    built: Any = None

    @property
    def label(self) -> str:
        """In its own words."""
        return own_words(self.built, self.slug)


@dataclass(frozen=True)
class TuneStudy:
    """A search, resolved. study: what candidates are measured in, with AR alone in it; base: the
    loop, drafter and sampling of every candidate; words: the command line but for tune."""

    tune: TuneConfig
    study: StudyConfig
    base: DecoderEntry
    trees: list[Option]
    rules: list[Option]
    words: list[str]


def compose_tune(words: Sequence[str]) -> TuneStudy:
    """The validated search. Raises ConfigError on an unknown name or setting, a wrong type or an
    impossible value."""
    own = [word for word in words if split(word).group == "tune"]
    for word in own:
        if split(word).key == "tune":
            raise ConfigError(f"{word!r}: set one of tune.NAME=..., for example tune.measure=1")
    rest = with_study([word for word in words if word not in own], "tune")
    tune = build(TuneConfig, composed("tune_config", own)["tune"], "tune")
    study = compose_study([word for word in rest if split(word).group not in PARTS])
    if study.latency.prompts < 2:
        raise ConfigError(
            f"latency.prompts={study.latency.prompts}: a speed-up with an interval needs 2 or more"
        )
    if [entry.baseline for entry in study.decoders] != [True]:
        raise ConfigError(
            "a search is measured against AR alone; leave decoders= as study=tune has it and list "
            "what is to be searched in tune.trees and tune.rules"
        )
    base = compose_parts("tree", tune.trees, tune.base, rest)
    rules = compose_parts("acceptance", tune.rules, tune.base, rest)
    trees = [Option(e.name, e.spec.tree) for e in base if e.spec.tree is not None]
    judges = [Option(e.name, e.spec.acceptance) for e in rules if e.spec.acceptance is not None]
    if not trees or not judges:
        raise ConfigError(f"tune.base={tune.base}: expected a decoder with a tree and a rule")
    return TuneStudy(tune, study, base[0], trees, judges, rest)


def compose_parts(
    group: str, items: Sequence[Any], base: str, words: Sequence[str]
) -> list[DecoderEntry]:
    """A decoder `base` for every combination of `items` in its part `group`, tree or acceptance;
    those that the command line makes equal come once."""
    other = {"tree": "acceptance", "acceptance": "tree"}[group]
    kept = [word for word in words if split(word).group not in (other, "decoders")]
    listed = [
        {"decoder": base, "name": slug, "overrides": overrides}
        for slug, overrides in combinations(group, items)
    ]
    return list(compose_study([*kept, f"decoders={_word(listed)}"]).decoders)


def combinations(group: str, items: Sequence[Any]) -> Iterator[tuple[str, list[str]]]:
    """(slug, overrides) of every combination of the grid's lists, slugs distinct."""
    seen: dict[str, int] = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get(group), str):
            raise ConfigError(f"an item of the grid must be {{{group}: NAME, ...}}, found {item!r}")
        settings = {key: value for key, value in item.items() if key != group}
        lists = [v if isinstance(v, list) else [v] for v in settings.values()]
        if not all(lists):
            raise ConfigError(f"a list of the grid is empty: {item!r}")
        for values in itertools.product(*lists):
            chosen = dict(zip(settings, values, strict=True))
            slug = "_".join([item[group], *(_slug(k, v) for k, v in chosen.items())])
            seen[slug] = seen.get(slug, 0) + 1
            number = f".{seen[slug]}" if seen[slug] > 1 else ""
            words = [f"{group}={item[group]}"]
            words += [f"{group}.{key}={_word(value)}" for key, value in chosen.items()]
            yield slug + number, words


def _slug(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{key}{len(value)}" if isinstance(value, list) else f"{key}{value}"


def _word(value: Any) -> str:
    """A value in the grammar of overrides: JSON but for the keys of mappings."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_word(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return json.dumps(value)
