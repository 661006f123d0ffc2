"""Draft trees: shapes, pruning, what they expect to be accepted, refusals. The released ones have
the authors' paths under the authors' names."""

import hashlib
import json

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.models.random_weights import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.cape import Cape
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.opt import Opt
from decoders.propose.trees.static import Static, parse_choices
from tests.decoders.compositions import drafting, images

VOCAB = 20
PLAIN = Sampling()


class Session:
    """A drafter whose distribution depends on a node's code alone."""

    confidence = None

    def __init__(self, batch: int, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.table = 2 * torch.randn(VOCAB, VOCAB, generator=g)
        self.root_code = torch.randint(VOCAB, (batch,), generator=g)
        self.calls = 0

    def expand(self, codes, nodes, parents, depth):
        self.calls += 1
        return self.table[codes]


def grown(tree, sampling=PLAIN, vocab_support=VOCAB):
    session = Session(3)
    noise = Noise.for_prompts(0, ["a", "b", "c"], 40)
    logits = session.table[session.root_code]
    logits = logits.masked_fill(torch.arange(VOCAB) >= vocab_support, -torch.inf)
    return session, tree.grow(session, logits, sampling, noise, torch.arange(1, 4))


def consistent(draft, tree):
    """Parents, depths and children say the same; parents come before children."""
    batch, size = draft.codes.shape
    number = torch.arange(size)
    assert size == tree.nodes + 1
    assert (draft.parents[:, 1:] < number[1:]).all()
    above = draft.depth.gather(1, draft.parents[:, 1:])
    assert torch.equal(draft.depth[:, 1:], above + 1) and int(draft.depth.max()) <= tree.depth
    for b in range(batch):
        node, rank = draft.children[b].nonzero().unbind(1)
        children = draft.children[b, node, rank]
        assert len(children.unique()) == len(children)
        assert torch.equal(draft.parents[b, children], node)


TREES = [Chain(depth=4), Static(choices="mc_sim_7b_63"), Static(choices="naive_extend_57"),
         Static(choices=[[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]),
         Dynamic(depth=3, top_k=4, nodes=12), Dynamic(depth=1, top_k=4, nodes=3),
         Dynamic(depth=5, top_k=10, nodes=58), Cape(), Cape(depth=3, nodes=7)]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_hangs_together(tree, temperature):
    session, draft = grown(tree, sampling=Sampling(temperature=temperature))
    consistent(draft, tree)
    assert torch.equal(draft.codes[:, 0], session.root_code)
    assert session.calls == tree.depth - 1
    assert (draft.q is None) == (temperature == 0 or isinstance(tree, Dynamic))


def test_a_tree_wider_than_the_support_has_fewer_children():
    _, draft = grown(Static(choices=[[0], [1], [2], [3]]), vocab_support=2)
    assert ((draft.children[:, 0] > 0).sum(-1) == 2).all()


def test_cape_has_the_more_siblings_the_less_sure_the_drafter_is():
    tree = Cape(depth=3, nodes=24)
    confidence = torch.tensor([[0.05, 0.29, 0.31], [0.6, 0.79, 0.81], [1.0, 0.5, 0.7]])
    number = tree.child_numbers(confidence)
    assert (number > 0).sum(-1).tolist() == [[8, 8, 6], [4, 4, 2], [2, 6, 4]]
    assert number[..., 0].tolist() == [[1, 2, 3]] * 3
    assert number[1].tolist()[2] == [3, 10, 0, 0, 0, 0, 0, 0]
    few = Cape(depth=3, nodes=7).child_numbers(confidence)  # the chain, and the first four siblings
    assert few[0].tolist() == [[1, 4, 5, 6, 7, 0, 0, 0], [2] + 7 * [0], [3] + 7 * [0]]
    assert few[1].tolist()[:2] == [[1, 4, 5, 6, 0, 0, 0, 0], [2, 7, 0, 0, 0, 0, 0, 0]]
    _, draft = grown(Cape(), sampling=Sampling(temperature=0.2))
    tenths = (10 * draft.q[:, :4].amax(-1)).long()
    assert ((draft.children[:, :4] > 0).sum(-1) <= 8 - 2 * (tenths >= 3).long()).all()
    assert not draft.children[:, 4:].any()


@pytest.mark.parametrize("tree", [Cape(), Static(choices="naive_extend_57"), Dynamic()], ids=str)
def test_a_codebook_with_fewer_codes_than_a_node_has_children_is_named(tree):
    logits, sampling = torch.zeros(2, 4), Sampling(temperature=0.0)
    noise = Noise.for_prompts(0, ["a", "b"], 16)
    with pytest.raises(DecoderError, match=r"likeliest codes of a node, and the codebook has 4"):
        tree.grow(Session(2), logits, sampling, noise, torch.ones(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ("binary8", "did you mean 'binary_8'.* Known: binary_8, chain, .*; or give its"),
        (["chain"], "tree.choices: .* array, found 'chain'"),
        (25, "tree.choices: .* array, found 25"),
        ([], "is empty"),
        ([[]], "root is implied"),
        ([[0, 0]], r"path \[0, 0\] has no parent \[0\]"),
        ([[0], [1], [0]], r"holds the path \[0\] twice; leave one out"),
        ([[0], [0, 1]], r"skips the earlier sibling \[0, 0\]"),
        ([[1]], r"skips the earlier sibling \[0\]"),
        ([[i] for i in range(17)], "at most 16 children"),
    ],
)
def test_broken_trees_are_refused(choices, says):
    with pytest.raises(DecoderError, match=says):
        parse_choices(choices)


# ---- OPT-Tree against its pseudo-code (decoders.md (h)), and what drafters expect per forward ----


def by_hand(session, root: int, n: int, depth: int, theta: float) -> tuple[set, int]:
    """Paths of the tree and its levels, as the pseudo-code reads."""
    law = session.table.double().softmax(-1)
    layer = sorted(((float(law[root, x]), (x,)) for x in range(VOCAB)), reverse=True)[:n]
    every, best = list(layer), sum(w for w, _ in layer)
    for _ in range(depth - 1 if best > theta else 0):
        grown = [
            (w * float(law[path[-1], x]), (*path, x)) for w, path in layer for x in range(VOCAB)
        ]
        layer = sorted(grown, reverse=True)[:n]
        every += layer
        new = sum(w for w, _ in sorted(every, reverse=True)[:n])
        stop, best = new - best <= theta, new
        if stop:
            break
    tree = sorted(every, reverse=True)[:n]
    return {path for _, path in tree}, max(len(p) for _, p in tree)


def paths(draft, row: int) -> set:
    every = [()]
    for node in range(1, draft.codes.shape[1]):
        every.append((*every[int(draft.parents[row, node])], int(draft.codes[row, node])))
    return {*every[1:]}


@pytest.mark.parametrize("theta", [0.0, 0.05, 0.2, 0.5, 5.0])
def test_the_tree_is_that_of_the_pseudo_code(theta):
    tree = Opt(depth=5, top_k=8, nodes=8, theta=theta)
    session, draft = grown(tree)
    levels = set()
    for row in range(3):
        wanted, deepest = by_hand(session, int(session.root_code[row]), 8, 5, theta)
        assert paths(draft, row) == wanted
        assert int(draft.depth[row].max()) == deepest
        levels.add(deepest)
    assert max(levels) == 1 if theta == 5.0 else max(levels) > 1  # the first level is judged too
    assert max(levels) > 2 or theta > 0
    assert draft.q is None  # deterministic given the prefix


def test_without_a_threshold_it_is_the_dynamic_tree_s_best():
    _, opt = grown(Opt(depth=3, top_k=4, nodes=9, theta=0.0))
    _, dynamic = grown(Dynamic(depth=3, top_k=4, nodes=9))
    assert torch.equal(opt.codes, dynamic.codes) and torch.equal(opt.parents, dynamic.parents)


def test_a_tree_that_stops_early_drafts_fewer_levels_than_it_may():
    model = random_model(vocab=8, grid=4, seed=2)
    for tree, depth, nodes in (
        (Opt(depth=4, top_k=4, nodes=4, theta=5.0), 1, 4),  # no second level is worth its forward
        (Static(choices=[[0], [1], [0, 0]]), 2, 3),
        (Chain(depth=3), 3, 3),
    ):
        trace = images(drafting(model, Eagle(model), tree), ["a", "b"]).trace
        assert trace.drafted_depth.tolist() == [depth, depth], tree
        assert trace.drafted_nodes.tolist() == [nodes, nodes], tree
        assert trace.tree_nodes == nodes
    alone = Autoregressive(model, Sampling())
    assert images(alone, ["a"]).trace.drafted_depth.isnan().all()


# ---- released trees ------------------------------------------------------------------------------

# Level widths, and the hash of the paths as JSON, by length and then by ranks.
RELEASED = {
    "chain": ([1, 1, 1, 1, 1], "822d17625509e222"),
    "mc_sim_7b_63": ([4, 8, 8, 3, 2], "523717d6431e7672"),
    "mc_sim_7b_63_balanced": ([3, 8, 9, 3, 2], "6315eba67ab756e8"),
    "medusa_2_7b_63": ([10, 23, 23, 7], "ac1b77303fb35bfe"),
    "naive_extend_57": ([5, 13, 16, 14, 9], "b790ccdf7aff677c"),
    "reverse_balanced_25": ([3, 4, 6, 5, 7], "ea4558de8f7ddb4a"),
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_tree_has_the_authors_paths(name: str) -> None:
    widths, digest = RELEASED[name]
    tree = Static(choices=name)
    paths = json.dumps([list(path) for path in tree.paths])
    assert hashlib.sha256(paths.encode()).hexdigest()[:16] == digest
    assert [tree.level_of.count(d) for d in range(1, tree.depth + 1)] == widths
    assert str(tree) == f"static({name}, depth={len(widths)}, nodes={sum(widths)})"
