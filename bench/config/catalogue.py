"""What can be chosen: the groups of conf/ and their options, read without Hydra."""

from __future__ import annotations

from importlib.resources import files

FILES = ("config.yaml", "entry.yaml", "train_config.yaml", "recipe_config.yaml")  # every setting


def groups() -> dict[str, dict[str, str]]:
    """group -> option -> the first line of its comment ("" where it has none)."""
    root = files("conf")
    found = {}
    for folder in sorted(root.iterdir(), key=lambda p: p.name):
        if not folder.is_dir():
            continue
        texts = {p.name[:-5]: p.read_text() for p in folder.iterdir() if p.name.endswith(".yaml")}
        if texts:
            found[folder.name] = {name: _about(texts[name]) for name in sorted(texts)}
    return found


def settings() -> str:
    """The settings of a study, a decoder and a training, as their YAML files explain."""
    root = files("conf")
    return "\n".join((root / name).read_text() for name in FILES)


def option(group: str, name: str) -> str:
    """The settings of an option of a group, as its YAML file explains them."""
    return (files("conf") / group / f"{name}.yaml").read_text()


def _about(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("# ") and not line.startswith("# @"):
            return line[2:].strip()
    return ""
