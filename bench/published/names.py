"""names.yaml: which of our models, methods, prompt sets and features a published name means.

Why a data file and not code: the harness knows protocols, never a concrete decoder (DESIGN), and a
new paper's row must not need a change of code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.published.table import DEFAULT, PublishedError

FILE = DEFAULT.with_name("names.yaml")
SECTIONS = ("models", "families", "methods", "prompts", "features", "images")


@dataclass(frozen=True)
class Method:
    """How rows of a method are recognised: first words of `loop`, `drafter` (or the proposer that
    stands there), `acceptance` and `tree` ("": any); protocol: settings of its tree in the
    papers."""

    acceptance: str
    loop: str = "speculative"
    drafter: str = ""
    tree: str = ""
    protocol: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """models: our name -> (published name, resolution); families: published name -> members."""

    models: Mapping[str, tuple[str, float]]
    families: Mapping[str, Sequence[str]]
    methods: Mapping[str, Method]
    prompts: Mapping[str, str]
    features: Mapping[str, Sequence[str]]
    images: int

    def same_features(self, metric: str, name: str) -> bool:
        """Whether features or weights of this name are those of the papers' protocol."""
        words = set(re.split(r"[^a-z0-9.]+", name.lower()))
        return all(word in words for word in self.features.get(metric, ()))


def load(path: Path = FILE) -> Names:
    """Reads the file. Raises PublishedError on a missing file or section, or a wrong entry."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PublishedError(f"cannot read {path} ({error}); restore it from git") from error
    if not isinstance(found, dict) or set(found) != set(SECTIONS):
        keys = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise PublishedError(f"{path}: expected the sections {list(SECTIONS)}, found {keys}")
    try:
        return Names(
            models={k: (str(v["model"]), v["resolution"]) for k, v in found["models"].items()},
            families=found["families"],
            methods={name: Method(**entry) for name, entry in found["methods"].items()},
            prompts=found["prompts"],
            features={k: [str(word).lower() for word in v] for k, v in found["features"].items()},
            images=_count(path, found["images"]),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise PublishedError(
            f"{path}: an entry has not the form of its neighbours ({error}); see the comments there"
        ) from error


def _count(path: Path, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise PublishedError(f"{path}: images must be a whole number above 0, found {value!r}")
    return value
