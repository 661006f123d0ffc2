"""Static trees: one shape for every step; children drawn without replacement (EAGLE-1, LANTERN++).

A shape is a list of paths, each a tuple of child ranks from the root: ``[0, 2]`` is the third
child of the root's first child. At temperature 0 the children are the drafter's top codes instead
of draws.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, DraftSession, Sampling, Tree
from decoders.cache import ancestry
from decoders.checks import likeliest, require_logits
from decoders.distribution import draw_distinct, probabilities
from decoders.errors import unknown
from decoders.kinds import validate
from decoders.noise import DRAFT_SLOT, MAX_CHILDREN, Noise

NodePath = tuple[int, ...]


@cache
def named_trees() -> dict[str, list[NodePath]]:
    """The paths of every named tree: the released ones, which are the authors' paths under the
    authors' names (METHODS 4; level widths do not determine a tree), and two smaller ones."""
    text = Path(__file__).with_name("trees.json").read_text(encoding="utf-8")
    return {name: [tuple(path) for path in paths] for name, paths in json.loads(text).items()}


def parse_choices(choices: str | Sequence[Sequence[int]]) -> list[NodePath]:
    """A tree's name, or its paths -> sorted paths. DecoderError on an unknown name, what is no list
    of paths, a hole in the tree, or a path that stands twice."""
    if isinstance(choices, str):
        if choices not in (trees := named_trees()):
            message = unknown("static tree", choices, trees)
            raise DecoderError(f"{message}; or give its paths, as in [[0],[1],[0,0]]")
        return sorted(trees[choices], key=lambda p: (len(p), p))
    given: Sequence[Sequence[int]] = validate("tree.choices", choices, Sequence[Sequence[int]])
    paths: list[NodePath] = sorted((tuple(path) for path in given), key=lambda p: (len(p), p))
    every = {*paths, ()}
    if not paths:
        raise DecoderError("tree.choices is empty: expected at least one path, such as [[0]]")
    for path, before in zip(paths, [None, *paths], strict=False):
        if path == before:
            raise DecoderError(f"tree.choices holds the path {list(path)} twice; leave one out")
        if not path:
            raise DecoderError(
                "tree.choices holds the empty path: the root is implied, leave it out"
            )
        if path[:-1] not in every:
            raise DecoderError(
                f"tree.choices: path {list(path)} has no parent {list(path[:-1])}; add "
                "it, or remove the path"
            )
        if path[-1] < 0 or (path[-1] > 0 and (*path[:-1], path[-1] - 1) not in every):
            raise DecoderError(
                f"tree.choices: path {list(path)} skips the earlier sibling "
                f"{[*path[:-1], path[-1] - 1]}; ranks of siblings count from 0"
            )
        if path[-1] >= MAX_CHILDREN:
            raise DecoderError(
                f"tree.choices: path {list(path)} has rank {path[-1]}; a node has at "
                f"most {MAX_CHILDREN} children"
            )
    return paths


@dataclass(frozen=True)
class Level:
    """One level to draw, from the nodes above that have children. Index tensors, int64."""

    count: int  # most children of a parent
    parents: Tensor  # [parents] node indices
    offsets: Tensor | None  # [parents] their position within their own level; None: all, in order
    grandparents: Tensor  # [1, parents] the parents' parents
    pick: Tensor | None  # [width] of the [parents * count] draws, in node order; None: all
    padded: Tensor | None  # [widest level's parents], of the parents; None: all, as they are


@dataclass(frozen=True)
class Shape:
    """A static tree as tensors on a device."""

    levels: list[Level]
    parent: Tensor  # [1, N + 1]
    depth: Tensor  # [1, N + 1]
    children: Tensor  # [1, N + 1, K]
    ancestry: Tensor  # [1, N + 1, N + 1] bool, see `decoders.api.Draft`
    inner: Tensor  # nodes that have children, level by level

    def draft(self, codes: Tensor, children: Tensor, q: Tensor | None) -> Draft:
        """codes [B, N + 1], children [B, N + 1, K], q [B, N + 1, V] -> a draft of this shape."""
        batch = len(codes)
        parent, depth = self.parent.expand(batch, -1), self.depth.expand(batch, -1)
        above = self.ancestry.expand(batch, -1, -1)
        inner = tuple(level.parents for level in self.levels)
        return Draft(codes, parent, depth, children, q, len(self.levels), above, inner=inner)


