"""Windows of drafts without a drafter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.judge.gate.reference import ar_probabilities
from bench.judge.gate.statistics import pearson
from decoders.api import DecoderError, Draft, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.loops.speculative_state import first_output
from decoders.loops.start import prefill
from decoders.models.small import fresh_noise, random_model, same_prompt
from decoders.noise import Noise
from decoders.propose.gumbel import Gumbel as GumbelWindow
from decoders.propose.jacobi import Jacobi
from decoders.propose.maximal import Maximal, coupled
from decoders.propose.pac import Pac
from decoders.propose.plus import Plus
from decoders.propose.window import WindowSession, lattice, lines_of
from decoders.verify.block import Block
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier

GRID = 5
MODEL = random_model(vocab=24, grid=GRID, seed=1)
SAMPLING = Sampling(cfg=2.0)
PROMPTS = [f"p{i}" for i in range(5)]
WINDOWS: dict[str, Any] = {
    "sjd": Jacobi(MODEL, 6), "scd": Maximal(MODEL, 6), "plus": Plus(MODEL, 6),
    "gumbel": GumbelWindow(MODEL, 6), "pac": Pac(MODEL, 16, candidates=3, levels=2),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_greedy_windows_give_the_tokens_of_greedy_ar(name: str) -> None:
    greedy, text = Sampling(temperature=0, cfg=2.0), MODEL.text.encode(["x"] * 5)
    noise = Noise.for_prompts(3, PROMPTS, GRID * GRID)
    found = Speculative(MODEL, greedy, WINDOWS[name], TokenVerifier(Exact())).generate(text, noise)
    assert torch.equal(found.codes, Autoregressive(MODEL, greedy).generate(text, noise).codes)
    assert int(found.trace.target_calls.max()) < GRID * GRID - 1
    assert not found.trace.drafter_calls.any()


def test_gumbel_images_follow_the_law_of_ar() -> None:
    """Uniforms can be enumerated, Gumbel numbers cannot."""
    model, count = random_model(vocab=4, grid=2, seed=12), 4096
    text = same_prompt(model.text.encode(["x"]), count)
    noise = fresh_noise(count, 4, torch.Generator().manual_seed(8))
    decoder = Speculative(model, SAMPLING, GumbelWindow(model, 3), TokenVerifier(Exact()))
    codes = decoder.generate(text, noise).codes
    images = torch.cartesian_prod(*[torch.arange(4)] * 4)  # [256, 4]
    law = ar_probabilities(model, model.text.encode(["x"]), images, SAMPLING).prod(-1)
    numbers = [made @ 4 ** torch.arange(3, -1, -1) for made in (codes, codes.roll(1, 1))]
    right, wrong = (pearson(torch.bincount(n, minlength=256), count * law) for n in numbers)
    assert right > 1e-3
    assert wrong < 1e-6  # the test would see it


def test_a_coupled_draft_has_the_new_law_and_is_kept_as_often_as_can_be() -> None:
    random = torch.Generator().manual_seed(0)
    q, p = torch.rand(2, 4, 1, 6, generator=random, dtype=torch.float64).softmax(-1)
    kernels = [coupled(p, q, torch.full((4, 1), x)) for x in range(6)]
    kernel = torch.stack(kernels, 2)  # [B, W, x, x']
    torch.testing.assert_close((q[..., None] * kernel).sum(2), p)
    kept = (q * kernel.diagonal(dim1=2, dim2=3)).sum(-1)
    torch.testing.assert_close(kept, 1 - 0.5 * (p - q).abs().sum(-1))


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
    noise = Noise.for_prompts(3, ["a"], GRID * GRID)

    def decoded(proposer: Any) -> Any:
        decoder = Speculative(MODEL, SAMPLING, proposer, Block(MODEL))
        return decoder.generate(MODEL.text.encode(["a"]), noise)

    for proposer in (Maximal(MODEL, 4), Plus(MODEL, 4), GumbelWindow(MODEL, 4), Pac(MODEL, 24)):
        with pytest.raises(DecoderError, match="looks ahead has selected them by then"):
            decoded(proposer)
    assert decoded(Jacobi(MODEL, 4)).codes.shape == (1, GRID * GRID)


def with_row_ends() -> Any:
    """Code 0 ends rows of three codes, and stands nowhere else."""
    model: Any = random_model(vocab=24, grid=4)
    end = (torch.arange(24) == 0).expand(4, -1)
    model.target.barred = torch.cat([end[:3], ~end[3:]])
    return model


def test_new_drafts_declare_the_law_they_are_drawn_from_and_structural_codes_are_certain() -> None:
    """First step: nothing was told, so all codes that may stand there are as likely."""
    model = with_row_ends()
    window, text = Jacobi(model, 5), model.text.encode(["x"] * 5)
    noise = Noise.for_prompts(3, PROMPTS, 16).stepping(torch.zeros(1, dtype=torch.long), False)
    start = prefill(model, SAMPLING, text, noise, 40)
    output = first_output(start, window, torch.zeros(5, 40, dtype=torch.long))
    draft = window.begin(start).propose(output, noise, torch.ones_like(start.first))
    assert draft.q is not None
    flat, certain = torch.full((24,), 1 / 23), torch.eye(24)[0]
    flat[0] = 0
    wanted = torch.stack([flat, flat, certain, flat])  # of places 1 to 4
    torch.testing.assert_close(draft.q[:, :4], wanted.expand(5, -1, -1))
    assert (draft.codes[:, 3] == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", WINDOWS)
def test_no_draft_is_a_code_that_may_not_stand_at_its_place(
    name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = with_row_ends(), list[tuple[Draft, Tensor]]()
    proposer = replace(WINDOWS[name], model=model)
    propose = WindowSession.propose

    def noted(self: Any, step: Any, noise: Any, place: Tensor) -> Draft:
        seen.append((propose(self, step, noise, place), place.clone()))
        return seen[-1][0]

    monkeypatch.setattr(WindowSession, "propose", noted)
    decoder = Speculative(model, Sampling(temperature, 2.0), proposer, TokenVerifier(Exact()))
    noise = Noise.for_prompts(3, PROMPTS, 16)
    codes = decoder.generate(model.text.encode(["x"] * 5), noise).codes
    assert ((codes == 0) == (torch.arange(16) % 4 == 3)).all()
    for draft, place in seen:
        active = place[:, None] < 16  # finished images stand still
        barred = model.target.barred[(place[:, None] + draft.depth - 1)[:, 1:] % 4]  # [B, N, V]
        linked = torch.zeros_like(draft.codes, dtype=torch.bool)
        linked.scatter_(1, draft.children.flatten(1), True)  # drafts that are judged
        forbidden = barred.gather(-1, draft.codes[:, 1:, None])[..., 0]
        assert not (forbidden & linked[:, 1:] & active).any()
        if draft.q is not None:
            laws = draft.q.gather(1, draft.parents[:, 1:, None].expand(-1, -1, 24))
            assert not laws[barred & active[..., None]].any()
