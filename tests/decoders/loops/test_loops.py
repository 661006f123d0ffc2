"""What a caller of a decoder may rely on: the trace adds up, greedy codes are those of AR, NaN is
an error, and no composition is silently wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from decoders.api import (
    CodeKind,
    DecoderError,
    Generation,
    NumericalError,
    Sampling,
    TextFeatures,
)
from decoders.compose import DecoderSpec, PartSpec, build_decoder, resolve
from decoders.execution.cuda_graphs import Graphed
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models.random_weights import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.drafters.free import Free
from decoders.propose.tree_proposer import TreeProposer
from decoders.propose.trees.cape import Cape
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.block import Block
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from decoders.verify.token_verifier import TokenVerifier
from decoders.verify.traversal import Traversal
from tests.decoders.compositions import (
    CHAIN,
    DRAFTER_SPECS,
    DYNAMIC,
    EAGLE,
    EXACT,
    LOOP,
    PATHS,
    STATIC,
    drafting,
    images,
    part,
    require_adds_up,
)
from tests.decoders.propose.test_jacobi import WINDOWS

LENGTH = 25
MODEL = random_model(vocab=24, grid=5, seed=1)
PROMPTS = [f"p{i}" for i in range(24)]
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


def run(tree: str, rule: str, count: int, sampling: Sampling | None = None, **given: Any) -> Any:
    decoder = drafting(MODEL, Eagle(MODEL), TREES[tree], RULES[rule], sampling)
    noise = Noise.for_prompts(0, PROMPTS[:count], LENGTH)
    return decoder.generate(MODEL.text.encode(["x"] * count), noise, **given)


@pytest.mark.parametrize(("tree", "rule", "temperature", "cfg"), MIXED)
def test_the_trace_adds_up(tree: str, rule: str, temperature: float, cfg: float) -> None:
    generation = run(tree, rule, 6, Sampling(temperature=temperature, cfg=cfg))
    trace = generation.trace
    assert int(generation.codes.min()) >= 0 and int(generation.codes.max()) < 24
    require_adds_up(trace)
    for row in range(6):
        for step in range(1, int(trace.target_calls[row]) + 1):
            mine = (trace.step[row] == step).nonzero().flatten()
            count = int(trace.accepted[row, step - 1])
            assert len(mine) in (count, count + 1)
            assert trace.depth[row, mine][:count].tolist() == [*range(1, count + 1)]
    assert (trace.tv_shift <= trace.bound + 1e-6).all()
    assert set(trace.seconds) == {"prefill", "draft", "forward", "accept"}
    if rule == "exact":
        assert not (trace.kind == CodeKind.RELAXED).any() and not trace.tv_shift.any()
    calls = trace.drafter_calls
    assert torch.equal(calls, trace.target_calls * TREES[tree].depth)


DRAFTERS: dict[str, Any] = {
    **{name: resolve(path) for name, path in PATHS.items()},
    "eagle": Eagle, "Free": lambda model: Free(model, layers=1),
}  # fmt: skip
# (drafter and tree, or a window, and the verifier)
GREEDY = [
    ((drafter, tree), TokenVerifier(Exact()))
    for drafter in DRAFTERS
    for tree in (TREES if drafter == "eagle" else ("wide", "dynamic"))
]
GREEDY += [(("eagle", "chain"), Block()), (("eagle", "wide"), Traversal())]
GREEDY += [((window, ""), TokenVerifier(Exact())) for window in WINDOWS]


def greedy(loop: Any) -> Generation:
    """Of 24 captions, at temperature 0."""
    features = torch.randn(24, 4, 8, generator=torch.Generator().manual_seed(3))
    text = TextFeatures(features, torch.ones(24, 4, dtype=torch.bool))
    decoder: Any = loop(MODEL, Sampling(temperature=0, cfg=2.0))
    return decoder.generate(text, Noise.for_prompts(0, PROMPTS, LENGTH))


@pytest.fixture(scope="module")
def ar() -> Generation:
    return greedy(Autoregressive)


@pytest.mark.parametrize(("parts", "verifier"), GREEDY, ids=[f"{p} {v}" for p, v in GREEDY])
def test_greedy_exact_equals_greedy_ar(parts: tuple[str, str], verifier: Any, ar: Any) -> None:
    """Whatever drafts, trained or not."""
    drafter, tree = parts
    proposer = WINDOWS.get(drafter) or TreeProposer(DRAFTERS[drafter](MODEL), TREES[tree])
    fast = greedy(partial(Speculative, proposer=proposer, verifier=verifier))
    assert torch.equal(ar.codes, fast.codes)
    assert len(fast.codes.unique(dim=0)) > 12  # the prompts do differ
    assert (fast.trace.drafter_calls > 0).all() == (drafter not in WINDOWS)
    if drafter == "eagle" or drafter in WINDOWS:
        assert float(fast.trace.target_calls.float().mean()) < LENGTH - 1


def test_relaxed_rules_accept_more() -> None:
    exact, relaxed = (run("chain", rule, 16).trace for rule in ("exact", "lantern"))
    assert relaxed.target_calls.float().mean() < exact.target_calls.float().mean()
    assert (relaxed.kind == CodeKind.RELAXED).any()


def test_pairs_are_those_of_visited_nodes() -> None:
    generation = run("chain", "lantern", 8, pairs=LENGTH)
    pairs = generation.trace.pairs
    for law in (pairs.p, pairs.q):
        torch.testing.assert_close(law.sum(-1), torch.ones(len(pairs.p)))
    assert pairs.valid.any(-1).all()
    positions = zip(pairs.image.tolist(), (pairs.position + pairs.depth).tolist(), strict=True)
    kind = generation.trace.kind
    tested = ((kind != CodeKind.TARGET) & (kind != CodeKind.BONUS)).nonzero().tolist()
    assert sorted(positions) == sorted(map(tuple, tested)), "each tested code's node, once"
    assert run("dynamic", "lantern", 1, pairs=4).trace.pairs.q is None


@pytest.mark.parametrize("speculative", [False, True])
def test_nan_logits_are_an_error(speculative: bool) -> None:
    broken = random_model(vocab=24, grid=3, seed=2)
    broken.target.output.weight[0, 0] = float("nan")
    decoder: Any = Autoregressive(broken, Sampling(cfg=2.0))
    if speculative:
        decoder = drafting(broken, Eagle(broken), Chain(depth=2))
    with pytest.raises(NumericalError, match="expected finite logits, found NaN"):
        images(decoder, ["x"])


# ---- what cannot be composed, or decoded ---------------------------------------------------------

AR, DUO = part("loops.autoregressive.Autoregressive"), part("loops.duo.Duo")
BLOCK, TRAVERSAL = part("verify.block.Block"), part("verify.traversal.Traversal")
WIDE = part("propose.trees.static.Static", choices=[[0], [1], [0, 0], [1, 0]])
ONE = part("propose.trees.chain.Chain", depth=1)
LAW = "these are deterministic"


def vvs(interval: int = 4) -> PartSpec:
    return part("loops.vvs.Vvs", interval=interval)


def window(name: str, **options: Any) -> dict[str, Any]:
    return {"drafter": None, "tree": None, "proposer": part(f"propose.{name}", **options)}


@pytest.mark.parametrize(("loop", "parts", "message"), [
    (LOOP, {"drafter": None, "tree": None, "acceptance": None},
     r"missing: drafter and tree, .* acceptance rule"),
    (LOOP, {"tree": None}, "missing: tree"),
    (LOOP, {"acceptance": None}, "missing: acceptance rule"),
    (part("loops.pjd.Pjd"), {"drafter": None, "acceptance": None}, "tree=none for a decoder that"),
    (LOOP, {"acceptance": BLOCK, "tree": DYNAMIC}, LAW),
    (LOOP, {"acceptance": TRAVERSAL, "tree": DYNAMIC}, LAW),
    (LOOP, {"acceptance": BLOCK, "tree": WIDE}, "judges a chain, found a tree of 4 nodes"),
    *((LOOP, {"acceptance": BLOCK} | window(name), "looks ahead has selected them by then")
      for name in ("maximal.Maximal", "plus.Plus", "gumbel.Gumbel", "pac.Pac")),
    (AR, {}, "autoregressive loop has no drafter"),
    (part("loops.zipar.ZipAR"), {"drafter": None, "tree": None}, "set all to none"),
    (DUO, {"tree": DYNAMIC}, "expected tree=chain, found dynamic"),
    (DUO, {"tree": ONE}, "2 to 31 drafts in a step, found 1"),
    (DUO, {"drafter": DRAFTER_SPECS["glide"].drafter}, "reads the target's cache"),
    (vvs(1), {"tree": DYNAMIC}, "interval: .* 2, found 1"),
    (vvs(2), {"tree": STATIC}, "a tree that is not drawn"),
    (vvs(), window("jacobi.Jacobi"), "needs a rule on a draft tree"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(loop: PartSpec, parts: Any, message: str) -> None:
    spec = DecoderSpec(
        "x", loop, **({"drafter": EAGLE, "tree": CHAIN, "acceptance": EXACT} | parts)
    )
    with pytest.raises(DecoderError, match=message):
        images(build_decoder(MODEL, spec, Sampling()), ["a"])


@pytest.mark.parametrize(("path", "settings", "most", "says"), [
    ("medusa.Medusa", {"heads": 2}, 2, r", or train one for more \(drafter.heads\)"),
    ("dflash.DFlash", {"block": 3, "checkpoint": None}, 3, r", or .* \(drafter.block\)"),
    ("hawk.Hawk", {}, 6, "$"),
    ("specdec.SpecDec", {}, 6, "$"),
])  # fmt: skip
def test_a_tree_deeper_than_its_drafter_is_refused_before_any_image(path, settings, most, says):
    drafter = part(f"propose.drafters.{path}", **settings)
    deep, fits = (part("propose.trees.chain.Chain", depth=most + n) for n in (1, 0))
    message = f"drafts at most {most} levels in a step, found {most + 1}; lower tree.depth{says}"
    with pytest.raises(DecoderError, match=message):
        build_decoder(MODEL, DecoderSpec("x", LOOP, drafter, deep, EXACT), Sampling())
    build_decoder(MODEL, DecoderSpec("x", LOOP, drafter, fits, EXACT), Sampling())


@pytest.mark.parametrize("loop", [DUO, vvs()])
def test_loops_that_cannot_be_captured_run_eagerly(loop: PartSpec) -> None:
    spec = DecoderSpec("x", loop, EAGLE, CHAIN, EXACT)
    on_card = replace(MODEL, execution=Graphed({1}), device=torch.device("cuda"))
    assert build_decoder(on_card, spec, Sampling()).execution.name == "eager"
