"""The commands, and `python -m bench COMMAND --help` from the docstring of each.

A docstring says what the command does, and then in lines of this form, which end its help:

    Usage: [RUN ...] [setting=value ...]          (where not only settings are given)
    Settings: study run_dir ...                   (of `SOME`; `...`: all settings of a study)
        top=N  what it means
        profile.*  FILE CLASS                     (fields of a class, or keys of a YAML file)
    Example: profile decoders=[ar]

Why read as text: help must answer in under a second, and a command's own module imports torch or
Hydra. What a setting means stands in a comment behind it: `top: int = 12  # N operators shown`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDY = "bench.commands.study"
COMMANDS = {
    "run": STUDY,
    "sweep": STUDY,
    "report": STUDY,
    "check": STUDY,
    "compare": "bench.compare.compare",
    "diff": "bench.compare.diff",
    "fetch": "bench.commands.fetch",
    "evaluate": "bench.commands.evaluate",
    "train": "bench.commands.train",
    "list": STUDY,
}  # name -> module
SOME = {
    "study": ("study=NAME", "which study (`list study`; default: main, unless said above)"),
    "decoders": ("decoders=[a,b]", "decoders of the study, or any of conf/decoder"),
    "run_dir": ("run_dir=DIR", "the run's folder (default: results/runs/<study>)"),
}
MORE = "All settings of a study can be given: `python -m bench list settings`."
FORM = re.compile(
    r"(?P<does>.*?)\n(Usage: (?P<words>[^\n]*)\n)?Settings:(?P<some>[^\n]*)\n"
    r"(?P<own>.*?)Example: (?P<example>[^\n]*)",
    re.DOTALL,
)
FIELD = re.compile(r" +(?P<name>\w+): *(?P<kind>[^=#]*?)( = (?P<usual>[^#]*?))? +# (?P<what>.*)")


def manual(command: str) -> str:
    """The help of a command."""
    found = form_of(command)
    some, own = found["some"].split(), [*_own(found["own"])]
    settings = [SOME[name] for name in some if name in SOME] + own
    width = max(len(name) for name, _ in settings)
    words = found["words"] or "[setting=value ...]"
    lines = [f"usage: python -m bench {command} {words}", "", found["does"], "", "settings:"]
    lines += [f"  {name:<{width}}  {what}" for name, what in settings]
    lines += ["", MORE] if "..." in some else []
    return "\n".join([*lines, "", "example:", f"  python -m bench {found['example']}"])


def about(command: str) -> str:
    """What a command does in a line."""
    first = form_of(command)["does"].partition("\n")[0].rstrip(".")
    return first[0].lower() + first[1:]


def form_of(command: str) -> re.Match[str]:
    """The docstring of a command's function, taken apart."""
    tree = ast.parse(_source(COMMANDS[command].replace(".", "/") + ".py"))
    name = f"cmd_{command.replace('-', '_')}"
    (own,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    found = FORM.match(ast.get_docstring(own) or "")
    assert found is not None, f"the docstring of {name} has another form"
    return found


def _own(text: str) -> Iterator[tuple[str, str]]:
    """(as it is written, what it means) of the lines below `Settings:`."""
    for line in text.splitlines():
        name, _, what = line.strip().partition("  ") if line[4:5] != " " else ("", "", line)
        if name.endswith("*"):
            yield from _fields(name[:-1], *what.split())
        else:
            yield name, what.strip()


def _fields(prefix: str, file: str, name: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a class, or the keys of a YAML file, that have a comment. Capitals that begin
    it stand for a value, in place of the usual one."""
    text = _source(file)
    if name:
        (cls,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name)
        text = ast.get_source_segment(text, cls) or ""
    for field in filter(None, map(FIELD.fullmatch, text.splitlines())):
        value, _, what = field["what"].partition(" ")
        if not re.fullmatch(r"\W*[A-Z]+\W*|[A-Z]+\.\w+", value):
            value, what = field["usual"] or field["kind"] or "...", field["what"]
            value = value.strip('"').replace("True", "true").replace("False", "false")
        yield f"{prefix}{field['name']}={value}", what


def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")
