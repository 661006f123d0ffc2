"""Greedy relaxed decoding as the released code does it, in plain Python (METHODS 6): a dynamic or a
static tree, its table of root-to-leaf paths, the first of the longest rows.

Written from the formulas of METHODS; shares nothing with the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Logits = Callable[[tuple[int, ...]], Sequence[float]]  # after these codes of the image


@dataclass
class Tree:
    """Nodes by number, the root being 0; children come after their parents."""

    codes: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`."""
        return [0] if node == 0 else [*self.path(self.parents[node]), node]

    def drafted(self, node: int) -> tuple[int, ...]:
        """The codes below the root on the way to `node`."""
        return tuple(self.codes[n] for n in self.path(node)[1:])


def table(parents: Sequence[int], by_leaf: bool) -> list[list[int]]:
    """The paths from the root to every leaf, by number: sorted, what is missing behind a short path
    counting as the largest, or in the order of the leaves."""
    tree = Tree([0] * len(parents), list(parents))
    rows = [tree.path(n) for n in range(len(parents)) if n not in parents[1:] and n > 0]
    widest = max(len(row) for row in rows)
    return rows if by_leaf else sorted(rows, key=lambda r: r + [len(parents)] * (widest - len(r)))


def chosen(rows: Sequence[Sequence[int]], accepted: Sequence[bool]) -> list[int]:
    """The accepted part of the first row whose accepted part is longest; accepted by node."""

    def part(row: Sequence[int]) -> list[int]:
        fails = [i for i, node in enumerate(row) if i > 0 and not accepted[node]]
        return list(row[: fails[0]] if fails else row)

    parts = [part(row) for row in rows]
    return next(p for p in parts if len(p) == max(map(len, parts)))


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    raised = [math.exp(v - top) for v in logits]
    return [v / sum(raised) for v in raised]


def best(values: Sequence[float], count: int) -> list[int]:
    """Indices of the largest values, largest first."""
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def dynamic_tree(
    root: int, draft: Logits, before: tuple[int, ...], depth: int, top_k: int, nodes: int
) -> Tree:
    """EAGLE-2: at every level the best `top_k` candidates grow `top_k` children each; the best
    `nodes` candidates are kept, numbered as they came. before: the codes up to the root."""
    paths: list[tuple[int, ...]] = []  # every candidate's codes, as they came
    scores: list[float] = []
    level = [((), 0.0)]
    for _ in range(depth):
        came = []
        for path, score in level:
            p = softmax(draft(before + path))
            came += [((*path, x), score + math.log(p[x])) for x in best(p, top_k)]
        paths += [path for path, _ in came]
        scores += [score for _, score in came]
        level = sorted(came, key=lambda c: -c[1])[:top_k]
    kept = [paths[i] for i in sorted(best(scores, nodes))]
    number = {(): 0} | {path: n for n, path in enumerate(kept, 1)}
    return Tree([root, *(p[-1] for p in kept)], [0, *(number[p[:-1]] for p in kept)])


def static_tree(
    root: int, draft: Logits, before: tuple[int, ...], shape: Sequence[Sequence[int]]
) -> Tree:
    """A fixed tree, whose child of rank r is the drafter's code of rank r; its nodes are numbered
    by length, then by ranks."""
    ranks = sorted((tuple(path) for path in shape), key=lambda p: (len(p), p))
    codes: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    for path in ranks:
        above = codes[path[:-1]]
        logits = draft(before + above)
        codes[path] = (*above, best(logits, len(logits))[path[-1]])
    number = {(): 0} | {path: n for n, path in enumerate(ranks, 1)}
    return Tree([root, *(codes[p][-1] for p in ranks)], [0, *(number[p[:-1]] for p in ranks)])


def neighbours(codebook: Sequence[Sequence[float]], k: int) -> list[list[int]]:
    """The k nearest codes of every code, nearest first."""
    own = range(len(codebook))
    return [
        sorted((y for y in own if y != x), key=lambda y: math.dist(codebook[x], codebook[y]))[:k]
        for x in own
    ]


def greedy_accepts(p: Sequence[float], x: int, near: Sequence[int], delta: float) -> bool:
    """Whether p_A(x) is the largest entry of p_A (LANTERN)."""
    mass = 0.0
    for y in near:
        if mass + p[y] > delta:
            break
        mass += p[y]
    return p[x] + mass >= max(p)


@dataclass
class Decoded:
    """An image; per step the drafts that were accepted. ties: steps in which several paths were
    longest; turned: those of them in which the lowest-numbered node is on another path."""

    codes: list[int]
    accepted: list[int] = field(default_factory=list)
    ties: int = 0
    turned: int = 0


def decoded(
    target: Logits,
    grow: Callable[[tuple[int, ...]], Tree],
    by_leaf: bool,
    near: Sequence[Sequence[int]],
    delta: float,
    size: int,
) -> Decoded:
    """grow: the tree under the last of the codes. The bonus code is the argmax of the unmodified
    logits."""
    image = Decoded([best(target(()), 1)[0]])
    while len(image.codes) < size:
        before = tuple(image.codes)
        tree = grow(before)
        count = len(tree.codes)
        p: dict[int, list[float]] = {}
        accepted = [True]
        for n in range(1, count):
            above, x = tree.parents[n], tree.codes[n]
            if above not in p and accepted[above]:  # what is below a rejected node is never read
                p[above] = softmax(target(before + tree.drafted(above)))
            accepted.append(accepted[above] and greedy_accepts(p[above], x, near[x], delta))
        path = chosen(table(tree.parents, by_leaf), accepted)
        whole = [n for n in range(count) if all(accepted[m] for m in tree.path(n))]
        longest = [n for n in whole if len(tree.path(n)) == len(path)]
        image.ties += len(longest) > 1
        image.turned += longest[0] != path[-1]
        drafts = tree.drafted(path[-1])
        new = [*drafts, best(target(before + drafts), 1)[0]]
        image.accepted.append(min(len(new) - 1, size - len(image.codes)))
        image.codes = (image.codes + new)[:size]
    return image
