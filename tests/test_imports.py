"""No import circles: every module can be read without those that import it, and a folder of
`decoders/` or `bench/` without those that build on it. No file is too long to be read at once, and
no folder holds too many."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import decoders

ROOT = Path(decoders.__file__).parents[1]
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Files of the three packages by their dotted names."""
    found = {}
    for top in ("bench", "decoders", "metrics"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Names that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports() -> Graph:
    """Module -> the modules that it imports."""
    files = modules()
    graph: Graph = {}
    for name, path in files.items():
        owners = (n if n in files else n.rpartition(".")[0] for n in imported(path))
        graph[name] = {owner for owner in owners if owner in files} - {name}
    return graph


def test_no_module_imports_one_that_imports_it() -> None:
    graph = imports()
    assert "decoders.api" in graph["decoders.noise"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


# Folders, each of which imports itself and those before it. Files at the top of `decoders` are of
# none.
LAYERS = {
    "decoders": (
        "api", "models", "training", "verify", "propose", "execution", "loops", "tiny",
    ),
    "bench": (
        "errors", "files", "version", "console", "config", "prompts", "measure", "store",
        "analyse", "gate", "run", "report", "compare", "commands", "notebook", "__main__",
    ),
}  # fmt: skip


def layer(name: str) -> int:
    """The place of a module's folder: that of the longest name in `LAYERS` that it begins with; -1
    for none."""
    top, _, inside = name.partition(".")
    within = [(len(f), at) for at, f in enumerate(LAYERS[top]) if f"{inside}.".startswith(f"{f}.")]
    return max(within, default=(0, -1))[1]


@pytest.mark.parametrize("top", LAYERS)
def test_folders_import_downwards_only(top: str) -> None:
    own = [name for name in imports() if name.startswith(f"{top}.")]
    assert top == "decoders" or all(layer(name) >= 0 for name in own)
    upward = {
        f"{name} imports {other}"
        for name in own
        for other in imports()[name]
        if other in own and -1 < layer(name) < layer(other)
    }
    assert not upward


def test_no_file_has_more_than_400_lines() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert not {name: size for name, size in sizes.items() if size > 400}


def test_no_folder_has_more_than_14_modules() -> None:
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules().values())
    assert not {name: count for name, count in folders.items() if count > 14}
