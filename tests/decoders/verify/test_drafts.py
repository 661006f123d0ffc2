"""Drafts as verifiers see them. Ties between equally long accepted paths go to the first row of the
released table of paths (METHODS 6), on any tree. Whole drafts are accepted further than code by
code; the law of what is committed is in `tests.exact`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

import pytest
import torch

from bench.gate.enumerate import Enumerated, Scripted, enumerate_program
from decoders.api import Draft, TargetProbs
from decoders.noise import DRAFT_SLOT, sample
from decoders.verify.block import Block
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier, longest
from decoders.verify.traversal import Traversal


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


def accepted(verifier: Any, p: torch.Tensor, q: torch.Tensor) -> float:
    """Drafts accepted on average of a chain of three; p, q [40, 3]: the laws after every prefix."""
    before = torch.tensor([0, 1, 4, 13])  # where the prefixes of so many codes begin

    def run(noise: Scripted) -> torch.Tensor:
        rows = len(noise.uniform)
        position, cell = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
        noise = noise.stepping(torch.zeros(1, dtype=torch.long), True)
        at, codes = [cell], [cell]
        for i in range(3):
            x = sample(q[at[-1]], noise.at(position + i, DRAFT_SLOT)[:, 0])
            cell = 3 * cell + x
            at, codes = [*at, before[i + 1] + cell], [*codes, x]
        node = torch.arange(4).expand(rows, -1)
        below = torch.tensor([1, 2, 3, 0]).expand(rows, -1)[..., None]
        which = torch.stack(at, 1)
        draft = Draft(torch.stack(codes, 1), (node - 1).clamp_min(0), node, below, q[which], 3)
        law = TargetProbs(p[which].log(), p[which], False)
        return verifier.verify(law, draft, noise, position, None).count[:, None]

    every: Enumerated = enumerate_program(run, 10, 100_000)
    assert every.rest == 0
    return float(every.weight @ every.value[:, 0].double())


def test_the_whole_draft_is_accepted_further_than_code_by_code() -> None:
    g = torch.Generator().manual_seed(0)
    gains = []
    for _ in range(4):
        p, q = (torch.randn(40, 3, generator=g, dtype=torch.float64).softmax(-1) for _ in "pq")
        chain, block, tree = (
            accepted(v, p, q) for v in (TokenVerifier(Exact()), Block(), Traversal())
        )
        assert tree == pytest.approx(block, abs=1e-12)
        gains.append(block - chain)
    assert min(gains) > -1e-12
    assert max(gains) > 0.05
