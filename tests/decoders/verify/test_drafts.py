"""Ties between equally long accepted paths go to the first row of the released table of paths
(METHODS 6), on any tree. The law of what is committed is in `tests.exact`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, takewhile

import pytest
import torch

from decoders.api import Draft
from decoders.verify.token_verifier import longest


def path_of(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root, 0, to `node`."""
    return [0] if node == 0 else [*path_of(parents, parents[node]), node]


def table(parents: Sequence[int], by_leaf: bool) -> list[list[int]]:
    """The paths from the root to every leaf, by number: sorted, what is missing behind a short path
    counting as the largest, or in the order of the leaves."""
    rows = [path_of(parents, n) for n in range(len(parents)) if n not in parents[1:] and n > 0]
    widest = max(len(row) for row in rows)
    return rows if by_leaf else sorted(rows, key=lambda r: r + [len(parents)] * (widest - len(r)))


def chosen(rows: Sequence[Sequence[int]], accepted: Sequence[bool]) -> list[int]:
    """The accepted part of the first row whose accepted part is longest; accepted by node."""
    return max((list(takewhile(lambda n: accepted[n], row)) for row in rows), key=len)


def as_draft(parents: list[int], by_leaf: bool) -> Draft:
    size = len(parents)
    children = torch.zeros(1, size, size, dtype=torch.long)
    for parent in range(size):
        mine = [n for n in range(1, size) if parents[n] == parent]
        children[0, parent, : len(mine)] = torch.tensor(mine, dtype=torch.long)
    depth = torch.tensor([[len(path_of(parents, n)) - 1 for n in range(size)]])
    codes = torch.arange(size)[None]
    return Draft(codes, torch.tensor([parents]), depth, children, None, size - 1, by_leaf=by_leaf)


@pytest.mark.parametrize("by_leaf", [True, False])
def test_any_tree_gives_the_first_of_the_longest_rows(by_leaf: bool) -> None:
    rng = random.Random(1)
    turned = 0
    for _ in range(150):
        parents = [0] + [rng.randrange(n) for n in range(1, rng.randrange(2, 14))]
        accepted = [True] + [rng.random() < 0.7 for _ in parents[1:]]
        wanted = chosen(table(parents, by_leaf), accepted)
        draft = as_draft(parents, by_leaf)
        hit = torch.tensor(accepted)[draft.children] & (draft.children > 0)
        depth = int(draft.depth.max())
        path = longest(draft, hit, depth)
        size = len(wanted)
        assert path.nodes[0, :size].tolist() == wanted
        assert (path.nodes[0, size:] == wanted[-1]).all()
        assert (int(path.count), int(path.last)) == (size - 1, wanted[-1])
        taken = [draft.children[0, a].tolist().index(b) for a, b in pairwise(wanted)]
        assert path.order[0].tolist() == taken + [0] * (depth - size + 1)
        whole = [n for n in range(len(parents)) if all(accepted[m] for m in path_of(parents, n))]
        turned += next(n for n in whole if len(path_of(parents, n)) == size) != wanted[-1]
    assert turned >= 3
