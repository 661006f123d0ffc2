"""What makes a decoder: a hash of every file of code behind its parts, and of its weights.

Why: a row must not outlive the code that it was decoded with. What counts are the modules that the
configuration names (loop, drafter, tree, rule, model), and all that they import in turn:

* a plug-in's own files, wherever they lie; what it imports from installed packages does not count;
* of this project the files of `decoders/` that the part reaches. An edit of the LANTERN rule
  decodes LANTERN's rows again and leaves AR's; news elsewhere do not undo a finished study;
* not the harness (`bench/`, `metrics/`): what it writes is the business of the schema's version.

Comments, docstrings and layout do not count. Imports are read, not run, so a module that is
imported by a name made at run time is not seen, nor is data that a plug-in opens by itself.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from bench.config.schedule import Cell
from bench.config.schema import StudyConfig
from bench.data.files import WEIGHTS
from decoders.api import ImageModel
from decoders.models.weights import sha256_of

HARNESS = ("bench", "metrics")
OWN = "decoders"
SHARED = ("decoders.noise", "decoders.executed", "decoders.loops.start")
NATIVE = (".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh")  # compiled by the module beside them
CONFIG = "config.json"  # of a checkpoint, read together with its weights
INSTALLED = ("site-packages", "dist-packages")
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def sources_of(targets: Iterable[str]) -> dict[str, str]:
    """Files behind dotted paths (`package.module.Class` or `module:Class`) -> their digests, and of
    what every decoder shares. A file is named as it is imported: my_drafter.py, rules/mine.py.

    A module that is not there is named too, as missing: once it is there, it has changed.
    """
    names = [t.partition(":")[0] if ":" in t else t.rpartition(".")[0] for t in targets]
    own = {name.partition(".")[0] for name in (*names, OWN)}
    waiting, seen, found = [*names, *SHARED], set[str](), dict[str, str]()
    while waiting:
        name = waiting.pop()
        parents = name.rpartition(".")[0]
        waiting += [parents] if parents and parents not in seen else []
        if name in seen or name.partition(".")[0] in HARNESS:
            continue
        seen.add(name)
        spec = _spec(name)
        if spec is None:
            found |= {f"{name.replace('.', '/')}.py": "missing"} if name in names else {}
        elif spec.origin and _counts(name, Path(spec.origin), own):
            file, place = Path(spec.origin), name.replace(".", "/")
            if spec.submodule_search_locations is None:
                found[place + file.suffix], imports = code_of(file, parents)
            else:  # a package, with its sources in C++ or CUDA
                found[f"{place}/{file.name}"], imports = code_of(file, name)
                native = (p for p in file.parent.iterdir() if p.suffix in NATIVE)
                found |= {f"{place}/{p.name}": code_of(p)[0] for p in native}
            waiting += imports
    return dict(sorted(found.items()))


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies, without running anything of it; None where it does not exist."""
    parent = name.rpartition(".")[0]
    if parent:
        above = _spec(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        return PathFinder.find_spec(name, list(above.submodule_search_locations))
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module without one: __main__
        return None


def _counts(name: str, file: Path, own: set[str]) -> bool:
    """Whether a file is part of what made a row: not one of Python's, nor of another package that
    is installed."""
    if not file.is_file():  # built in, frozen
        return False
    if name.partition(".")[0] in own:
        return True
    library = (sysconfig.get_path(key) for key in ("stdlib", "platstdlib"))
    outside = not any(file.is_relative_to(folder) for folder in library)
    return outside and not set(INSTALLED) & set(file.parts)


@functools.cache  # a process goes on with the code that it has imported, whatever the file says now
def code_of(file: Path, package: str = "") -> tuple[str, tuple[str, ...]]:
    """(12 hex digits of what a file's code says, the names that it imports anywhere, but for types
    alone). Comments and docstrings of Python say nothing; `package`: what `.` means in it. What
    cannot be read as Python counts byte by byte."""
    content, names = file.read_bytes(), tuple[str, ...]()
    if file.suffix == ".py":
        with suppress(SyntaxError, ValueError):
            tree = ast.parse(content)
            names = tuple(dict.fromkeys(_imported(tree, package)))
            for node in ast.walk(tree):
                if isinstance(node, DOCUMENTED):
                    node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
            content = ast.dump(tree).encode()
    return hashlib.sha256(content).hexdigest()[:12], names


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    below: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        below = node.orelse
    for child in below:
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parts = package.split(".")[: 1 - child.level or None]
                base = ".".join([*parts, *([base] if base else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in child.names))
        else:
            yield from _imported(child, package)


def sources_by_cell(config: StudyConfig, cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Of each cell: source files of its parts and its model -> digests."""
    return {
        cell.key: sources_of([*(p.target for p in cell.entry.spec.parts), config.model.target])
        for cell in cells
    }


def weights_of(model: ImageModel, cells: Sequence[Cell]) -> Callable[[], dict[str, dict[str, str]]]:
    """What tells of each cell, once all decoders are built, the digests of the model's own weights,
    of those that its parts have loaded and of those in files and folders that its settings name.
    Weights loaded from what no setting names count for every decoder. Called before any decoder of
    the model is built."""
    named = {name: s for name, s in model.drafters.items() if isinstance(s, str)}
    before, sources = dict(model.weights_sha256), dict[str, set[str]]()
    for cell in cells:
        own = (word for part in cell.entry.spec.parts for word in words(part.kwargs))
        sources[cell.key] = {named.get(word, word) for word in own}
    claimed = set[str]().union(*sources.values())

    def found(own: set[str]) -> dict[str, str]:
        out = dict(before)
        for name, value in model.weights_sha256.items():
            source = name.rpartition("/")[0]
            if source in own or source not in claimed:
                out[name] = value
        for folder in sorted(own):
            unread = [p for p in weight_files(folder) if f"{folder}/{p.name}" not in out]
            out |= {str(file): sha256_of(file) for file in unread}
        return out

    return lambda: {key: found(own) for key, own in sources.items()}


def words(value: Any) -> Iterator[str]:
    """Strings in a part's settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from words([*value.values()])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from words(inner)


def weight_files(word: str) -> list[Path]:
    """The weights that a setting names: a file, or those directly in a folder."""
    path = Path(word).expanduser()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [p for p in files if (p.suffix in WEIGHTS or p.name == CONFIG) and p.is_file()]
    except (OSError, ValueError, RuntimeError):  # no name of a file, or not to be read
        return []
