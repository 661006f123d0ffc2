"""Trees: shapes as configured, children that hang right, likeliest first, bad shapes refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.noise import Noise
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.named import WIDTHS
from decoders.propose.trees.opt import Opt
from decoders.propose.trees.static import Static

V = 20


class Session:
    """A drafter whose distribution depends on the code alone."""

    def __init__(self, batch: int) -> None:
        self.table = torch.randn(V, V, generator=torch.Generator().manual_seed(0)) * 2
        self.root_code = torch.arange(batch)
        self.calls = 0
        self.asked: list[tuple[list[int], Tensor, int]] = []

    def root(self) -> Tensor:
        return self.table[self.root_code]

    def advance(self, *_: Any) -> Tensor:
        raise NotImplementedError("a tree never commits")

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        self.asked.append((nodes.tolist(), parents, depth))
        return self.table[codes]


def grow(tree: Any, temperature: float = 1.0, batch: int = 3) -> tuple[Any, Session]:
    session = Session(batch)
    noise = Noise.for_prompts(0, [f"p{i}" for i in range(batch)], 40)
    draft = tree.grow(
        session,
        session.root(),
        Sampling(temperature=temperature),
        noise,
        torch.ones(batch, dtype=torch.long),
    )
    return draft, session


TREES = [
    Chain(depth=4),
    Static(choices="eagle_25"),
    Static(choices="lantern_57"),
    Dynamic(depth=4, top_k=3, nodes=12),
    Dynamic(depth=5, top_k=10, nodes=58),
    Opt(depth=4, top_k=6, nodes=12, theta=0.1),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_draft_is_a_tree(tree: Any, temperature: float) -> None:
    draft, _ = grow(tree, temperature)
    nodes = tree.nodes + 1
    assert draft.codes.shape == draft.parents.shape == draft.depth.shape == (3, nodes)
    assert draft.children.shape == (3, nodes, tree.branching)
    for row in range(3):
        assert int(draft.codes[row, 0]) == row  # the root
        for node in range(1, nodes):
            parent = int(draft.parents[row, node])
            assert parent < node
            assert int(draft.depth[row, node]) == int(draft.depth[row, parent]) + 1
        listed = draft.children[row][draft.children[row] > 0]
        assert len(set(listed.tolist())) == len(listed)
        for node in range(nodes):
            mine = [c for c in draft.children[row, node].tolist() if c]
            assert all(int(draft.parents[row, c]) == node for c in mine)
            codes = draft.codes[row, mine].tolist()
            assert len(set(codes)) == len(codes)  # siblings differ
    assert int(draft.depth.max()) <= tree.depth


@pytest.mark.parametrize(("name", "widths"), WIDTHS.items())
def test_named_trees_have_their_level_widths(name: str, widths: list[int]) -> None:
    tree = Static(choices=name)
    assert [tree.level_of.count(d) for d in range(1, tree.depth + 1)] == widths


def test_static_children_are_the_top_codes_when_greedy() -> None:
    draft, session = grow(Static(choices=[[0], [1], [2], [0, 0]]), temperature=0)
    assert draft.q is None
    for row in range(3):
        top = session.root()[row].topk(3).indices.tolist()
        assert draft.codes[row, 1:4].tolist() == top
        below = session.table[top[0]].argmax()
        assert int(draft.codes[row, 4]) == int(below)


def test_static_draws_follow_q() -> None:
    batch = 4000
    tree = Static(choices=[[0], [1]])
    session = Session(1)
    session.root_code = torch.zeros(batch, dtype=torch.long)
    noise = Noise(torch.rand(batch, 8, 33, generator=torch.Generator().manual_seed(1)))
    draft = tree.grow(
        session, session.root(), Sampling(), noise, torch.ones(batch, dtype=torch.long)
    )
    q = session.table[0].softmax(-1)
    first = torch.bincount(draft.codes[:, 1], minlength=V) / batch
    assert float(0.5 * (first - q).abs().sum()) < 0.04
    assert (draft.codes[:, 1] != draft.codes[:, 2]).all()
    second = sum(q[a] * q.index_fill(0, torch.tensor(a), 0) / (1 - q[a]) for a in range(V))
    found = torch.bincount(draft.codes[:, 2], minlength=V) / batch
    assert float(0.5 * (found - second).abs().sum()) < 0.05


def test_the_dynamic_tree_keeps_the_best_nodes() -> None:
    tree = Dynamic(depth=3, top_k=3, nodes=7)
    draft, session = grow(tree, batch=2)
    assert draft.q is None
    for row in range(2):
        score = {0: 0.0}
        for node in range(1, 8):
            parent = int(draft.parents[row, node])
            logp = session.table[int(draft.codes[row, parent])].log_softmax(-1)
            score[node] = score[parent] + float(logp[int(draft.codes[row, node])])
        # The best child of the root is there, first among its siblings.
        best = int(session.root()[row].argmax())
        assert int(draft.codes[row, int(draft.children[row, 0, 0])]) == best
        # Nothing left out of level 1 beats what was kept.
        left = sorted(session.root()[row].log_softmax(-1).topk(3).values.tolist())
        kept = {round(s, 4) for n, s in score.items() if int(draft.depth[row, n]) == 1}
        worst = min(list(score.values())[1:])
        assert all(round(v, 4) in kept for v in left if v > worst + 1e-4)


@pytest.mark.parametrize(("build", "says"), [
    (lambda: Static(choices=[[0], [1, 0]]), r"\[1, 0\] has no parent \[1\]"),
    (lambda: Static(choices=[[1]]), "skips the earlier sibling"),
    (lambda: Static(choices=[]), "is empty"),
    (lambda: Static(choices=[[]]), "root is implied"),
    (lambda: Static(choices="eagle_52"), "nearest: eagle_25"),
    (lambda: Static(choices=[[i] for i in range(17)]), "at most 16"),
    (lambda: Chain(depth=0), "at least 1"),
    (lambda: Dynamic(depth=3, top_k=2, nodes=2), "depth <= nodes"),
    (lambda: Dynamic(depth=2, top_k=2, nodes=7), "nodes <= 6"),
])  # fmt: skip
def test_bad_trees_are_refused(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DecoderError, match=says):
        build()
