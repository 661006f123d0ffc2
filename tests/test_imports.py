"""No import circles: every module can be read without those that import it, and a room of
`decoders/` without the rooms that build on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

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


def imports() -> Graph:
    """Module -> the modules that it imports."""
    files = modules()
    graph: Graph = {}
    for name, path in files.items():
        owners = (n if n in files else n.rpartition(".")[0] for n in imported(path))
        graph[name] = {owner for owner in owners if owner in files} - {name}
    return graph


def circle(graph: Graph) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert not circle({"a": {"b"}, "b": {"c"}})
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_no_module_imports_one_that_imports_it() -> None:
    graph = imports()
    assert len(graph) > 200 and "decoders.api" in graph["decoders.noise"]
    assert not circle(graph)


def room(name: str) -> str:
    """The room of a module of `decoders/`: its folder; a model's text and images are one with it,
    and a file at the top is its own."""
    parts = modules()[name].relative_to(ROOT).parts[:-1]
    whole = "/".join(parts[:2] if "models" in parts else parts)
    return whole if len(parts) > 1 else name


def test_no_room_of_decoders_imports_one_that_builds_on_it() -> None:
    graph: Graph = {}
    for name, others in imports().items():
        if name.startswith("decoders."):
            mine = {room(other) for other in others if other.startswith("decoders.")}
            graph.setdefault(room(name), set()).update(mine - {room(name)})
    assert "decoders/models" in graph["decoders/propose/drafters"]
    assert not circle(graph)
