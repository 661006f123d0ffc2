"""The laws of the noise: uniform, Gumbel, and independent between all that should be independent.

Seeds are fixed, so a p-value is the same in every run: a failure is a change of the generator.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from decoders.noise import (
    ACCEPT_SLOT,
    COUPLE_SLOT,
    DRAFT_SLOT,
    OVERRUN,
    OWN_SLOT,
    TARGET_SLOT,
    Noise,
)

IMAGES, LENGTH = 24, 961
PLACES = LENGTH + OVERRUN
LEAST = 1e-4  # of a p-value
PURPOSES = {
    "target": TARGET_SLOT, "accept": ACCEPT_SLOT, "second accept": ACCEPT_SLOT + 1,
    "draft": DRAFT_SLOT, "couple": COUPLE_SLOT, "own": OWN_SLOT, "another own": OWN_SLOT + 5,
}  # fmt: skip
NOISE = Noise.for_prompts(0, [f"prompt {i}" for i in range(IMAGES)], LENGTH)
EVERY = torch.arange(PLACES).expand(IMAGES, -1)


def column(slot: int, turn: int = 0, noise: Noise = NOISE) -> Tensor:
    """One uniform of every image and place, [IMAGES, PLACES]."""
    return noise.at(EVERY, slot, 1, turn)[..., 0]


def uniformity(u: Tensor) -> float:
    """The lesser p-value of a chi-square test on 256 bins and of Kolmogorov and Smirnov's."""
    counts = torch.bincount((u.flatten() * 256).long(), minlength=256).numpy()
    low = np.modf(u.double().flatten().numpy() * 4096)[0]  # the low bits as well
    fits = [stats.kstest(u.flatten().numpy(), "uniform"), stats.kstest(low, "uniform")]
    return min(stats.chisquare(counts).pvalue, *(f.pvalue for f in fits))


def independence(u: Tensor, v: Tensor) -> float:
    """The lesser p-value of the correlation and of a chi-square test on 16 x 16 cells; u, v
    uniform."""
    cells = (u.flatten() * 16).long() * 16 + (v.flatten() * 16).long()
    counts = torch.bincount(cells, minlength=256).numpy()
    r = float(np.corrcoef(u.double().flatten().numpy(), v.double().flatten().numpy())[0, 1])
    linear = 2 * stats.norm.sf(abs(r) * u.numel() ** 0.5)
    return min(stats.chisquare(counts).pvalue, linear)


@pytest.mark.parametrize("turn", [0, 1, 7])
@pytest.mark.parametrize("purpose", PURPOSES)
def test_uniforms_are_uniform(purpose: str, turn: int) -> None:
    u = column(PURPOSES[purpose], turn)
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert torch.equal((u * 2**24) % 1, torch.zeros_like(u))  # 24 bits, exact in float32
    assert uniformity(u) > LEAST


def test_purposes_are_independent() -> None:
    pairs = list(itertools.combinations(PURPOSES.values(), 2))
    found = [independence(column(a, turn), column(b, turn)) for a, b in pairs for turn in (0, 2)]
    assert min(found) > LEAST / len(found)


def test_rounds_places_images_and_seeds_are_independent() -> None:
    """Also of another round at the place before or after: a window moves while it is redrawn."""
    found = []
    for slot in PURPOSES.values():
        turns = [column(slot, turn) for turn in (0, 1, 2, 256)]
        found += [independence(a, b) for a, b in itertools.combinations(turns, 2)]
        found += [independence(turns[0][:, 1:], turns[1][:, :-1])]
        found += [independence(turns[0][:, gap:], turns[0][:, :-gap]) for gap in (1, 32)]
    u, other = NOISE.uniform, Noise.for_prompts(1, [f"prompt {i}" for i in range(IMAGES)], LENGTH)
    near = Noise.of_keys(torch.tensor([[0, i] for i in range(IMAGES)]), LENGTH).uniform
    pairs = (u, other.uniform), (u[1:], u[:-1]), (near[1:], near[:-1])  # keys that differ in a bit
    assert min(found + [independence(*pair) for pair in pairs]) > LEAST / len(found)


# ---- Gumbel rows --------------------------------------------------------------------------------

LAW = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02, 0.0])


def best(logits: Tensor, slot: int, turn: int) -> Tensor:
    return (logits + NOISE.gumbel(EVERY, len(logits), slot, turn)).argmax(-1)


def flat(g: Tensor) -> Tensor:
    """Gumbel numbers as uniforms."""
    return (-(-g.double()).exp()).exp().float().clamp_max(1 - 2.0**-24)


@pytest.mark.parametrize(("slot", "turn"), [(TARGET_SLOT, 0), (DRAFT_SLOT, 0), (OWN_SLOT, 3)])
def test_the_best_code_under_gumbel_noise_has_the_law(slot: int, turn: int) -> None:
    codes = best(LAW.log(), slot, turn)
    counts = torch.bincount(codes.flatten(), minlength=len(LAW))
    assert counts[-1] == 0  # what is impossible is never drawn
    expected = LAW[:-1].double() / LAW.double().sum() * codes.numel()
    assert stats.chisquare(counts[:-1].numpy(), expected.numpy()).pvalue > LEAST
    after = torch.bincount((codes[:, :-1] * len(LAW) + codes[:, 1:]).flatten(), minlength=64)
    pairs = torch.outer(LAW, LAW)[:-1, :-1].flatten().double()
    seen = after.view(8, 8)[:-1, :-1].flatten().numpy()
    assert stats.chisquare(seen, (pairs / pairs.sum() * seen.sum()).numpy()).pvalue > LEAST


def test_gumbel_rows_are_independent_of_one_another_and_of_all_uniforms() -> None:
    g = {slot: flat(NOISE.gumbel(EVERY, 8, slot)) for slot in (TARGET_SLOT, ACCEPT_SLOT, OWN_SLOT)}
    rows = g[TARGET_SLOT]
    found = [independence(rows[..., i], rows[..., j]) for i in range(8) for j in range(i)]
    found += [independence(rows, g[ACCEPT_SLOT]), independence(rows, g[OWN_SLOT])]
    found += [independence(rows[:, 1:], rows[:, :-1])]
    found += [independence(rows, flat(NOISE.gumbel(EVERY, 8, round=1)))]
    found += [
        independence(rows[..., code], column(slot, turn))
        for code in range(8)
        for slot in (*range(8), *PURPOSES.values())
        for turn in (0, 1)
    ]
    assert min(found) > LEAST / len(found)
