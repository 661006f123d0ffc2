"""What can be chosen: the groups of conf/ and their options, read without Hydra."""

from __future__ import annotations

from importlib.resources import files

FILES = ("config.yaml", "entry.yaml", "train_config.yaml", "recipe_config.yaml")  # every setting


def groups() -> dict[str, dict[str, str]]:
    """group -> option -> its YAML file, whose comments explain its settings."""
    texts = {}
    for folder in sorted(files("conf").iterdir(), key=lambda p: p.name):
        if folder.is_dir():
            options = sorted(folder.iterdir(), key=lambda p: p.name)
            texts[folder.name] = {
                p.name[:-5]: p.read_text() for p in options if p.name.endswith(".yaml")
            }
    return {group: options for group, options in texts.items() if options}


def settings() -> str:
    """The settings of a study, a decoder and a training, as their YAML files explain."""
    return "\n".join((files("conf") / name).read_text() for name in FILES)


def about(text: str) -> str:
    """The first line of an option's comment; "" where it has none."""
    lines = (line[2:].strip() for line in text.splitlines() if line.startswith("# "))
    return next((line for line in lines if not line.startswith("@")), "")
