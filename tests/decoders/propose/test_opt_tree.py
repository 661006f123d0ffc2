"""OPT-Tree against its pseudo-code (decoders.md (h)), and what drafters expect per forward."""

from typing import Any

import pytest
import torch

from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.loops.recording import expected_codes
from decoders.models.small import random_model, same_prompt
from decoders.noise import Noise
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.opt import Opt
from decoders.propose.trees.static import Static
from metrics.traces import from_trace
from tests.decoders.compositions import EXACT, LOOP
from tests.exact.specs import EAGLE

V = 20


class Session:
    """A drafter whose distribution depends on the code alone."""

    calls = 0

    def __init__(self, batch: int) -> None:
        self.table = torch.randn(V, V, generator=torch.Generator().manual_seed(0)) * 2
        self.root_code = torch.arange(batch)

    def expand(self, codes: Any, nodes: Any, parents: Any, depth: int) -> Any:
        return self.table[codes]


def grow(tree: Any, batch: int = 3, temperature: float = 1) -> tuple[Any, Session]:
    session = Session(batch)
    noise = Noise.for_prompts(0, [f"p{i}" for i in range(batch)], 40)
    root = session.table[session.root_code]
    return tree.grow(
        session, root, Sampling(temperature), noise, torch.ones(batch, dtype=torch.long)
    ), session


def by_hand(session, root: int, n: int, depth: int, theta: float) -> tuple[set, float, int]:
    """Paths of the tree, the codes that it expects, and its levels, as the pseudo-code reads."""
    law = session.table.double().softmax(-1)
    layer = sorted(((float(law[root, x]), (x,)) for x in range(V)), reverse=True)[:n]
    every, best = list(layer), sum(w for w, _ in layer)
    for _ in range(depth - 1 if best > theta else 0):
        grown = [(w * float(law[path[-1], x]), (*path, x)) for w, path in layer for x in range(V)]
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
    draft, session = grow(tree)
    levels = set()
    for row in range(3):
        wanted, expected, deepest = by_hand(session, row, 8, 5, theta)
        assert paths(draft, row) == wanted
        assert float(draft.expected[row]) == pytest.approx(expected, abs=1e-5)
        assert int(draft.depth[row].max()) == deepest
        levels.add(deepest)
    assert max(levels) == 1 if theta == 5.0 else max(levels) > 1  # the first level is judged too
    assert max(levels) > 2 or theta > 0
    assert draft.q is None  # deterministic given the prefix


def test_without_a_threshold_it_is_the_dynamic_tree_s_best():
    opt, _ = grow(Opt(depth=3, top_k=4, nodes=9, theta=0.0))
    dynamic, _ = grow(Dynamic(depth=3, top_k=4, nodes=9))
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
    draft, session = grow(Static(choices=[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]))
    law = session.table.double().softmax(-1)
    for row, found in enumerate(expected_codes(draft).tolist()):
        weights = []
        for path in paths(draft, row):
            steps = zip((row, *path), path, strict=False)
            weights.append(float(torch.stack([law[a, b] for a, b in steps]).prod()))
        assert len(weights) == draft.codes.shape[1] - 1
        assert found == pytest.approx(1 + sum(weights), abs=1e-5)


PARTS = "decoders.propose"
JACOBI = {"window": 4}
CHAIN = PartSpec(f"{PARTS}.trees.chain.Chain", {"depth": 3})


@pytest.mark.parametrize(
    ("parts", "temperature", "says"),
    [
        ({"drafter": EAGLE, "tree": CHAIN}, 1, True),
        ({"drafter": EAGLE, "tree": CHAIN}, 0, False),
        ({"proposer": PartSpec(f"{PARTS}.jacobi.Jacobi", JACOBI)}, 1, True),
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
