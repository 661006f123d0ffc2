"""What a caller of a decoder may rely on: the trace adds up, greedy codes are those of AR, NaN is
an error, and no composition is silently wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoders.api import CodeKind, DecoderError, Generation, NumericalError, Sampling
from decoders.compose import resolve
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.drafters.free import Free
from decoders.propose.tree_proposer import TreeProposer
from decoders.propose.trees.cape import Cape
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from decoders.verify.token_verifier import TokenVerifier
from tests.decoders.compositions import PATHS

GRID = 5
LENGTH = GRID * GRID
MODEL = random_model(vocab=24, grid=GRID, seed=1)
TREES: dict[str, Any] = {
    "chain": Chain(depth=3), "static": Static(choices="mc_sim_7b_63"),
    "wide": Static(choices=[[0], [1], [2], [0, 0], [1, 0], [1, 1]]),
    "dynamic": Dynamic(depth=3, top_k=3, nodes=9), "cape": Cape(depth=3, nodes=16),
}  # fmt: skip
RULES: dict[str, Any] = {
    "exact": Exact(), "lantern": Lantern(MODEL, k=4, delta=0.3),
    "lantern_pp": LanternPP(MODEL, k=4, lam=3.0),
    "lantern_released": Lantern(MODEL, k=4, delta=0.3, residual="released"),
    "lantern_pp_released": LanternPP(MODEL, k=4, lam=3.0, residual="released"),
}  # fmt: skip
# Every tree with every rule, and both of them with every temperature and every guidance.
MIXED = [
    (tree, rule, float((i // 2 + j) % 2), 1.0 + (i + j) % 2)
    for i, tree in enumerate(TREES)
    for j, rule in enumerate(RULES)
]


def run(
    tree: str, rule: str, temperature: float, prompts: list[str], cfg: float = 2.0, pairs: int = 0
) -> Generation:
    sampling = Sampling(temperature=temperature, cfg=cfg)
    decoder = Speculative(
        MODEL, sampling, TreeProposer(Eagle(MODEL), TREES[tree]), TokenVerifier(RULES[rule])
    )
    text = MODEL.text.encode(["x"] * len(prompts))
    return decoder.generate(text, Noise.for_prompts(0, prompts, LENGTH), pairs=pairs)


@pytest.mark.parametrize(("tree", "rule", "temperature", "cfg"), MIXED)
def test_the_trace_adds_up(tree: str, rule: str, temperature: float, cfg: float) -> None:
    made = run(tree, rule, temperature, [f"p{i}" for i in range(6)], cfg)
    trace = made.trace
    assert int(made.codes.min()) >= 0 and int(made.codes.max()) < 24
    for row in range(6):
        steps = int(trace.target_calls[row])
        accepted = trace.accepted[row]
        assert (accepted[:steps] >= 0).all() and (accepted[steps:] == -1).all()
        assert trace.step[row, 0] == 0 and int(trace.step[row].max()) == steps
        kinds = trace.kind[row]
        drafts = (kinds == CodeKind.DRAFT) | (kinds == CodeKind.RELAXED)
        assert int(drafts.sum()) == int(accepted[:steps].sum())
        assert kinds[0] == CodeKind.TARGET
        for step in range(1, steps + 1):
            mine = (trace.step[row] == step).nonzero().flatten()
            assert len(mine) in (int(accepted[step - 1]), int(accepted[step - 1]) + 1)
            depths = trace.depth[row, mine]
            assert depths[: int(accepted[step - 1])].tolist() == list(
                range(1, int(accepted[step - 1]) + 1)
            )
    assert (trace.tv_shift <= trace.bound + 1e-6).all()
    assert set(trace.seconds) == {"prefill", "draft", "forward", "accept"}
    if RULES[rule].__class__ is Exact:
        assert not (trace.kind == CodeKind.RELAXED).any() and not trace.tv_shift.any()
    calls = trace.drafter_calls - 1  # the prefix
    assert torch.equal(calls, trace.target_calls * TREES[tree].depth)


DRAFTERS: dict[str, Any] = {
    **{name: resolve(path) for name, path in PATHS.items()},
    "eagle": Eagle, "Free": lambda model: Free(model, layers=1),
}  # fmt: skip
DRAFTED = [
    (drafter, tree)
    for drafter in DRAFTERS
    for tree in (TREES if drafter == "eagle" else ("wide", "dynamic"))
]


@pytest.mark.parametrize(("drafter", "tree"), DRAFTED)
def test_greedy_exact_equals_greedy_ar(drafter: str, tree: str) -> None:
    """Whatever drafts, trained or not."""
    prompts = [f"p{i}" for i in range(24)]
    sampling = Sampling(temperature=0, cfg=2.0)
    noise = Noise.for_prompts(0, prompts, LENGTH)
    features = torch.randn(24, 4, 8, generator=torch.Generator().manual_seed(3))
    text = type(MODEL.text.encode(["x"]))(features, torch.ones(24, 4, dtype=torch.bool))
    ar = Autoregressive(MODEL, sampling).generate(text, noise)
    proposer = TreeProposer(DRAFTERS[drafter](MODEL), TREES[tree])
    fast = Speculative(MODEL, sampling, proposer, TokenVerifier(Exact())).generate(text, noise)
    assert torch.equal(ar.codes, fast.codes)
    assert len(ar.codes.unique(dim=0)) > 12  # the prompts do differ
    assert (fast.trace.drafter_calls > 0).all()
    if drafter == "eagle":
        assert float(fast.trace.target_calls.float().mean()) < LENGTH - 1


def test_relaxed_rules_accept_more() -> None:
    prompts = [f"p{i}" for i in range(16)]
    exact = run("chain", "exact", 1.0, prompts).trace.target_calls.float().mean()
    relaxed = run("chain", "lantern", 1.0, prompts).trace
    assert relaxed.target_calls.float().mean() < exact
    assert (relaxed.kind == CodeKind.RELAXED).any()


def test_pairs_are_those_of_visited_nodes() -> None:
    made = run("chain", "lantern", 1.0, [f"p{i}" for i in range(8)], pairs=LENGTH)
    pairs = made.trace.pairs
    assert pairs is not None and pairs.q is not None
    torch.testing.assert_close(pairs.p.sum(-1), torch.ones(len(pairs.p)))
    torch.testing.assert_close(pairs.q.sum(-1), torch.ones(len(pairs.p)))
    assert pairs.valid.any(-1).all()
    assert pairs.place is not None and pairs.depth is not None and pairs.image is not None
    found = set(zip(pairs.image.tolist(), (pairs.place + pairs.depth).tolist(), strict=True))
    tested = (made.trace.kind != CodeKind.TARGET) & (made.trace.kind != CodeKind.BONUS)
    assert found == {(b, i) for b, i in tested.nonzero().tolist()}, "each tested code's node, once"
    assert len(found) == len(pairs.p)
    assert run("dynamic", "lantern", 1.0, ["a"], pairs=4).trace.pairs.q is None  # type: ignore


@pytest.mark.parametrize("speculative", [False, True])
def test_nan_logits_are_an_error(speculative: bool) -> None:
    broken = random_model(vocab=24, grid=3, seed=2)
    broken.target.output.weight[0, 0] = float("nan")  # type: ignore[attr-defined]
    sampling = Sampling(cfg=2.0)
    decoder: Any = Autoregressive(broken, sampling)
    if speculative:
        decoder = Speculative(
            broken, sampling, TreeProposer(Eagle(broken), Chain(depth=2)), TokenVerifier(Exact())
        )
    with pytest.raises(NumericalError, match="expected finite logits, found NaN"):
        decoder.generate(broken.text.encode(["x"]), Noise.for_prompts(0, ["x"], 9))


def test_incomplete_compositions_are_refused() -> None:
    with pytest.raises(DecoderError, match="missing: tree"):
        TreeProposer(Eagle(MODEL), None)
    with pytest.raises(DecoderError, match=r"missing: drafter and tree, .* acceptance rule"):
        Speculative(MODEL, Sampling())
    with pytest.raises(DecoderError, match="missing: acceptance rule"):
        Speculative(MODEL, Sampling(), TreeProposer(Eagle(MODEL), Chain(depth=2)))
    with pytest.raises(DecoderError, match="autoregressive loop has no drafter"):
        Autoregressive(MODEL, Sampling(), TreeProposer(Eagle(MODEL), Chain(depth=2)))
    with pytest.raises(DecoderError, match="no drafter 'medusa'; it has: eagle"):
        Eagle(MODEL, checkpoint="medusa")
