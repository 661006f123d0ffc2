"""Noise by the formula of its generator, and sampling."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from decoders.api import DecoderError
from decoders.noise import (
    ACCEPT_SLOT,
    BELOW_ONE,
    COUPLE_SLOT,
    DRAFT_SLOT,
    PLUGIN_SLOT,
    SLOTS,
    TARGET_SLOT,
    Noise,
    first_above,
    logarithm,
    philox,
    sample,
    sums_of_blocks,
)

LENGTH = 12
KNOWN = (  # Random123's known answers for philox4x32-10: counter, key, output
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def whole(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in whole numbers of any size, from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def plain_word(seed: int, prompt: str, position: int, turn: int, domain: int, index: int) -> int:
    digest = hashlib.sha256(f"{seed}\n{prompt}".encode()).hexdigest()
    key = [int(digest[:8], 16), int(digest[8:16], 16)]
    return plain_philox([index // 4, position, domain, turn], key)[index % 4]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_generator_gives_its_known_answers(counter: str, key: str, answer: str) -> None:
    assert plain_philox(whole(counter), whole(key)) == whole(answer)
    for kind in (torch.tensor, np.array):
        (a, b, c, d), (k, m) = (kind([[w] for w in whole(text)]) for text in (counter, key))
        assert [int(word[0]) for word in philox((a, b, c, d), (k, m))] == whole(answer)


def test_a_uniform_is_what_whole_numbers_give() -> None:
    noise = Noise.for_prompts(7, ["x", "y z"], LENGTH)
    position, each = (
        torch.tensor([[0, 3, 75], [11, 11, 4000]]),
        torch.tensor([[0, 1, 2], [3, 4, 5]]),
    )
    for slot, turn in (
        (TARGET_SLOT, 1),
        (ACCEPT_SLOT + 2, 5),
        (COUPLE_SLOT, 0),
        (PLUGIN_SLOT, each),
    ):
        numbers = noise.at(position, slot, 3, turn)
        turns = torch.as_tensor(turn).expand(2, 3).tolist()
        expected = [
            [[(plain_word(7, text, i, t, 0, slot + j) >> 8) / 2**24 for j in range(3)]
             for i, t in zip(row, rounds, strict=True)]
            for text, row, rounds in zip(("x", "y z"), position.tolist(), turns, strict=True)
        ]  # fmt: skip
        assert numbers.dtype == torch.float32 and numbers.tolist() == expected
    assert noise.uniform[1, 5, 20].item() == (plain_word(7, "y z", 5, 0, 0, 20) >> 8) / 2**24


def test_a_gumbel_number_is_what_whole_numbers_give() -> None:
    noise = Noise.for_prompts(7, ["x", "y z"], LENGTH)
    numbers = noise.gumbel(torch.tensor([[4], [9]]), 30, DRAFT_SLOT, torch.tensor([[3], [8]]))
    assert numbers.dtype == torch.float32 and numbers.shape == (2, 1, 30)
    for text, position, turn, row in (("x", 4, 3, numbers[0, 0]), ("y z", 9, 8, numbers[1, 0])):
        for code, g in enumerate(row.tolist()):
            u = (plain_word(7, text, position, turn, 1 + DRAFT_SLOT, code) + 0.5) / 2**32
            assert g == pytest.approx(-math.log(-math.log(u)), rel=1e-6)


def test_the_logarithm_is_right_everywhere() -> None:
    ends = torch.tensor([2.0**-33, 1 - 2.0**-33, 23.0, 0.5**0.5, 1 - 2.0**-53, 1.0])
    x = torch.cat([torch.logspace(-10.5, 1.5, 20001, dtype=torch.float64), ends.double()])
    torch.testing.assert_close(logarithm(x), x.log(), rtol=1e-11, atol=0)


def cells(u: torch.Tensor, v: torch.Tensor) -> float:
    """The p-value of two uniforms being uniform and independent, on 16 x 16 cells."""
    index = (u.flatten() * 16).long() * 16 + (v.flatten() * 16).long()
    return float(stats.chisquare(torch.bincount(index, minlength=256).numpy()).pvalue)


def test_numbers_of_other_purposes_rounds_places_and_images_are_independent() -> None:
    noise = Noise.for_prompts(0, [f"prompt {i}" for i in range(24)], 961)
    slots = TARGET_SLOT, ACCEPT_SLOT, DRAFT_SLOT, COUPLE_SLOT, PLUGIN_SLOT
    position = torch.arange(1000).expand(24, -1)
    drawn = {(s, t): noise.at(position, s, 1, t)[..., 0] for s in slots for t in (0, 1)}
    gumbel = (-(-noise.gumbel(position, 2).double()).exp()).exp().clamp_max(1 - 2.0**-24)
    values = [cells(u, v) for u, v in itertools.combinations(drawn.values(), 2)]
    values += [cells(u, gumbel[..., 0].float()) for u in drawn.values()]
    values += [cells(gumbel[..., 0], gumbel[..., 1])]
    for u in drawn.values():
        values += [cells(u[1:], u[:-1]), cells(u[:, 1:], u[:, :-1])]
    assert min(values) > 1e-4 / len(values)
    assert cells(drawn[0, 0], drawn[0, 0]) < 1e-9  # the test would see it


def test_a_table_given_by_hand_has_round_0_only() -> None:
    noise, position = Noise(torch.rand(1, 8, SLOTS)), torch.zeros(1, 2, dtype=torch.long)
    assert torch.equal(noise.at(position, ACCEPT_SLOT, 2)[0, 0], noise.uniform[0, 0, 1:3])
    for draw in (
        lambda: noise.at(position, ACCEPT_SLOT, 1, 1), lambda: noise.at(position, COUPLE_SLOT),
        lambda: noise.at(position, ACCEPT_SLOT, 1, torch.tensor(0)),
        lambda: noise.gumbel(position, 9),
    ):  # fmt: skip
        with pytest.raises(DecoderError, match=r"a table given by hand.*Noise\.for_prompts"):
            draw()


def drawn(uniform: torch.Tensor, key: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, ...]:
    noise, position = Noise(uniform, key), torch.arange(20, device=key.device).expand(len(key), -1)
    return (
        noise.at(position, 1, 3, turn),
        noise.at(position, 1, 3, 4),
        noise.gumbel(position, 50, 0, turn),
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("how", ["graph", "compile"])
def test_a_gpu_makes_the_same_bits(how: str) -> None:
    noise, turn = Noise.for_prompts(0, ["x", "y"], LENGTH), torch.tensor([[1], [3]])
    there, now = noise.to(torch.device("cuda")), turn.cuda()
    assert there.key is not None
    assert torch.equal(Noise.of_keys(there.key, LENGTH).uniform.cpu(), noise.uniform)
    given = there.uniform, there.key, now
    if how == "compile":
        numbers = torch.compile(drawn, fullgraph=True, dynamic=False)(*given)
    else:
        drawn(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # refuses whatever waits for the GPU
            numbers = drawn(*given)
        now.add_(1)  # the next step's round
        graph.replay()
        turn = turn + 1
    for mine, other in zip(drawn(noise.uniform, noise.key, turn), numbers, strict=True):
        assert torch.equal(mine, other.cpu())


def test_sampling_inverts_the_cdf() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1.0 - 2**-24])
    assert sample(p.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]
    assert sample(3 * p.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]  # unnormalised


def test_sums_made_in_parallel_draw_no_code_of_probability_zero() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.linspace(0, BELOW_ONE, 401)
    cdf = p.cumsum(-1)
    threshold = u[:, None] * cdf[-1]
    assert torch.equal(first_above(p, cdf, threshold), sample(p.expand(401, -1), u))
    rough = cdf + torch.tensor([1e-3, 0, 1e-3, -1e-3, 1e-3, 2e-3])  # roundings, exaggerated
    drawn = first_above(p, rough, u[:, None] * rough[-1])
    assert set(drawn.tolist()) == {1, 3, 4}
    assert first_above(torch.zeros(6), torch.zeros(6), torch.zeros(1)).tolist() == 5


def test_sums_of_blocks_are_the_sums() -> None:
    for size in (1, 127, 128, 129, 1000):
        p = torch.rand(3, 2, size, dtype=torch.float64)
        torch.testing.assert_close(sums_of_blocks(p), p.cumsum(-1))
