"""`python -m bench list`: what conf/ has to choose from, settings, and columns.

Why without Hydra: it composes nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib.resources import files
from itertools import takewhile

import yaml

from bench.config.arguments import groups
from bench.console import say
from bench.errors import ConfigError
from bench.report.table import table_of_texts, terminal
from decoders.errors import unknown

# Their comments explain every setting of a study, a decoder, a training and a recipe.
SETTINGS_FILES = ("config.yaml", "entry.yaml", "train_config.yaml", "recipe_config.yaml")
TERMINAL_WIDTH = 100  # columns of characters


def cmd_list(arguments: Sequence[str]) -> int:
    """Decoders, models, studies, ...; `list settings`: what can be set; `list columns`: of tables.

    arguments:
      GROUP         the options of a group: decoder, model, study, tree, ...
      GROUP=OPTION  the settings of one option
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
            parts = [
                one
                for one, texts in options.items()
                if any(group in (yaml.safe_load(text) or ()) for text in texts.values())
            ]
            hint = "".join(f". {group} is set in {one}: `list {one}=NAME`" for one in parts[:1])
            raise ConfigError(unknown("group", group, [*options, "settings", "columns"]) + hint)
        elif not name:
            say(f"{group}=")
            for option, text in options[group].items():
                say(described(option, text, max(map(len, options[group]))))
        elif name in options[group]:
            say(options[group][name].rstrip())
        else:
            raise ConfigError(unknown(group, name, options[group]))
    return 0


def described(option: str, text: str, width: int) -> str:
    """An option behind its name, by the comment at the head of its YAML. Indented lines of it are
    commands, and stay as they are."""
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line[2:] for line in head if not line.startswith("# @")]
    prose = " ".join(line for line in lines if not line.startswith(" "))
    indent, named = " " * (width + 4), f"  {option:<{width}}  {prose}".rstrip()
    filled = textwrap.fill(named, TERMINAL_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join([filled, *(indent + line for line in lines if line.startswith(" "))])
