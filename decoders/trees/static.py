"""Static trees: one shape for every step; children drawn without replacement (EAGLE-1, LANTERN++).

A shape is a list of paths, each a tuple of child ranks from the root: ``[0, 2]`` is the third
child of the root's first child. At temperature 0 the children are the drafter's top codes instead
of draws.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling
from decoders.distribution import probabilities
from decoders.drafters.session import DraftSession
from decoders.noise import DRAFT_SLOT, MAX_CHILDREN, Noise, sample
from decoders.verification import drop_sibling

Path = tuple[int, ...]


def widths_to_paths(widths: Sequence[int]) -> list[Path]:
    """A tree with the given level widths, mass at the low ranks.

    A level takes the candidates of least cost from the level above, where a child of rank r costs r
    and ranks add up along a path: likely paths (all first ranks) get most of the children.
    """
    level: list[Path] = [()]
    paths: list[Path] = []
    for width in widths:
        candidates = [(*path, rank) for path in level for rank in range(MAX_CHILDREN)]
        candidates.sort(key=lambda p: (sum(p), max(p), p))
        if width < 1 or width > len(candidates):
            raise DecoderError(f"tree level widths must be in 1..{len(candidates)}, found {width}")
        level = sorted(candidates[:width])
        paths += level
    return paths


# EAGLE-1's 25-node tree (widths 4/8/8/3/2) and LANTERN++'s level widths for 57 nodes (METHODS 4).
NAMED: dict[str, list[int]] = {
    "eagle_25": [4, 8, 8, 3, 2],
    "lantern_57": [5, 13, 16, 14, 9],
    "small_12": [3, 3, 2, 2, 1, 1],
    "binary_8": [2, 2, 2, 1, 1],
}


def parse_choices(choices: str | Sequence[Sequence[int]]) -> list[Path]:
    """A tree's name, or its paths -> sorted paths; DecoderError on a hole in the tree."""
    if isinstance(choices, str):
        if choices not in NAMED:
            near = difflib.get_close_matches(choices, NAMED, 3, 0.3) or list(NAMED)
            raise DecoderError(
                f"unknown static tree {choices!r}; nearest: {', '.join(near)}; or give "
                "its paths, as in [[0],[1],[0,0]]"
            )
        return sorted(widths_to_paths(NAMED[choices]), key=lambda p: (len(p), p))
    paths = sorted({tuple(int(r) for r in path) for path in choices}, key=lambda p: (len(p), p))
    known = set(paths) | {()}
    if not paths:
        raise DecoderError("tree.choices is empty: expected at least one path, such as [[0]]")
    for path in paths:
        if not path:
            raise DecoderError(
                "tree.choices holds the empty path: the root is implied, leave it out"
            )
        if path[:-1] not in known:
            raise DecoderError(
                f"tree.choices: path {list(path)} has no parent {list(path[:-1])}; add "
                "it, or remove the path"
            )
        if path[-1] < 0 or (path[-1] > 0 and (*path[:-1], path[-1] - 1) not in known):
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
    """One level to draw: its parents (those with children) and where each child hangs."""

    parents: list[int]  # node indices, the level above
    counts: list[int]  # children of each
    pick: list[tuple[int, int]]  # (row among parents, rank) of each child, in node order


class Static:
    """A fixed tree. ``choices``: a name of `NAMED`, or a list of paths."""

    def __init__(
        self, model: Any = None, choices: str | Sequence[Sequence[int]] = "eagle_25"
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
        self._children = torch.zeros(1, self.nodes + 1, self.branching, dtype=torch.long)
        for path, node in index.items():
            if path:
                self._children[0, index[path[:-1]], path[-1]] = node
        self.levels = [self._level(d) for d in range(1, self.depth + 1)]

    def __str__(self) -> str:
        return f"static({self.label}, depth={self.depth}, nodes={self.nodes})"

    def _level(self, depth: int) -> Level:
        children = [i for i, d in enumerate(self.level_of) if d == depth]
        parents = sorted({self.parent[i] for i in children})
        counts = [sum(self.parent[i] == p for i in children) for p in parents]
        pick = [(parents.index(self.parent[i]), self.paths[i - 1][-1]) for i in children]
        return Level(parents, counts, pick)

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        """root_logits [B, V]; position [B], the place of the root's child. See
        `decoders.api.Draft`."""
        batch, vocab = root_logits.shape
        device = root_logits.device
        q = None if sampling.greedy else root_logits.new_zeros(batch, self.nodes + 1, vocab)
        codes = [session.root_code[:, None]]  # [B, 1]
        logits = root_logits[:, None]  # [B, parents, V]
        known = 1
        for depth, level in enumerate(self.levels, 1):
            dist = probabilities(logits, sampling)  # [B, parents, V]
            if q is None:
                drawn = dist.topk(max(level.counts), -1).indices  # [B, parents, count]
            else:
                q[:, level.parents] = dist
                u = noise.at(position + depth - 1, DRAFT_SLOT, max(level.counts))  # [B, count]
                drawn = draw_distinct(dist, u)  # [B, parents, count]
            rows = [r for r, _ in level.pick]
            ranks = [k for _, k in level.pick]
            new = drawn[:, rows, ranks]  # [B, width]
            codes.append(new)
            if depth < self.depth:
                inner = self.levels[depth].parents
                offset = [i - known for i in inner]
                above = torch.tensor([self.parent[i] for i in inner], device=device)
                logits = session.expand(new[:, offset], inner, above.expand(batch, -1), depth)
            known += len(level.pick)
        fixed = torch.tensor([self.parent, self.level_of], device=device)
        children = self._children.to(device).expand(batch, -1, -1)
        drafted = torch.cat(codes, 1)
        if q is not None:  # a child the drafter could not draw (support exhausted) is no child
            children = drop_impossible(children, drafted, q)
        return Draft(drafted, fixed[0].expand(batch, -1), fixed[1].expand(batch, -1), children, q)


def draw_distinct(q: Tensor, u: Tensor) -> Tensor:
    """Draws without replacement: q [B, n, V], u [B, count] shared by the n nodes (only one of a
    level's nodes is ever visited) -> [B, n, count] int64."""
    drawn = []
    for j in range(u.shape[-1]):
        x = sample(q, u[:, None, j].expand(q.shape[:2]))
        drawn.append(x)
        if j + 1 < u.shape[-1]:
            q = drop_sibling(q, x)
    return torch.stack(drawn, -1)


def drop_impossible(children: Tensor, codes: Tensor, q: Tensor) -> Tensor:
    """Sets to 0 the children whose code has q = 0 at their parent, or repeats an earlier
    sibling."""
    batch, nodes, width = children.shape
    x = codes.gather(1, children.reshape(batch, -1)).view(batch, nodes, width)  # [B, N + 1, K]
    possible = q.gather(-1, x) > 0
    earlier = torch.ones(width, width, dtype=torch.bool, device=x.device).tril(-1)
    twin = ((x[..., :, None] == x[..., None, :]) & earlier).any(-1)
    return torch.where(possible & ~twin, children, 0)