class Static(Tree):
    """A fixed tree. ``choices``: a name of `named_trees`, or a list of paths."""

    paths: list[NodePath]

    def __init__(
        self, model: Any = None, choices: str | Sequence[Sequence[int]] = "mc_sim_7b_63"
    ) -> None:
        del model
        self.paths = parse_choices(choices)
        self.label = choices if isinstance(choices, str) else f"{len(self.paths)} nodes"
        index = {(): 0, **{path: i + 1 for i, path in enumerate(self.paths)}}
        self.nodes = len(self.paths)
        self.depth = max(len(path) for path in self.paths)
        self.branching = 1 + max(path[-1] for path in self.paths)
        self.session_nodes = self.nodes
        self.parent = [0] + [index[path[:-1]] for path in self.paths]
        self.level_of = [0] + [len(path) for path in self.paths]
        self._shape: Shape | None = None

    def __str__(self) -> str:
        return f"static({self.label}, depth={self.depth}, nodes={self.nodes})"

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        """root_logits [B, V]; position [B], position of the root's child. See
        `decoders.api.Draft`."""
        batch, vocab = root_logits.shape
        shape = self.shape_on(root_logits.device)
        by_level: list[Tensor] = []  # distributions of every level's parents
        codes = [session.root_code[:, None]]  # [B, 1]
        logits = root_logits[:, None]  # [B, parents, V]
        for depth, level in enumerate(shape.levels, 1):
            probs, parents = probabilities(logits, sampling), len(level.parents)
            by_level.append(probs[:, :parents])
            if sampling.greedy:
                drawn = likeliest(probs, level.count)[1]  # [B, parents, count]
            else:
                drawn = self.draw(probs, level, noise, position + depth - 1)
            new = chosen(drawn[:, :parents].flatten(1), level.pick)  # [B, width]
            codes.append(new)
            if depth < self.depth:
                below = shape.levels[depth]
                above = below.grandparents.expand(batch, -1)
                below_codes = chosen(chosen(new, below.offsets), below.padded)  # [B, parents]
                nodes = below.parents if below.padded is None else below.parents[below.padded]
                logits = session.expand(below_codes, nodes, chosen(above, below.padded), depth)
                require_logits(session, logits, *below_codes.shape, vocab)
        children = shape.children.expand(batch, -1, -1)
        drafted = torch.cat(codes, 1)
        if sampling.greedy:
            return replace(shape.draft(drafted, children, None), confidence=session.confidence)
        q = root_logits.new_zeros(batch, self.nodes + 1, vocab)
        q.index_copy_(1, shape.inner, torch.cat(by_level, 1))
        if self.branching > 1:
            children = drop_impossible(children, drafted, q)
        return replace(shape.draft(drafted, children, q), confidence=session.confidence)

    def draw(self, dist: Tensor, level: Level, noise: Noise, position: Tensor) -> Tensor:
        """A level's children, drawn without replacement from dist [B, parents, V], padded ones
        among them -> [B, parents, count]; position [B], that of the level in the image."""
        return draw_distinct(dist, noise.of_nodes(position, DRAFT_SLOT, dist.shape[1], level.count))

    def prepare(self, device: torch.device) -> None:
        self.shape_on(device)

    def shape_on(self, device: torch.device) -> Shape:
        """The tree's index tensors, made once a device."""
        if self._shape is None or self._shape.parent.device != device:
            self._shape = self._build(device)
        return self._shape

    def _build(self, device: torch.device) -> Shape:
        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        children = torch.zeros(1, self.nodes + 1, self.branching, dtype=torch.long)
        for node, path in enumerate(self.paths, 1):
            children[0, self.parent[node], path[-1]] = node

        def some(index: list[int], size: int) -> Tensor | None:
            return None if index == [*range(size)] else tensor(index)

        # A GPU takes as long for a few rows more, and compiles a level of one width once: the last
        # parent stands in for those that are missing.
        inner = {p: self.level_of[p] for p in self.parent if p}
        widths = [sum(d == depth for d in inner.values()) for depth in range(1, self.depth)]
        widest = max(widths, default=1) if device.type == "cuda" else 0
        levels: list[Level] = []
        first, above = 0, 1  # first node of the level that holds the parents, and its size
        for depth in range(1, self.depth + 1):
            mine = [i for i, d in enumerate(self.level_of) if d == depth]
            parents = sorted({self.parent[i] for i in mine})
            count = 1 + max(self.paths[i - 1][-1] for i in mine)
            last = len(parents) - 1
            pick = [parents.index(self.parent[i]) * count + self.paths[i - 1][-1] for i in mine]
            levels.append(
                Level(
                    count=count,
                    parents=tensor(parents),
                    offsets=some([p - first for p in parents], above),
                    grandparents=tensor([self.parent[p] for p in parents])[None],
                    pick=some(pick, len(parents) * count),
                    padded=some([min(i, last) for i in range(max(widest, last + 1))], last + 1),
                )
            )
            first, above = mine[0], len(mine)
        parent = tensor(self.parent)[None]
        return Shape(
            levels=levels,
            parent=parent,
            depth=tensor(self.level_of)[None],
            children=children.to(device),
            ancestry=ancestry(parent, self.depth),
            inner=torch.cat([level.parents for level in levels]),
        )


def chosen(values: Tensor, index: Tensor | None) -> Tensor:
    """values [B, n] at `index`; None: all."""
    return values if index is None else values.index_select(1, index)


def drop_impossible(children: Tensor, codes: Tensor, q: Tensor) -> Tensor:
    """Sets to 0 the children whose code has q = 0 at their parent, or repeats an earlier
    sibling."""
    batch, nodes, width = children.shape
    x = codes.gather(1, children.reshape(batch, -1)).view(batch, nodes, width)  # [B, N + 1, K]
    possible = q.gather(-1, x) > 0
    earlier = torch.ones(width, width, dtype=torch.bool, device=x.device).tril(-1)
    twin = ((x[..., :, None] == x[..., None, :]) & earlier).any(-1)
    return torch.where(possible & ~twin, children, 0)
