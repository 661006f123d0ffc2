"""No import circles: every module can be read without those that import it, and a folder of
`decoders/` without those that build on it. No file is too long to be read at once."""

import ast
from collections.abc import Iterator
from functools import cache
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


@cache
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


# The folders of `decoders/`: one imports those before it. Files at the top are of none.
LAYERS = (
    "api", "kernels", "models", "training", "verify", "propose", "execution", "loops", "peers",
    "tiny",
)  # fmt: skip
UPWARD = 2  # imports that go the other way; may only become fewer


def folder(name: str) -> str:
    """The folder of `decoders/` that holds a module; "" for a file at the top."""
    top, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return first if top == "decoders" and first in LAYERS else ""


def test_folders_of_decoders_import_downwards_only() -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in sorted(others)
        if folder(name) and folder(other)
        if LAYERS.index(folder(other)) > LAYERS.index(folder(name))
    ]
    assert len(upward) <= UPWARD, upward


FLOORS = (
    ("data", "console"),
    ("config", "prompts"),
    ("records",),
    ("cost", "measure"),
    ("judge",),
    ("records.load", "records.run_data", "records.run_json"),  # rows with what was judged of them
    ("run",),
    ("report",),
    ("compare",),
    ("cost.plan", "cost.predict", "cost.profile"),  # what is computed with costs
    ("commands", "__main__", "notebook"),
)  # of bench/: a floor imports itself and those above it in this list
KNOWN = {"bench.run.launch.task imports bench.__main__"}  # a worker is the program once more


def floor(name: str) -> int:
    """The place of a module's floor in `FLOORS`: that of the longest name which it begins with."""
    whole = name.removeprefix("bench.") + "."
    found = [
        (len(r), at) for at, rooms in enumerate(FLOORS) for r in rooms if whole.startswith(r + ".")
    ]
    return max(found)[1]


def test_floors_of_bench_import_downwards_only() -> None:
    upward = {
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if name.startswith("bench.") and other.startswith("bench.") and floor(name) < floor(other)
    }
    assert upward <= KNOWN


def test_no_file_has_more_than_400_lines() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert not {name: size for name, size in sizes.items() if size > 400}
