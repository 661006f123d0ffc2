"""The released static trees: the authors' paths under the authors' names, in studies and rows."""

import hashlib
import json
from pathlib import Path

import pytest

import conf
from bench.config.compose import compose_study
from decoders.propose.trees.static import Static

# Level widths, and the hash of the paths as JSON, by length and then by ranks.
RELEASED = {
    "chain": ([1, 1, 1, 1, 1], "822d17625509e222"),
    "mc_sim_7b_63": ([4, 8, 8, 3, 2], "523717d6431e7672"),
    "mc_sim_7b_63_balanced": ([3, 8, 9, 3, 2], "6315eba67ab756e8"),
    "medusa_2_7b_63": ([10, 23, 23, 7], "ac1b77303fb35bfe"),
    "naive_extend_57": ([5, 13, 16, 14, 9], "b790ccdf7aff677c"),
    "reverse_balanced_25": ([3, 4, 6, 5, 7], "ea4558de8f7ddb4a"),
}
STUDIES = sorted(p.stem for p in (Path(conf.__file__).parent / "study").glob("*_table*.yaml"))


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_tree_has_the_authors_paths(name: str) -> None:
    widths, digest = RELEASED[name]
    tree = Static(choices=name)
    paths = json.dumps([list(path) for path in tree.paths])
    assert hashlib.sha256(paths.encode()).hexdigest()[:16] == digest
    assert [tree.level_of.count(d) for d in range(1, tree.depth + 1)] == widths
    assert str(tree) == f"static({name}, depth={len(widths)}, nodes={sum(widths)})"


@pytest.mark.parametrize("study", STUDIES)
def test_tables_run_the_released_trees(study: str) -> None:
    trees = [entry.spec.tree for entry in compose_study([f"study={study}"]).decoders]
    static = [tree for tree in trees if tree is not None and tree.target.endswith("Static")]
    assert {str(tree.kwargs["choices"]) for tree in static} <= RELEASED.keys()
    dynamic = [tree.kwargs for tree in trees if tree is not None and tree not in static]
    assert all(tree == {"depth": 5, "top_k": 10, "nodes": 58} for tree in dynamic)
