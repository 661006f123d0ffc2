"""Draft trees: shapes, draws without replacement, pruning, and refusals."""

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.noise import DRAFT_SLOT, Noise
from decoders.propose.trees.cape import Cape
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static, parse_choices

VOCAB = 20
PLAIN = Sampling()


class Session:
    """A drafter whose logits depend on a node's code and depth alone; remembers its nodes."""

    def __init__(self, batch: int, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.table = 2 * torch.randn(8, VOCAB, VOCAB, generator=g)
        self.root_code = torch.randint(VOCAB, (batch,), generator=g)
        self.calls = 0
        self.path = {0: self.root_code[:, None]}  # session index -> codes from the root [B, d + 1]

    def root_logits(self):
        return self.table[0, self.root_code]

    def expand(self, codes, nodes, parents, depth):
        self.calls += 1
        numbers = torch.as_tensor(nodes).tolist()
        for i, node in enumerate(numbers):
            above = torch.stack([self.path[int(p)][b] for b, p in enumerate(parents[:, i])])
            self.path[node] = torch.cat([above, codes[:, i : i + 1]], 1)
        return self.table[depth, codes]


def grown(tree, batch=3, sampling=PLAIN, seed=0, vocab_support=None):
    session = Session(batch, seed)
    generator = torch.Generator().manual_seed(seed)
    noise = Noise(torch.rand(batch, 80, 33, generator=generator))
    position = torch.arange(1, batch + 1)
    logits = session.root_logits()
    if vocab_support is not None:
        logits = logits.masked_fill(torch.arange(VOCAB) >= vocab_support, -torch.inf)
    return session, tree.grow(session, logits, sampling, noise, position), noise, position


def consistent(draft, tree):
    """Parents, depths and children say the same; parents come before children."""
    batch, size = draft.codes.shape
    assert size == tree.nodes + 1
    for b in range(batch):
        for n in range(1, size):
            parent = int(draft.parents[b, n])
            assert parent < n
            assert int(draft.depth[b, n]) == int(draft.depth[b, parent]) + 1
        listed = draft.children[b][draft.children[b] > 0].tolist()
        assert len(set(listed)) == len(listed)
        for n in range(size):
            for child in draft.children[b, n][draft.children[b, n] > 0].tolist():
                assert int(draft.parents[b, child]) == n
    assert int(draft.depth.max()) <= tree.depth


TREES = [Chain(depth=4), Static(choices="mc_sim_7b_63"), Static(choices="naive_extend_57"),
         Static(choices=[[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]),
         Dynamic(depth=3, top_k=4, nodes=12), Dynamic(depth=1, top_k=4, nodes=3),
         Dynamic(depth=5, top_k=10, nodes=58), Cape(), Cape(depth=3, nodes=7)]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_hangs_together(tree, temperature):
    session, draft, _, _ = grown(tree, sampling=Sampling(temperature=temperature))
    consistent(draft, tree)
    assert torch.equal(draft.codes[:, 0], session.root_code)
    assert session.calls == tree.depth - 1
    assert (draft.q is None) == (temperature == 0 or isinstance(tree, Dynamic))


def test_a_static_tree_reports_the_q_its_children_were_drawn_from():
    tree = Static(choices="mc_sim_7b_63")
    session, draft, noise, position = grown(tree)
    torch.testing.assert_close(draft.q[:, 0], session.root_logits().softmax(-1))
    for node, path in enumerate(tree.paths, 1):
        if not (draft.children[:, node] > 0).any():
            continue
        depth = len(path)
        expected = session.table[depth, draft.codes[:, node]].softmax(-1)
        torch.testing.assert_close(draft.q[:, node], expected)
        u = noise.at(position + depth, DRAFT_SLOT, 1)[:, 0]  # the first child's uniform
        cdf = expected.cumsum(-1)
        first = draft.codes.gather(1, draft.children[:, node, :1])[:, 0]
        wanted = (cdf <= (u * cdf[:, -1])[:, None]).sum(-1)
        assert torch.equal(first, wanted)


def test_siblings_are_distinct_and_possible():
    for seed in range(5):
        _, draft, _, _ = grown(
            Static(choices="naive_extend_57"), sampling=Sampling(top_k=4), seed=seed
        )
        for b in range(3):
            for n in range(58):
                mine = draft.children[b, n][draft.children[b, n] > 0]
                codes = draft.codes[b, mine]
                assert len(codes.unique()) == len(codes) <= 4
                assert (draft.q[b, n, codes] > 0).all()


def test_a_tree_wider_than_the_support_has_fewer_children():
    _, draft, _, _ = grown(Static(choices=[[0], [1], [2], [3]]), vocab_support=2)
    assert ((draft.children[:, 0] > 0).sum(-1) == 2).all()


def test_cape_has_the_more_siblings_the_less_sure_the_drafter_is():
    tree = Cape(depth=3, nodes=24)
    confidence = torch.tensor([[0.05, 0.29, 0.31], [0.6, 0.79, 0.81], [1.0, 0.5, 0.7]])
    number = tree.numbered(confidence)
    assert (number > 0).sum(-1).tolist() == [[8, 8, 6], [4, 4, 2], [2, 6, 4]]
    assert number[..., 0].tolist() == [[1, 2, 3]] * 3
    assert number[1].tolist()[2] == [3, 10, 0, 0, 0, 0, 0, 0]
    few = Cape(depth=3, nodes=7).numbered(confidence)  # the chain, and the first four siblings
    assert few[0].tolist() == [[1, 4, 5, 6, 7, 0, 0, 0], [2] + 7 * [0], [3] + 7 * [0]]
    assert few[1].tolist()[:2] == [[1, 4, 5, 6, 0, 0, 0, 0], [2, 7, 0, 0, 0, 0, 0, 0]]
    _, draft, _, _ = grown(Cape(), sampling=Sampling(temperature=0.2))
    kept = (10 * draft.q[:, :4].amax(-1)).long()
    assert ((draft.children[:, :4] > 0).sum(-1) <= 8 - 2 * (kept >= 3).long()).all()
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
        (["chain"], r"must be a tree's name \(chain, .* found \['chain'\]"),
        (25, "or its paths, .* found 25"),
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
