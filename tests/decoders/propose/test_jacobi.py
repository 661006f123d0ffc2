"""Windows of drafts without a drafter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gate.reference import ar_probabilities
from decoders.api import Draft, Sampling
from decoders.loops.speculative import Speculative
from decoders.models.random_weights import random_model, random_noise, same_prompt
from decoders.propose.gumbel import Gumbel as GumbelWindow
from decoders.propose.jacobi import Jacobi
from decoders.propose.maximal import Maximal
from decoders.propose.pac import Pac
from decoders.propose.plus import Plus
from decoders.propose.window import WindowSession
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier
from metrics.output_law import pearson
from tests.decoders.compositions import images

MODEL = random_model(vocab=24, grid=5, seed=1)
SAMPLING = Sampling(cfg=2.0)
PROMPTS = [f"p{i}" for i in range(5)]
WINDOWS: dict[str, Any] = {
    "sjd": Jacobi(MODEL, 6), "sjd above": Jacobi(MODEL, 9, fill="above"),
    "scd": Maximal(MODEL, 6), "plus": Plus(MODEL, 6),
    "gumbel": GumbelWindow(MODEL, 6), "pac": Pac(MODEL, 16, candidates=3, levels=2),
}  # fmt: skip


def test_gumbel_images_follow_the_law_of_ar() -> None:
    """Uniforms can be enumerated, Gumbel numbers cannot."""
    model, count = random_model(vocab=4, grid=2, seed=12), 4096
    text = same_prompt(model.text.encode(["x"]), count)
    noise = random_noise(count, 4, torch.Generator().manual_seed(8))
    decoder = Speculative(model, SAMPLING, GumbelWindow(model, 3), TokenVerifier(Exact()))
    codes = decoder.generate(text, noise).codes
    every = torch.cartesian_prod(*[torch.arange(4)] * 4)  # [256, 4]
    law = ar_probabilities(model, model.text.encode(["x"]), every, SAMPLING).prod(-1)
    numbers = [some @ 4 ** torch.arange(3, -1, -1) for some in (codes, codes.roll(1, 1))]
    right, wrong = (pearson(torch.bincount(n, minlength=256), count * law) for n in numbers)
    assert right > 1e-3
    assert wrong < 1e-6  # the test would see it


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Draft, Tensor, Tensor]]:
    """Of every draft: the draft, its position, and which of its positions had a law before."""
    seen = list[tuple[Draft, Tensor, Tensor]]()
    propose = WindowSession.propose

    def noting(self: Any, step: Any, noise: Any, position: Tensor) -> Draft:
        looked_at = self.old_window(step).has_probs
        seen.append((propose(self, step, noise, position), position.clone(), looked_at))
        return seen[-1][0]

    monkeypatch.setattr(WindowSession, "propose", noting)
    return seen


def with_row_ends() -> Any:
    """Code 0 ends rows of three codes, and stands nowhere else."""
    model: Any = random_model(vocab=24, grid=4)
    end = (torch.arange(24) == 0).expand(4, -1)
    model.target.barred = torch.cat([end[:3], ~end[3:]])
    return model


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", WINDOWS)
def test_no_draft_is_a_code_that_may_not_stand_at_its_place(
    name: str, temperature: float, proposed: Any
) -> None:
    model = with_row_ends()
    proposer = replace(WINDOWS[name], model=model)
    decoder = Speculative(model, Sampling(temperature, 2.0), proposer, TokenVerifier(Exact()))
    assert ((images(decoder, PROMPTS).codes == 0) == (torch.arange(16) % 4 == 3)).all()
    for draft, position, _ in proposed:
        active = position[:, None] < 16  # finished images stand still
        barred = model.target.barred[(position[:, None] + draft.depth - 1)[:, 1:] % 4]  # [B, N, V]
        linked = torch.zeros_like(draft.codes, dtype=torch.bool)
        linked.scatter_(1, draft.children.flatten(1), True)  # drafts that are judged
        forbidden = barred.gather(-1, draft.codes[:, 1:, None])[..., 0]
        assert not (forbidden & linked[:, 1:] & active).any()
        if draft.q is not None:
            laws = draft.q.gather(1, draft.parents[:, 1:, None].expand(-1, -1, 24))
            assert not laws[barred & active[..., None]].any()


def test_a_fill_is_the_code_one_row_up_and_in_the_first_row_the_left_neighbour(proposed) -> None:
    """Rows of five codes and windows of eight drafts: some codes one row up are drafts."""
    proposer = Jacobi(MODEL, 9, fill="above")
    assert str(proposer) == "jacobi(window=9, fill=above)"
    decoder = Speculative(MODEL, SAMPLING, proposer, TokenVerifier(Exact()))
    done, filled = images(decoder, PROMPTS), 0
    for draft, position, looked_at in proposed:
        for row, start in enumerate(position.tolist()):
            code = dict(enumerate(done.codes[row, :start].tolist()))
            code |= dict(enumerate(draft.codes[row, 1:].tolist(), start))
            for level, known in enumerate(looked_at[row].tolist()):
                at = start + level
                if start < 25 and not known:
                    assert code[at] == code[at - 5 if at >= 5 else at - 1]
                    assert draft.q is not None and float(draft.q[row, level, code[at]]) == 1.0
                    filled += 1
    assert filled > 50
