"""Trees, rules and a drafter built once, and decoders put together from them.

Why not one decoder a candidate from its configuration: a relaxed rule's table of neighbours takes
seconds to make, and hundreds of candidates share a handful of rules and trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.predict.model import TreeShape
from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import PartSpec, build_part
from decoders.propose.grown import Grown
from decoders.verify.by_node import ByNode


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
            proposer=Grown(self.drafter, tree),
            verifier=ByNode(rule),
        )
        return built


def shape_of(tree: Any) -> TreeShape:
    """The shape of a built tree; `paths` are those of a tree that has the same in every step."""
    paths = getattr(tree, "paths", None)
    fixed = None if paths is None else tuple(tuple(path) for path in paths)
    return TreeShape(str(tree), tree.nodes, tree.depth, tree.branching, fixed)
