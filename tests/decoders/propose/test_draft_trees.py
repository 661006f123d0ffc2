"""Draft trees: shapes, pruning, what they expect to be accepted, and refusals."""

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.loops.recording import expected_codes
from decoders.models.small import random_model, same_prompt
from decoders.noise import Noise
from decoders.propose.trees.cape import Cape
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.opt import Opt
from decoders.propose.trees.static import Static, parse_choices
from metrics.traces import from_trace
from tests.decoders.compositions import CHAIN, EXACT, LOOP
from tests.exact.specs import EAGLE

VOCAB = 20
PLAIN = Sampling()


class Session:
    """A drafter whose distribution depends on a node's code alone."""

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
    number = tree.numbered(confidence)
    assert (number > 0).sum(-1).tolist() == [[8, 8, 6], [4, 4, 2], [2, 6, 4]]
    assert number[..., 0].tolist() == [[1, 2, 3]] * 3
    assert number[1].tolist()[2] == [3, 10, 0, 0, 0, 0, 0, 0]
    few = Cape(depth=3, nodes=7).numbered(confidence)  # the chain, and the first four siblings
    assert few[0].tolist() == [[1, 4, 5, 6, 7, 0, 0, 0], [2] + 7 * [0], [3] + 7 * [0]]
    assert few[1].tolist()[:2] == [[1, 4, 5, 6, 0, 0, 0, 0], [2, 7, 0, 0, 0, 0, 0, 0]]
    _, draft = grown(Cape(), sampling=Sampling(temperature=0.2))
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


# ---- OPT-Tree against its pseudo-code (decoders.md (h)), and what drafters expect per forward ----


def by_hand(session, root: int, n: int, depth: int, theta: float) -> tuple[set, float, int]:
    """Paths of the tree, the codes that it expects, and its levels, as the pseudo-code reads."""
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
    return {path for _, path in tree}, 1 + sum(w for w, _ in tree), max(len(p) for _, p in tree)


def paths(draft, row: int) -> set:
    found = set()
    for node in range(1, draft.codes.shape[1]):
        path, here = (), node
        while here:
            path, here = (int(draft.codes[row, here]), *path), int(draft.parents[row, here])
        found.add(path)
    return found


@pytest.mark.parametrize("theta", [0.0, 0.05, 0.2, 0.5, 5.0])
def test_the_tree_is_that_of_the_pseudo_code(theta):
    tree = Opt(depth=5, top_k=8, nodes=8, theta=theta)
    session, draft = grown(tree)
    levels = set()
    for row in range(3):
        wanted, expected, deepest = by_hand(session, int(session.root_code[row]), 8, 5, theta)
        assert paths(draft, row) == wanted
        assert float(draft.expected[row]) == pytest.approx(expected, abs=1e-5)
        assert int(draft.depth[row].max()) == deepest
        levels.add(deepest)
    assert max(levels) == 1 if theta == 5.0 else max(levels) > 1  # the first level is judged too
    assert max(levels) > 2 or theta > 0
    assert draft.q is None  # deterministic given the prefix


def test_without_a_threshold_it_is_the_dynamic_tree_s_best():
    _, opt = grown(Opt(depth=3, top_k=4, nodes=9, theta=0.0))
    _, dynamic = grown(Dynamic(depth=3, top_k=4, nodes=9))
    assert torch.equal(opt.codes, dynamic.codes) and torch.equal(opt.parents, dynamic.parents)


@pytest.mark.parametrize("tree", ["opt.Opt", "dynamic.Dynamic"])
def test_a_drafter_that_is_the_target_expects_what_it_gets(tree):
    """q = p: predicted codes per forward are the mean accepted length."""
    model = random_model(vocab=8, grid=6, seed=2)
    own = PartSpec("decoders.propose.drafters.free.Free", {"layers": 2})
    part = PartSpec(f"decoders.propose.trees.{tree}", {"depth": 3, "top_k": 5, "nodes": 5})
    rows = same_prompt(model.text.encode(["x"]), 128)
    noise = Noise.for_prompts(0, [f"p{i}" for i in range(128)], 36)
    spec = DecoderSpec("self", LOOP, own, part, EXACT)
    trace = build_decoder(model, spec, Sampling(cfg=2.0)).generate(rows, noise).trace
    images = from_trace(trace)
    mal = sum(int(i.committed.sum()) for i in images) / sum(i.nfe for i in images)
    weights = trace.target_calls.float()
    predicted = float((trace.expected * weights).sum() / weights.sum())
    assert predicted == pytest.approx(mal, rel=0.05)  # the last step is cut off by the image's end
    assert predicted > 1.5


def test_of_drawn_children_it_is_the_sum_of_their_paths_probabilities():
    session, draft = grown(Static(choices=[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]))
    law = session.table.double().softmax(-1)
    for row, found in enumerate(expected_codes(draft).tolist()):
        weights = []
        for path in paths(draft, row):
            steps = zip((int(session.root_code[row]), *path), path, strict=False)
            weights.append(float(torch.stack([law[a, b] for a, b in steps]).prod()))
        assert len(weights) == draft.codes.shape[1] - 1
        assert found == pytest.approx(1 + sum(weights), abs=1e-5)


PARTS = "decoders.propose"


@pytest.mark.parametrize(
    ("parts", "temperature", "says"),
    [
        ({"drafter": EAGLE, "tree": CHAIN}, 1, True),
        ({"drafter": EAGLE, "tree": CHAIN}, 0, False),
        ({"proposer": PartSpec(f"{PARTS}.jacobi.Jacobi", {"window": 4})}, 1, True),
        ({"proposer": PartSpec(f"{PARTS}.pac.Pac", {"window": 8, "candidates": 2})}, 1, True),
    ],
)
def test_every_drafter_with_a_law_is_measured(parts, temperature, says):
    """Rows that advance alone each have their own mean; certain drafts have none."""
    model = random_model(vocab=8, grid=4, seed=2)
    noise = Noise.for_prompts(0, ["a", "b", "c"], 16)
    spec = DecoderSpec("one", LOOP, acceptance=EXACT, **parts)
    decoder = build_decoder(model, spec, Sampling(temperature=temperature, cfg=2.0))
    trace = decoder.generate(same_prompt(model.text.encode(["x"]), 3), noise).trace
    assert bool(trace.expected.isfinite().all()) == says
    if says:
        assert trace.expected.shape == (3,)
        assert bool(((trace.expected > 1) & (trace.expected <= trace.tree_nodes + 1)).all())
        assert len(set(trace.expected.tolist())) == 3
