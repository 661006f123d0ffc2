"""Acceptance rules on their own against their definitions (METHODS 3 and 4): neighbours, p_A,
residuals, greedy tests and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.compose import PartSpec, build_part
from decoders.models.random_weights import random_model
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP, neighbour_table

V = 12
MODEL = random_model(vocab=V, grid=2, seed=4)


def pair(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(2, V, generator=generator) * 1.5).softmax(-1)
    return p, q


def by_hand(p: Tensor, x: int, table: Tensor, k: int, bound: float) -> tuple[list[int], Tensor]:
    """A(x) and p_A written as the definition reads."""
    admitted: list[int] = []
    mass = 0.0
    for y in table[x, :k].tolist():
        if mass + float(p[y]) > bound:
            break
        mass += float(p[y])
        admitted.append(y)
    moved = p.clone()
    moved[admitted] = 0
    moved[x] = p[x] + mass
    return admitted, moved


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("name", ["lantern", "lantern_pp", "exact"])
def test_the_paper_rule_is_its_definition(seed: int, drawn: bool, name: str) -> None:
    p, q = pair(seed)
    rule = (
        LanternPP(MODEL, k=5, lam=3.0) if name == "lantern_pp" else Lantern(MODEL, k=5, delta=0.15)
    )
    for x in range(V):
        bound = {"lantern": 0.15, "lantern_pp": 2.0 * float(p[x]), "exact": -1.0}[name]
        admitted, moved = by_hand(p, x, rule.table, 5, bound)
        judge: Any = Exact() if name == "exact" else rule
        test = judge.test(p, q if drawn else None, torch.tensor(x))
        point = torch.nn.functional.one_hot(torch.tensor(x), V).float()
        against = q if drawn else point
        left = (moved - against).clamp_min(0)
        assert float(test.accept) == pytest.approx(float(min(1.0, moved[x] / against[x])), abs=1e-6)
        assert float(test.strict) == pytest.approx(float(min(1.0, p[x] / against[x])), abs=1e-6)
        assert float(test.tv_shift) == pytest.approx(float(p[admitted].sum()), abs=1e-6)
        assert float(test.tv_shift) <= max(bound, 0) + 1e-6
        assert float(0.5 * (p - moved).abs().sum()) == pytest.approx(float(test.tv_shift), abs=1e-6)
        if float(left.sum()) > 1e-6:
            torch.testing.assert_close(test.residual, left / left.sum(), atol=1e-5, rtol=1e-4)


def test_the_neighbour_table_against_brute_force() -> None:
    book = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    for k in (3, 59):
        table = neighbour_table(book, k)
        assert table.shape == (60, min(k + 1, 59)) and table.dtype == torch.int32
        for x in (0, 17, 59):
            distance = (book - book[x]).norm(dim=-1)
            distance[x] = float("inf")
            expected = distance.argsort(stable=True)[: table.shape[1]]
            torch.testing.assert_close(table[x].long(), expected)
    twins = neighbour_table(torch.zeros(5, 3), 2)  # still not their own neighbours
    assert all(x not in row for x, row in enumerate(twins.tolist()))


# ---- on a line: codes at 0, 1, 3, 6, 10, 15, whose neighbours can be read off --------------------

BOOK = torch.arange(6).cumsum(0).float()[:, None].repeat(1, 3)
LINE = random_model(vocab=6, grid=2)
LINE = replace(LINE, tokenizer=type(LINE.tokenizer)(BOOK))
P = torch.tensor([0.10, 0.20, 0.05, 0.30, 0.15, 0.20])
Q = torch.tensor([0.25, 0.05, 0.30, 0.10, 0.20, 0.10])


def left_of(rule: Any, q: Tensor | None = None, p: Tensor = P) -> Tensor:
    """What is gone on with where code 2 was rejected."""
    return rule.test(p, q, torch.tensor(2)).residual


def test_the_released_corrections() -> None:
    """Dynamic: p loses x and all k + 1 neighbours; static: q loses them instead, p keeps them; of
    Lumina p loses them in both."""
    rule = Lantern(LINE, k=2, delta=0.25, residual="released")  # row 1, 0, 3: neighbour 1 fits
    left = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.15, 0.20])
    torch.testing.assert_close(left_of(rule), left / left.sum())
    left = (P - Q * torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])).clamp_min(0)
    torch.testing.assert_close(left_of(rule, Q), left / left.sum())
    lumina = Lantern(LINE, k=2, delta=0.25, residual="released_lumina")
    torch.testing.assert_close(left_of(lumina), left_of(rule))
    left = (P * torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]) - Q).clamp_min(0)
    torch.testing.assert_close(left_of(lumina, Q), left / left.sum())
    none = Lantern(LINE, k=2, delta=0.05, residual="released")  # nothing admitted: the exact one
    torch.testing.assert_close(left_of(none), left_of(Exact()))
    every = Lantern(LINE, k=4, delta=1.0, residual="released")  # nothing left: uniform
    p = torch.tensor([0.5, 0.2, 0.1, 0.2, 0.0, 0.0])
    torch.testing.assert_close(left_of(every, p=p), torch.full((6,), 1 / 6))


def test_greedy_accepts_where_p_a_peaks() -> None:
    """k = 2, delta = 0.26: code 4 admits nothing, as its nearest, 3, has 0.30; the peak is 0.30."""
    rule, every = Lantern(LINE, k=2, delta=0.26), torch.arange(6)
    test = rule.greedy(P.expand(6, -1), every)
    raised = (P + test.tv_shift).tolist()
    assert raised == pytest.approx([0.35, 0.35, 0.25, 0.50, 0.15, 0.35])
    assert test.accept.tolist() == [float(r >= 0.3) for r in raised]
    assert (test.tv_shift <= test.bound).all()
    assert Exact().greedy(P.expand(6, -1), every).accept.tolist() == [0, 0, 0, 1, 0, 0]
    tied = torch.tensor([0.4, 0.4, 0.2]).expand(3, -1)  # the lowest index
    assert Exact().greedy(tied, torch.arange(3)).accept.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("rule", "options", "says"), [
    ("lantern.Lantern", {"k": V}, r"k must be in 1..11 .*found 12"),
    ("lantern.Lantern", {"k": 0}, "found 0"),
    ("lantern.Lantern", {"delta": 1.2}, "use acceptance=lantern_pp"),
    ("lantern.Lantern", {"delta": -0.1}, r"\[0, 1\], found -0.1"),
    ("lantern.Lantern", {"delta": float("nan")}, "found nan"),
    ("lantern.Lantern", {"residual": "papr"}, "found 'papr'.*did you mean 'paper'"),
    ("lantern.Lantern", {"metric": "l3"}, "metric: .*'l2', 'cosine'"),
    ("lantern.Lantern", {"metric": "raw"}, "no raw codebook"),
])  # fmt: skip
def test_bad_settings_are_refused(rule: str, options: dict[str, Any], says: str) -> None:
    usual = {"k": 3} if rule.startswith("lantern") else {}
    with pytest.raises(DecoderError, match=says):
        build_part(PartSpec(f"decoders.verify.{rule}", usual | options), MODEL)
