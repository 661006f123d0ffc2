"""Windows of drafts without a drafter, and acceptance that equals AR code by code."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.judge.gate.reference import image_law
from bench.judge.gate.small import fresh_noise, same_prompt
from bench.judge.gate.statistics import prefix_pvalues
from decoders.api import DecoderError, Draft, Sampling, Seen
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.executed import execution
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.gumbel import GumbelAutoregressive
from decoders.loops.speculative import Speculative
from decoders.loops.start import begin
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.grown import Grown
from decoders.propose.gumbel import Gumbel as GumbelWindow
from decoders.propose.jacobi import Jacobi
from decoders.propose.maximal import Maximal, coupling
from decoders.propose.pac import Pac
from decoders.propose.plus import Plus
from decoders.propose.rising import Rising
from decoders.propose.trees.static import Static
from decoders.propose.window import Left, Places, copied, lattice, lines_of
from decoders.verify.block import Block
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from decoders.verify.gumbel import Gumbel
from tests.decoders.execution.test_backends import Replayed

GRID = 5
MODEL = random_model(vocab=24, grid=GRID, seed=1)
SAMPLING = Sampling(cfg=2.0)
PROMPTS = [f"p{i}" for i in range(5)]
WINDOWS: dict[str, Any] = {
    "sjd": Jacobi(MODEL, 6), "vertical": Jacobi(MODEL, 8, "vertical"),
    "sample": Jacobi(MODEL, 6, "sample"), "scd": Maximal(MODEL, 6),
    "plus": Plus(MODEL, 6), "rising": Rising(MODEL, 6, rises=0, share=1.0),
    "back": Jacobi(MODEL, 8, "vertical", back=3),
    "gumbel": GumbelWindow(MODEL, 6), "pac": Pac(MODEL, 16, candidates=3, levels=2),
}  # fmt: skip


def made(proposer: Any, verifier: Any, prompts: list[str], sampling: Sampling = SAMPLING) -> Any:
    noise = Noise.for_prompts(3, prompts, GRID * GRID)
    text = MODEL.text.encode(["x"] * len(prompts))
    if proposer is None:
        return verifier(MODEL, sampling).generate(text, noise)
    return Speculative(MODEL, sampling, proposer, verifier).generate(text, noise)


@pytest.mark.parametrize("name", ["vertical", "pac", "rising"])
def test_a_recorded_step_drafts_as_an_eager_one_does(name: str) -> None:
    """A graph's replay reads and writes the tensors that it was recorded on."""
    found = []
    for how in (execution("eager"), Replayed()):
        model = replace(MODEL, execution=how)
        decoder = Speculative(model, SAMPLING, WINDOWS[name], ByNode(Exact()))
        for prompt in ("a", "b"):
            noise = Noise.for_prompts(3, [prompt], GRID * GRID)
            found.append(decoder.generate(model.text.encode([prompt]), noise).codes.clone())
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


@pytest.mark.parametrize("name", WINDOWS)
def test_greedy_windows_give_the_tokens_of_greedy_ar(name: str) -> None:
    greedy = Sampling(temperature=0, cfg=2.0)
    found = made(WINDOWS[name], ByNode(Exact()), PROMPTS, greedy)
    assert torch.equal(found.codes, made(None, Autoregressive, PROMPTS, greedy).codes)
    assert int(found.trace.target_calls.max()) < GRID * GRID - 1
    assert not found.trace.drafter_calls.any()


@pytest.mark.parametrize("draw", ["gumbel", "uniform"])
def test_bit_exact_acceptance_gives_the_codes_of_ar(draw: str) -> None:
    """Whatever proposes, in a batch or alone, while sampling."""
    loop = GumbelAutoregressive if draw == "gumbel" else Autoregressive
    wanted = made(None, loop, PROMPTS).codes
    tree = Static(MODEL, "eagle_25")
    for proposer in (WINDOWS["vertical"], WINDOWS["pac"], Grown(Eagle(MODEL), tree)):
        found = made(proposer, Gumbel(MODEL, draw), PROMPTS)
        assert torch.equal(found.codes, wanted)
    alone = made(WINDOWS["gumbel"], Gumbel(MODEL, draw), PROMPTS[2:3])
    assert torch.equal(alone.codes, wanted[2:3])
    assert not torch.equal(wanted, made(None, Autoregressive, PROMPTS[::-1]).codes)


def test_drafts_with_the_targets_own_noise_are_accepted_more_often() -> None:
    steps = [
        float(made(p, Gumbel(MODEL), PROMPTS).trace.target_calls.float().mean())
        for p in (GumbelWindow(MODEL, 6), Jacobi(MODEL, 6))
    ]
    assert steps[0] < 0.9 * steps[1]


@pytest.mark.parametrize(
    ("loop", "proposer"),
    [(None, GumbelWindow(None, 3)), (GumbelAutoregressive, None)],
    ids=["window", "ar"],
)
def test_gumbel_images_follow_the_law_of_ar(loop: Any, proposer: Any) -> None:
    """Uniforms can be enumerated, Gumbel numbers cannot."""
    model, count = random_model(vocab=4, grid=2, seed=12), 4096
    text = same_prompt(model.text.encode(["x"]), count)
    noise = fresh_noise(count, 4, torch.Generator().manual_seed(8))
    decoder = loop(model, SAMPLING) if loop else Speculative(
        model, SAMPLING, proposer, ByNode(Exact())
    )  # fmt: skip
    codes = decoder.generate(text, noise).codes
    law = image_law(model, model.text.encode(["x"]), SAMPLING)
    assert min(prefix_pvalues(law, codes)) * 4 > 1e-3
    assert min(prefix_pvalues(law, codes.roll(1, 1))) < 1e-6  # the test would see it


