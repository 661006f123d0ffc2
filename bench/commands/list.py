"""`python -m bench list`: what conf/ has to choose from, settings, and columns.

Why without Hydra: it composes nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import takewhile

import yaml

from bench.config.arguments import groups, groups_with
from bench.console import say
from bench.errors import ConfigError
from bench.report.table import table_of_texts, terminal
from decoders.errors import unknown
from decoders.spec import PARTS

# Their comments explain every setting of a study, a decoder, a training and a recipe.
SETTINGS_FILES = ("config.yaml", "entry.yaml", "train_config.yaml", "recipe_config.yaml")
TERMINAL_WIDTH = 100  # columns of characters
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")  # the number of a paper


def cmd_list(arguments: Sequence[str]) -> int:
    """Decoders, models, studies, ...; `list settings`: what can be set; `list columns`: of tables.

    arguments:
      GROUP         the options of a group: decoder, model, study, tree, ...
      GROUP=OPTION  the settings of one option; of a decoder or a part with BibTeX of its papers
      settings      all settings of a study and a training
      columns       the columns of records.parquet and summary.csv: type, unit, meaning

    example:
      python -m bench list acceptance=lantern
    """
    options = groups()
    for argument in arguments or options:
        group, _, name = argument.partition("=")
        if group not in options:  # its plural is taken too
            group = "study" if group == "studies" else group.removesuffix("s")
        if group in ("column", "setting") and name:
            raise ConfigError(
                f"expected `list {group}s`, which shows all of them, found {argument!r}"
            )
        if group == "column":
            from bench.analyse.figures import FIGURES
            from bench.store.columns import ROW

            heads, texts = ("column", "type", "unit", "meaning"), []
            rows = [(c.name, c.type, c.unit, c.meaning) for c in ROW]
            summary = [cells for one in FIGURES if one.exported for cells in one.columns()]
            for file, cells in (("records.parquet", rows), ("summary.csv", summary)):
                texts.append(f"{file}\n{terminal(table_of_texts(heads, cells))}")
            say("\n\n".join(texts))
        elif group == "setting":
            say("\n".join((files("conf") / name).read_text() for name in SETTINGS_FILES))
        elif group not in options:
            parts = groups_with(group)[:1]
            hint = "".join(f". {group} is set in {one}: `list {one}=NAME`" for one in parts)
            raise ConfigError(unknown("group", group, [*options, "settings", "columns"]) + hint)
        elif not name:
            say(f"{group}=")
            for option, text in options[group].items():
                say(described(option, text, max(map(len, options[group]))))
        elif name in options[group]:
            say(options[group][name].rstrip())
            if papers := citations(group, name, options):
                say("\n" + "\n\n".join(papers))
        else:
            raise ConfigError(unknown(group, name, options[group]))
    return 0


def citations(group: str, name: str, options: Mapping[str, Mapping[str, str]]) -> list[str]:
    """BibTeX of the papers whose arXiv numbers stand at the head of the YAML of a decoder or part,
    and of those of its parts; a comment for a paper that papers.bib does not have."""
    if group not in ("decoder", *PARTS):
        return []
    from bench.compare.published import FOLDER  # pandas

    text = options[group][name]
    chosen = [one for one in yaml.safe_load(text).get("defaults", ()) if isinstance(one, Mapping)]
    parts = [(str(key).rpartition("/")[2], part) for one in chosen for key, part in one.items()]
    texts = [text, *(options[group][part] for group, part in parts)]
    heads = "\n".join(line for text in texts for line in _head(text))
    file = FOLDER / "papers.bib"
    entries = re.findall(r"^@\w+\{.*?^\}$", file.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    known = {ARXIV.findall(entry)[-1]: entry for entry in entries}
    numbers = dict.fromkeys(ARXIV.findall(heads))
    return [known.get(n, f"% arXiv:{n} is not in {file.name}") for n in numbers]


def _head(text: str) -> list[str]:
    """The lines of the comment at the head of a YAML."""
    return [*takewhile(lambda line: line.startswith("#"), text.splitlines())]


def described(option: str, text: str, width: int) -> str:
    """An option behind its name, by the comment at the head of its YAML. Indented lines of it are
    commands, and stay as they are."""
    lines = [line[2:] for line in _head(text) if not line.startswith("# @")]
    prose = " ".join(line for line in lines if not line.startswith(" "))
    indent, named = " " * (width + 4), f"  {option:<{width}}  {prose}".rstrip()
    filled = textwrap.fill(named, TERMINAL_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join([filled, *(indent + line for line in lines if line.startswith(" "))])
