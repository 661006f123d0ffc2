"""Acceptance rules and the neighbour table against their definitions (METHODS 3 and 4), by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.small import random_model
from decoders.verify.children import test_children as judge
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
@pytest.mark.parametrize("name", ["lantern", "lantern_pp"])
def test_the_paper_rule_is_its_definition(seed: int, drawn: bool, name: str) -> None:
    p, q = pair(seed)
    rule = Lantern(MODEL, k=5, delta=0.15) if name == "lantern" else LanternPP(MODEL, k=5, lam=3.0)
    for x in range(V):
        bound = 0.15 if name == "lantern" else 2.0 * float(p[x])
        admitted, moved = by_hand(p, x, rule.table, 5, bound)
        found = rule.test(p, q if drawn else None, torch.tensor(x))
        point = torch.nn.functional.one_hot(torch.tensor(x), V).float()
        against = q if drawn else point
        accept = min(1.0, float(moved[x] / against[x]))
        left = (moved - against).clamp_min(0)
        assert float(found.accept) == pytest.approx(accept, abs=1e-6)
        assert float(found.moved) == pytest.approx(float(p[admitted].sum()), abs=1e-6)
        assert float(found.moved) <= bound + 1e-6
        assert float(0.5 * (p - moved).abs().sum()) == pytest.approx(float(found.moved), abs=1e-6)
        if float(left.sum()) > 1e-6:
            torch.testing.assert_close(found.residual, left / left.sum(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_a_rule_that_moves_nothing_is_exact(seed: int) -> None:
    p, q = pair(seed)
    x = torch.arange(V)
    ps, qs = p.expand(V, -1), q.expand(V, -1)
    exact = Exact().test(ps, qs, x)
    for rule in (Lantern(MODEL, k=5, delta=0.0), LanternPP(MODEL, k=5, lam=1.0)):
        same = rule.test(ps, qs, x)
        torch.testing.assert_close(same.accept, exact.accept)
        torch.testing.assert_close(same.residual, exact.residual)


def test_siblings_drawn_without_replacement_give_the_target_exactly() -> None:
    p, q = pair(2)
    law = torch.zeros(V, dtype=torch.float64)
    for a in range(V):
        for b in range(V):
            if a == b:
                continue
            chance = float(q[a]) * float(q[b]) / (1 - float(q[a]))
            codes = torch.tensor([[[a, b]]])
            found = judge(Exact(), p[None, None], q[None, None], codes, codes >= 0)
            first, second = found.accept[0, 0].double()
            law[a] += chance * first
            law[b] += chance * (1 - first) * second
            law += chance * (1 - first) * (1 - second) * found.residual[0, 0].double()
    torch.testing.assert_close(law, p.double(), atol=1e-5, rtol=0)


def test_an_invalid_child_changes_nothing() -> None:
    p, q = pair(3)
    codes = torch.tensor([[[1, 2]]])
    one = judge(Exact(), p[None, None], q[None, None], codes[..., :1], codes[..., :1] >= 0)
    two = judge(Exact(), p[None, None], q[None, None], codes, torch.tensor([[[True, False]]]))
    assert float(two.accept[0, 0, 1]) == 0
    torch.testing.assert_close(one.residual, two.residual)


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
            assert x not in table[x].tolist()


@pytest.mark.parametrize(("build", "says"), [
    (lambda: Lantern(MODEL, k=V), r"k must be in 1..11 .*found 12"),
    (lambda: Lantern(MODEL, k=0), "found 0"),
    (lambda: Lantern(MODEL, delta=1.2, k=3), "use acceptance=lantern_pp"),
    (lambda: Lantern(MODEL, delta=-0.1, k=3), r"\[0, 1\], found -0.1"),
    (lambda: Lantern(MODEL, delta=float("nan"), k=3), "found nan"),
    (lambda: LanternPP(MODEL, lam=0.5, k=3), "must be >= 1, found 0.5"),
    (lambda: Lantern(MODEL, k=3, residual="papr"), "residual is one of"),
    (lambda: Lantern(MODEL, k=3, metric="l3"), "metric is"),
    (lambda: Lantern(MODEL, k=3, metric="raw"), "no raw codebook"),
])  # fmt: skip
def test_bad_settings_are_refused(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DecoderError, match=says):
        build()