def test_a_coupled_draft_has_the_new_law_and_is_kept_as_often_as_can_be() -> None:
    random = torch.Generator().manual_seed(0)
    q, p = torch.rand(2, 4, 1, 6, generator=random, dtype=torch.float64).softmax(-1)
    kernels = []
    for x in range(6):
        old = torch.full((4, 1), x)
        there = torch.ones_like(old, dtype=torch.bool)
        left = Left(p, there, old, q, there, old + 2, p[:, 0], False)
        kernels.append(coupling(p, left))
    kernel = torch.stack(kernels, 2)  # [B, W, x, x']
    torch.testing.assert_close((q[..., None] * kernel).sum(2), p)
    kept = (q * kernel.diagonal(dim1=2, dim2=3)).sum(-1)
    torch.testing.assert_close(kept, 1 - 0.5 * (p - q).abs().sum(-1))


def test_new_drafts_are_copied_from_the_left_or_from_above() -> None:
    """Rows of 4 codes; the window begins at place 6, its first draft is not new."""
    image = torch.tensor([[10, 11, 12, 13, 14, 15, 0, 0, 0, 0, 0, 0, 0]])
    fresh = torch.tensor([[False, True, True, True, True, True]])
    codes, places = torch.tensor([[7, 0, 0, 0, 0, 0]]), torch.arange(6, 12)[None]
    asked = Places(4, None), codes, fresh, torch.tensor([[15]]), image, places
    assert copied("horizontal", *asked)[0].tolist() == [[7] * 6]
    assert copied("vertical", *asked)[0].tolist() == [[7, 13, 14, 15, 7, 13]]  # 7: in the window
    assert copied("uniform", *asked)[0].tolist() == codes.tolist()
    near = Places.of(MODEL.target, back=3), *asked[1:]  # 3 places back, whatever the row
    assert copied("vertical", *near)[0].tolist() == [[7, 14, 15, 7, 14, 15]]
    forced = torch.full((20,), -1)
    forced[8] = 99  # a row's end
    found, known = copied("vertical", Places(4, forced), *asked[1:])
    assert found.tolist() == [[7, 13, 99, 15, 7, 13]] and known.sum() == 1


def test_candidates_share_their_level_and_a_chain_follows() -> None:
    assert lattice(4, 2, 2) == [
        (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 0, 0)
    ]  # fmt: skip
    window = Pac(MODEL, 64)  # the paper's: K 4, D 3, L 64
    assert (window.nodes, window.depth, window.branching) == (63, 45, 4)
    small = Pac(MODEL, 9, candidates=2, levels=2).lattice
    lines = lines_of(small.parent, small.level_of).tolist()
    assert lines[0] == [0, 1, 3, 7, 8]  # first candidates
    assert lines[2] == [0, 2, 5, 7, 8]  # its own level, and the main row where it ends
    assert lines[6] == [0, 2, 6, 7, 8]


def test_what_is_kept_from_step_to_step_suits_no_verifier_that_looks_ahead() -> None:
    for proposer in (Maximal(MODEL, 4), Plus(MODEL, 4), GumbelWindow(MODEL, 4), Pac(MODEL, 24)):
        with pytest.raises(DecoderError, match="looks ahead has selected them by then"):
            made(proposer, Block(MODEL), ["a"])
    assert made(Jacobi(MODEL, 4), Block(MODEL), ["a"]).codes.shape == (1, GRID * GRID)


@pytest.mark.parametrize(
    ("part", "options", "says"),
    [
        ("jacobi.Jacobi", {"init": "diagonal"}, "one of uniform, random, horizontal, vertical"),
        ("jacobi.Jacobi", {"window": 1}, "window"),
        ("maximal.Maximal", {"window": 65}, "window"),
        ("pac.Pac", {"window": 20, "levels": 2}, "raise proposer.window"),
        ("pac.Pac", {"candidates": 16, "levels": 6}, "at most 4096"),
    ],
)
def test_impossible_windows_are_refused(part: str, options: dict[str, Any], says: str) -> None:
    spec = DecoderSpec(
        "window",
        PartSpec("decoders.loops.speculative.Speculative"),
        acceptance=PartSpec("decoders.verify.exact.Exact"),
        proposer=PartSpec(f"decoders.propose.{part}", options),
    )
    with pytest.raises(DecoderError, match=says):
        build_decoder(MODEL, spec, SAMPLING)


def test_a_window_declares_the_law_it_drew_from() -> None:
    """First step: nothing was told, so 1 / V, or one certain code."""
    for init, peak in (("uniform", 1 / 24), ("horizontal", 1.0)):
        draft = first_draft(Jacobi(MODEL, 5, init))
        assert draft.q is not None
        torch.testing.assert_close(draft.q[:, :4].amax(-1), torch.full((5, 4), peak))
        own = draft.q[:, :4].gather(-1, draft.codes[:, 1:, None])
        torch.testing.assert_close(own, torch.full_like(own, peak))


def first_draft(window: Any) -> Draft:
    from decoders.loops.speculative_run import first_seen

    text = MODEL.text.encode(["x"] * 5)
    steps = torch.zeros(1, dtype=torch.long)
    noise = Noise.for_prompts(3, PROMPTS, 25).stepping(steps, False)
    start = begin(MODEL, SAMPLING, text, noise, 40)
    seen: Seen = first_seen(start, window, torch.zeros(5, 40, dtype=torch.long))
    return window.begin(start).propose(seen, noise, torch.ones_like(start.first))
