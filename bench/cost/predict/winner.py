"""The winner of a search as a decoder: its file in YAML, and the command that runs it.

Why checked before the search: a file that cannot be written, or that no command could choose
afterwards, must not cost the minutes of a search first.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bench.config.catalogue import groups
from bench.config.describe import PARTS, as_yaml
from bench.config.hydra_edge import parse_override
from bench.config.schema import DecoderEntry
from bench.config.words import split
from bench.data.errors import ConfigError
from bench.records.schema import write_text

GROUP = "decoder"  # the folder in which Hydra finds decoders
MARK = "Found by `bench tune`"  # in a comment of every file that a search writes
CARRIED = ("model", "backend", "prompts", "seed", "sampling")  # words that a run of it needs too


def claim(path: Path) -> None:
    """Makes sure that the winner can be written to `path` and chosen from there; makes its folder.

    Raises ConfigError: not in a folder called decoder, no name, the name of another decoder, a file
    that no search wrote, a folder that cannot be made.
    """
    ours = Path(str(files("conf"))) / GROUP
    if path.parent.name != GROUP or not re.fullmatch(r"[\w-]+", path.stem):
        raise ConfigError(
            f"tune.out={path}: decoders are found as DIR/{GROUP}/NAME.yaml, so write "
            f"conf/{GROUP}/NAME.yaml or a folder of your own, NAME in letters, digits, _ and -"
        )
    if path.parent.resolve() != ours.resolve() and path.stem in groups()[GROUP]:
        raise ConfigError(f"tune.out={path}: there is a decoder {path.stem} already; rename yours")
    try:
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise ConfigError(
                f"tune.out={path} exists and no search wrote it; choose another name or remove it"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"tune.out={path} cannot be written: {error}") from error


def write_decoder(path: Path, entry: DecoderEntry, verdict: str, comments: Sequence[str]) -> None:
    """An entry as an option of conf/decoder: `decoder=<the file's name>` composes it again.

    verdict: the gate's, which becomes what `bench check` expects; comments: one of them with MARK.
    """
    spec = entry.spec
    content: dict[str, Any] = {name: as_yaml(getattr(spec, name)) for name in PARTS}
    sampling = {k: v for k, v in dataclasses.asdict(entry.sampling).items() if v is not None}
    if sampling:
        content["sampling"] = sampling
    if verdict in ("exact", "relaxed", "broken"):
        content["expect"] = verdict
    head = ["# @package _global_", *(f"# {line}" for line in comments)]
    text = "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False)
    write_text(path, text)


def command(path: Path, words: Sequence[str]) -> str:
    """The command line that runs the decoder at `path` and AR, with those words of the search
    that say on what: model, backend, prompts, seed, sampling."""
    places: list[str] = []
    carried: list[str] = []
    for word in words:
        if split(word).key == "hydra.searchpath":
            value = parse_override(word).value()
            places += map(str, value if isinstance(value, list) else [value])
        elif split(word).group in CARRIED:
            carried.append(word)
    if path.parent.resolve() != (Path(str(files("conf"))) / GROUP).resolve():
        places.append(f"file://{path.parent.parent.resolve()}")
    search = [f"hydra.searchpath=[{','.join(places)}]"] if places else []
    run = ["python", "-m", "bench", "run", f"name={path.stem}", f"decoders=[ar,{path.stem}]"]
    return shlex.join([*run, *carried, *search])
