"""Trees, rules and a drafter built once, and decoders put together from them.

Why not one decoder a candidate from its configuration: a relaxed rule's table of neighbours takes
seconds to make, and hundreds of candidates share a handful of rules and trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.speed.model import TreeShape
from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import PartSpec, build_part


@dataclass(frozen=True)
class Workshop:
    """What all candidates share. loop: its specification, as a loop is built with its parts."""

    model: ImageModel
    sampling: Sampling
    loop: PartSpec
    drafter: Any

    def decoder(self, tree: Any, rule: Any) -> Decoder:
        """A decoder of a built tree and a built rule. Raises DecoderError."""
        built: Decoder = build_part(
            self.loop,
            self.model,
            sampling=self.sampling,
            drafter=self.drafter,
            tree=tree,
            acceptance=rule,
        )
        return built


def shape_of(tree: Any) -> TreeShape:
    """What a built tree asks of a step.

    A tree of fixed shape (`paths`) has a call of the drafter for every level but the last, from the
    nodes that have children; any other one is taken to go on from equally many nodes at every level
    (`decoders.drafters.session.Tree`: session_nodes).
    """
    paths = getattr(tree, "paths", None)
    if paths is None:
        calls = tree.depth - 1
        expands = (tree.session_nodes // calls,) * calls if calls else ()
        return TreeShape(str(tree), tree.nodes, tree.depth, tree.branching, expands, None)
    fixed = tuple(tuple(path) for path in paths)
    return TreeShape(
        str(tree), tree.nodes, tree.depth, tree.branching, _parents_by_level(fixed), fixed
    )


def _parents_by_level(paths: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Nodes with children at levels 1..D - 1."""
    depth = max(map(len, paths))
    parents = {path[:-1] for path in paths}
    return tuple(sum(len(p) == level for p in parents) for level in range(1, depth))
