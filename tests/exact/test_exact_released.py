"""Variants as released or as printed do what their authors say: their laws against enumerations
written from the formulas alone (decoders.md (a) to (d), (f), (g), (y), (z)), image by image.

A table target of three codes and three places gives p. Everything else here is plain Python.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.judge.gate.whole_law import table_model, whole_law
from decoders.api import Draft, Law, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.noise import Noise
from decoders.verify.gsd import Gsd
from decoders.verify.released import BatchLeast, Filled, Medusa
from metrics.node_law import node_law
from tests.exact.specs import EXACT, SPECULATIVE

V, PLACES = 3, 3
MODEL = table_model(V, PLACES, 7)
Probs = tuple[float, ...]
Drafted = tuple[int, Probs]  # a code, and the law that is declared for it
FLAT: Probs = (1 / V,) * V


@cache
def p_after(prefix: tuple[int, ...]) -> Probs:
    codes = torch.tensor([prefix], dtype=torch.long).view(1, -1)
    target: Any = MODEL.target
    return tuple(target.net(target.context(codes))[0, -1].softmax(-1).tolist())


def norm(mass: Any) -> Probs:
    total = sum(mass)
    return tuple(m / total for m in mass) if total else tuple(mass)


def over(p: Probs, q: Probs) -> Probs:
    """(p - q)+, not normalised."""
    return tuple(max(a - b, 0.0) for a, b in zip(p, q, strict=True))


def without(q: Probs, x: int) -> Probs:
    return norm([0.0 if y == x else m for y, m in enumerate(q)])


def kept(p: Probs, q: Probs, x: int) -> float:
    return min(1.0, p[x] / q[x]) if q[x] > 0 else 0.0


def draws(law: Probs) -> list[tuple[int, float]]:
    return [(x, m) for x, m in enumerate(law) if m > 0]


WIDTH = 2  # drafts of a window


def merged(into: Counter, weight: float, images: Counter) -> None:
    for image, chance in images.items():
        into[image] += weight * chance


# ---- a chain of drafts: SJD, SCD, SJD++, SJD-SV -------------------------------------------------

# (code, its law, p there, whether it was accepted, whether it is the first rejected one) -> ways
Redraw = Callable[[int, Probs, Probs, bool, bool], list[tuple[float, Drafted]]]


def chains(old: list[Drafted]) -> Iterator[tuple[float, list[Drafted]]]:
    """Windows of WIDTH drafts: the old ones, and fresh ones behind them."""
    fresh = WIDTH - len(old)
    for codes in product(range(V), repeat=fresh):
        yield V**-fresh, old + [(x, FLAT) for x in codes]


# the window, p at its places -> (drafts accepted, with which probability)
Judge = Callable[[list[Drafted], list[Probs]], list[tuple[int, float]]]


def one_by_one(window: list[Drafted], laws: list[Probs]) -> list[tuple[int, float]]:
    ways, chance = [], 1.0
    for taken, (x, q) in enumerate(window):
        keep = kept(laws[taken], q, x)
        ways.append((taken, chance * (1 - keep)))
        chance *= keep
    return [*ways, (len(window), chance)]


def joint(fresh: bool, alpha: float = 0.8) -> Judge:
    """SJD-SV: runs of drafts of non-decreasing p; one number for a run's fallbacks, or new ones."""

    def judge(window: list[Drafted], laws: list[Probs]) -> list[tuple[int, float]]:
        mine = [p[x] for (x, _), p in zip(window, laws, strict=False)]
        ways: Counter = Counter()
        chance, b = 1.0, 0
        while b < len(window):
            e = b
            while e + 1 < len(window) and mine[e + 1] >= mine[e]:
                e += 1
            whole = sum(mine[b : e + 1])
            g = max(i for i in range(b, e + 1) if sum(mine[i : e + 1]) >= alpha * whole - 1e-12)
            ratios = [
                math.prod(mine[i] / window[i][1][window[i][0]] for i in range(g, end + 1))
                for end in range(e, g - 1, -1)
            ]
            past = [min(1.0, r) for r in ratios]  # of e, e - 1, .., g
            failed = 1.0
            for i, passes in enumerate(past):
                if fresh:
                    here, failed = failed * passes, failed * (1 - passes)
                else:  # the number is above all longer ones' ratios
                    here = max(0.0, passes - max([0.0, *past[:i]]))
                    failed = 1 - max(past[: i + 1])
                if i > 0:
                    ways[e - i + 1] += chance * here
                else:
                    on = here
            ways[g] += chance * failed
            chance, b = chance * on, e + 1
        ways[len(window)] += chance
        return list(ways.items())

    return judge


def chain_law(
    prefix: tuple[int, ...], old: list[Drafted], slow: bool, redraw: Redraw, judge: Judge
) -> Counter:
    """slow: another row of the batch rejects at once, so a step commits one code."""
    if len(prefix) >= PLACES:
        return Counter({prefix[:PLACES]: 1.0})
    found: Counter = Counter()
    for chance, window in chains(old):
        codes = tuple(x for x, _ in window)
        laws = [p_after(prefix + codes[:k]) for k in range(WIDTH + 1)]
        for taken, share in judge(window, laws):
            count, here = 0 if slow else taken, chance * share
            if here == 0:
                continue
            if count < taken:
                lasts = [(codes[count], 1.0)]
            elif count < WIDTH:
                left = over(laws[count], window[count][1])  # nothing: SJD-SV refuses where p = q
                lasts = draws(norm(left) if sum(left) > 1e-9 else laws[count])
            else:
                lasts = draws(laws[WIDTH])
            ways: list[tuple[float, list[Drafted]]] = [(here, [])]
            for k in range(count + 1, WIDTH):
                some = redraw(*window[k], laws[k], k < taken, k == taken)
                ways = [(w * c, [*d, draft]) for w, d in ways for c, draft in some if c > 0]
            if count < WIDTH:
                last = laws[WIDTH]  # where no draft was yet
                ways = [(w * m, [*d, (y, last)]) for w, d in ways for y, m in draws(last)]
            for (y, own), (weight, drafts) in product(lasts, ways):
                done = (*prefix, *codes[:count], y)
                merged(found, own * weight, chain_law(done, drafts, slow, redraw, judge))
    return found


def sjd(x: int, q: Probs, p: Probs, accepted: bool, missed: bool) -> list[tuple[float, Drafted]]:
    if accepted:
        return [(1.0, (x, q))]
    return [(m, (y, p)) for y, m in draws(norm(over(p, q)) if missed else p)]


def scd(x: int, q: Probs, p: Probs, accepted: bool, missed: bool) -> list[tuple[float, Drafted]]:
    keep = kept(p, q, x)
    rest = [(m * (1 - keep), (y, p)) for y, m in draws(norm(over(p, q)))] if keep < 1 else []
    return [(keep, (x, q)), *rest]


def fresh(x: int, q: Probs, p: Probs, accepted: bool, missed: bool) -> list[tuple[float, Drafted]]:
    return [(m, (y, p)) for y, m in draws(p)]


def plus(published: bool) -> Redraw:
    """SJD++ with tau 0.5: p is declared, or what the draft's law has become."""

    def redraw(
        x: int, q: Probs, p: Probs, accepted: bool, missed: bool
    ) -> list[tuple[float, Drafted]]:
        stay = [m if p[y] > 0.5 * m else 0.0 for y, m in enumerate(q)]
        law = tuple(s + (1 - sum(stay)) * m for s, m in zip(stay, p, strict=True))
        law = p if published else law
        return [(1.0, (x, law))] if stay[x] else [(m, (y, law)) for y, m in draws(p)]

    return redraw


def rising(released: bool) -> Redraw:
    """SJD-VP with N = 0: before its first law a place has 1 / V; of three none has a second."""

    def redraw(
        x: int, q: Probs, p: Probs, accepted: bool, missed: bool
    ) -> list[tuple[float, Drafted]]:
        weights = [0.8**k for k in range(4)]
        mean = [(m + sum(weights[1:]) / V) / sum(weights) for m in p]
        r = norm([m * m / a if m > 1 / V else m for m, a in zip(p, mean, strict=True)])
        return [(m, (y, p if released else r)) for y, m in draws(r)]

    return redraw


# ---- two candidates on two levels: SJD-PAC -----------------------------------------------------


def pairs_of(first: list[tuple[int, float]], law: Probs) -> list[tuple[float, list[int]]]:
    """A first code, and a second one from what `law` leaves without it."""
    return [(a * b, [x, y]) for x, a in first for y, b in draws(without(law, x))]


def judged(p: Probs, q: Probs, pair: list[int]) -> tuple[list[float], Probs]:
    """How likely each sibling is accepted, and the law behind both."""
    chances = []
    for j, x in enumerate(pair):
        twin = x in pair[:j]
        chances.append(0.0 if twin else kept(p, q, x))
        if not twin:
            p, q = norm(over(p, q)), without(q, x)
    return chances, p


def pac_step(prefix: tuple[int, ...], levels: list[tuple[list[int], Probs]]) -> Counter:
    """Of all accepted paths the longest, the first of equally long ones."""
    found: Counter = Counter()
    (tops, q), (lower, q_lower) = levels
    chances, rest = judged(p_after(prefix), q, tops)
    under = [judged(p_after((*prefix, x)), q_lower, lower) for x in tops]
    for hits in product((True, False), repeat=2):
        open_ = math.prod(c if h else 1 - c for c, h in zip(chances, hits, strict=True))
        if open_ == 0:
            continue
        if not any(hits):
            for y, m in draws(rest):
                merged(found, open_ * m, pac_next((*prefix, y), prefix, tops, lower, q_lower))
            continue
        for x, hit, ((first, second), _) in zip(tops, hits, under, strict=True):
            if hit:  # neither its children nor an earlier top's were accepted before
                for w, chance in zip(lower, (first, (1 - first) * second), strict=True):
                    found[(*prefix, x, w)[:PLACES]] += open_ * chance
                open_ *= (1 - first) * (1 - second)
        top = hits.index(True)
        for y, m in draws(under[top][1]):
            found[(*prefix, tops[top], y)[:PLACES]] += open_ * m
    return found


def pac_next(
    done: tuple[int, ...], prefix: tuple[int, ...], tops: list[int], lower: list[int], q: Probs
) -> Counter:
    """After a step that accepted nothing. Behind what was drafted, p is known for one place."""
    found: Counter = Counter()
    if len(done) == PLACES:
        return Counter({done: 1.0})
    beyond = p_after((*prefix, tops[0], lower[0]))
    for chance, level in relieved(p_after((*prefix, tops[0])), lower, q):
        for m, pair in pairs_of(draws(beyond), beyond):
            merged(found, chance * m, pac_step(done, [level, (pair, beyond)]))
    return found


def relieved(p: Probs, old: list[int], q: Probs) -> list[tuple[float, tuple[list[int], Probs]]]:
    """New candidates where old ones were: from the residual, in which a code that was kept stays; p
    is declared for both."""
    left = list(over(p, q))
    left[0] += 1e-20
    law, keep = norm(left), kept(p, q, old[0])
    ways = [(keep * m, [old[0], y]) for y, m in draws(law)]
    for x, a in draws(law):
        rest = without(law, x)
        ways += [((1 - keep) * a * b, [x, y]) for y, b in (draws(rest) or [(V - 1, 1.0)])]
    return [(chance, (pair, p)) for chance, pair in ways if chance > 0]


def pac() -> Counter:
    found: Counter = Counter()
    fresh = pairs_of(draws(FLAT), FLAT)
    for first, m in draws(p_after(())):
        for (a, tops), (b, lower) in product(fresh, fresh):
            merged(found, m * a * b, pac_step((first,), [(tops, FLAT), (lower, FLAT)]))
    return found


def chain(slow: bool, redraw: Redraw, judge: Judge = one_by_one) -> Counter:
    found: Counter = Counter()
    for first, m in draws(p_after(())):
        merged(found, m, chain_law((first,), [], slow, redraw, judge))
    return found


def tensor_of(images: Counter) -> Tensor:
    every = product(range(V), repeat=PLACES)
    return torch.tensor([images[image] for image in every], dtype=torch.float64)


def tv_of(images: Counter) -> float:
    target = Counter({
        (a, b, c): p_after(())[a] * p_after((a,))[b] * p_after((a, b))[c]
        for a, b, c in product(range(V), repeat=PLACES)
    })  # fmt: skip
    return 0.5 * float((tensor_of(images) - tensor_of(target)).abs().sum())


class Slowest(BatchLeast):
    """A batch in which some row rejects at once."""

    def least(self, count: Tensor) -> Tensor:
        return torch.zeros_like(count)


def part(name: str, **options: Any) -> PartSpec:
    return PartSpec(f"decoders.propose.{name}", options)


SLOW = PartSpec("tests.exact.test_exact_released.Slowest")
LONGEST = PartSpec("decoders.verify.released.LongestPath")
BLOCK = PartSpec("decoders.verify.block.Block")
VP = {"window": 3, "rises": 0, "share": 1.0}
JACOBI = part("jacobi.Jacobi", window=3)


def subsequences(**options: Any) -> PartSpec:
    return PartSpec("decoders.verify.block.Subsequences", options)


RELEASED: dict[str, Any] = {  # proposer, verifier, the enumeration, its TV
    "sjd": (part("jacobi.Jacobi", window=3, released=True), SLOW, (True, sjd), 0.06135),
    "scd": (part("maximal.Maximal", window=3, released=True), EXACT, (False, scd), 0.05229),
    "sjd++": (part("plus.Plus", window=3), EXACT, (False, plus(False)), 0.0),
    "sjd++, p declared": (
        part("plus.Plus", window=3, published=True),
        EXACT,
        (False, plus(True)),
        0.04264,
    ),
    "sjd-vp": (part("rising.Rising", **VP), EXACT, (False, rising(False)), 0.0),
    "sjd-vp, p declared": (
        part("rising.Rising", **VP, released=True),
        EXACT,
        (False, rising(True)),
        0.02047,
    ),
    "sjd-sv": (JACOBI, subsequences(fresh=False), (False, fresh, joint(False)), 0.13494),
    "sjd-sv, fresh": (JACOBI, subsequences(fresh=True), (False, fresh, joint(True)), 0.16569),
    "sjd-sv's twin": (JACOBI, BLOCK, (False, fresh), 0.0),
    "pac": (part("pac.Pac", window=7, candidates=2, released=True), LONGEST, None, 0.02152),
}


@pytest.mark.parametrize("name", RELEASED)
def test_images_have_the_enumerated_law(name):
    proposer, verifier, how, tv = RELEASED[name]
    wanted = pac() if how is None else chain(*how)
    assert sum(wanted.values()) == pytest.approx(1.0, abs=1e-12)
    assert tv_of(wanted) == pytest.approx(tv, abs=1e-4)
    spec = DecoderSpec(name, SPECULATIVE, acceptance=verifier, proposer=proposer)
    found = whole_law(build_decoder(MODEL, spec, Sampling()), MODEL, Sampling(), most=60_000)
    assert found.rest < 1e-6
    assert float((found.law - tensor_of(wanted)).abs().sum()) < 1e-4


# ---- SCD-GS: codes that share a row of Gumbel numbers -------------------------------------------


def shared_row(p: Probs, after: Callable[[int], Probs]) -> Counter:
    """The law of two codes argmax(log p + g), argmax(log p' + g) of one g, p' = after(first code).

    exp(-g) are independent exponential numbers E, and x = argmin E / p. For codes a, b and
    u = E_b / E_a every other E_j is at least m_j E_a, m_j = max(p_j / p_a, u p'_j / p'_b). So the
    density over u is (1 + u + sum m)^-2.
    """
    found: Counter = Counter()
    for a in range(V):
        own = after(a)
        found[a, a] = 1 / sum(max(p[j] / p[a], own[j] / own[a]) for j in range(V))
        for b in set(range(V)) - {a}:
            low, high = p[b] / p[a], own[b] / own[a]
            (j,) = set(range(V)) - {a, b}
            steps = 20_000
            for i in range(steps if high > low else 0):
                u = low + (i + 0.5) / steps * (high - low)
                rest = max(p[j] / p[a], u * own[j] / own[b])
                found[a, b] += (high - low) / steps / (1 + u + rest) ** 2
    return found


def test_the_first_codes_of_scd_gs_share_a_row():
    wanted: Counter = Counter()
    for first, m in draws(p_after(())):
        two = shared_row(p_after((first,)), lambda x, f=first: p_after((f, x)))  # type: ignore[misc]
        assert sum(two.values()) == pytest.approx(1.0, abs=1e-6)
        for (a, b), chance in two.items():
            wanted[first, a, b] = m * chance
    assert tv_of(wanted) == pytest.approx(0.29003, abs=1e-4)
    row = PartSpec("decoders.verify.released.ReusedRow", {"first": 3, "last": 10})
    spec = DecoderSpec("gs", SPECULATIVE, acceptance=row, proposer=part("gumbel.Gumbel", window=3))
    names = [f"p{i}" for i in range(8192)]
    noise = Noise.for_prompts(0, names, PLACES)
    made = build_decoder(MODEL, spec, Sampling()).generate(MODEL.text.encode(names), noise)
    image = (made.codes * torch.tensor([V * V, V, 1])).sum(-1)
    seen = torch.bincount(image, minlength=V**3).double()
    due = len(names) * tensor_of(wanted)
    rare = due < 5  # put together
    due, seen = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (due, seen))
    assert float(((seen - due) ** 2 / due).sum()) < 55  # chi-square of 26 at most: 1e-3
    law = torch.tensor([p_after(())[a] * p_after((a,))[b] * p_after((a, b))[c]
                        for a, b, c in product(range(V), repeat=3)])  # fmt: skip
    due = len(names) * torch.cat([law[~rare], law[rare].sum()[None]])
    assert float(((seen - due) ** 2 / due).sum()) > 200  # AR's would be seen


# ---- tests of one code --------------------------------------------------------------------------


def gsd_by_hand(p: Probs, q: Probs, ids: list[int], latents: Tensor) -> list[float]:
    """q a of every code: the ranks r - 7 to r + 6 of the ascending order, cut at its end; for r < 7
    the exact test; distances only where no id of the window is above 10,000."""
    order = sorted(range(len(p)), key=lambda y: (p[y], y))
    mass = [0.0] * len(p)
    for r, x in enumerate(order):
        group = [x]
        if r >= 7:
            window = order[r - 7 : r + 7]
            near = all(ids[y] <= 10_000 for y in window)
            group = [
                y for y in window
                if abs(p[y] - p[x]) < 0.15
                and (not near or float((latents[ids[y]] - latents[ids[x]]).square().sum()) < 0.5)
            ]  # fmt: skip
        share = sum(p[y] for y in group) / sum(q[y] for y in group)
        mass[x] = q[x] * min(1.0, share)
    return mass


@pytest.mark.parametrize(
    ("first_id", "accepts", "tv"),
    [(0, 0.57559, 0.10260), (9_884, 0.58707, 0.11621), (20_000, 0.60225, 0.14603)],
)
def test_gsd_s_windows_are_cut_at_the_likely_end_alone(first_id, accepts, tv):
    size, random = 120, torch.Generator().manual_seed(2)
    p, q = (torch.randn(2, size, generator=random)).softmax(-1)
    table = torch.nn.Embedding(first_id + size, 2)
    table.weight.data.copy_(0.6 * torch.randn(first_id + size, 2, generator=random))
    target = SimpleNamespace(
        tok_embeddings=table, vocab_size=size, token_ids=lambda codes: codes + first_id
    )
    rule = Gsd(SimpleNamespace(target=target), released=True)
    ids = [x + first_id for x in range(size)]
    law_p, law_q = tuple(p.tolist()), tuple(q.tolist())
    mass = gsd_by_hand(law_p, law_q, ids, table.weight.detach())
    torch.testing.assert_close(rule.mass(p, q), torch.tensor(mass), atol=1e-6, rtol=0)
    left = norm(over(law_p, law_q))
    out = [m + (1 - sum(mass)) * r for m, r in zip(mass, left, strict=True)]
    away = 0.5 * sum(abs(a - b) for a, b in zip(out, law_p, strict=True))
    assert (sum(mass), away) == pytest.approx((accepts, tv), abs=1e-4)
    made = torch.zeros(size)
    for x in range(size):  # what a loop does with the test's answer
        found = rule.test(p, q, torch.tensor(x))
        made += q[x] * (1 - found.accept) * found.residual
        made[x] += q[x] * found.accept
    assert 0.5 * float((made - p).abs().sum()) == pytest.approx(tv, abs=1e-4)


P, Q = (0.42, 0.3, 0.03, 0.25, 0.0), (0.1, 0.25, 0.35, 0.1, 0.2)


def medusa_by_hand() -> list[float]:
    """A draft passes where p(x) > min(.09, .3 exp(-H)); else the likeliest code."""
    entropy = -sum(m * math.log(m) for m in P if m > 0)
    passes = [m > min(0.09, 0.3 * math.exp(-entropy)) for m in P]
    out = [q * a for q, a in zip(Q, passes, strict=True)]
    out[P.index(max(P))] += 1 - sum(out)
    return out


def cosmos_by_hand(at_miss: str) -> list[float]:
    small = [min(a, b) for a, b in zip(P, Q, strict=True)]
    left = norm([m + 1e-10 for m in over(P, Q)]) if at_miss == "filled" else P
    return [m + (1 - sum(small)) * r for m, r in zip(small, left, strict=True)]


def committed_by(verifier: Any) -> Tensor:
    """The law of the next code where a chain of one draft is drawn from Q, and p is P."""
    size = len(P)
    p = torch.tensor(P).expand(size, 2, -1)
    codes = torch.stack([torch.zeros(size, dtype=torch.long), torch.arange(size)], 1)
    level = torch.tensor([[0, 1]]).expand(size, -1)
    below = torch.tensor([[[1], [0]]]).expand(size, -1, -1)
    q = torch.tensor(Q).expand(size, 2, -1)
    draft = Draft(codes, level * 0, level, below, q)
    noise = Noise.for_prompts(0, [str(x) for x in range(size)], 4)
    made = verifier.decide(Law(p.log(), p, False), draft, noise, torch.ones(size).long(), None)
    first = torch.where(made.count > 0, codes[:, 1], made.last_code)
    assert (made.last_code[made.count > 0] == 0).all()  # the likeliest code behind the path too
    return torch.zeros(size).index_add_(0, first, torch.tensor(Q))


def test_medusa_goes_on_with_the_likeliest_code():
    wanted = medusa_by_hand()
    torch.testing.assert_close(committed_by(Medusa()), torch.tensor(wanted))
    away = 0.5 * sum(abs(a - b) for a, b in zip(wanted, P, strict=True))
    assert away == pytest.approx(0.23, abs=1e-4)


@pytest.mark.parametrize(("at_miss", "tv"), [("filled", 0.0), ("target", 0.1216)])
def test_cosmos_s_residual(at_miss, tv):
    wanted = cosmos_by_hand(at_miss)
    found = node_law(Filled(None, at_miss), torch.tensor(P), torch.tensor(Q), 1)
    torch.testing.assert_close(found.out, torch.tensor(wanted).double(), atol=1e-6, rtol=0)
    away = 0.5 * sum(abs(a - b) for a, b in zip(wanted, P, strict=True))
    assert away == pytest.approx(tv, abs=1e-4)
    assert (float(found.out[4]) > 0) is (at_miss == "filled")  # P(4) is zero
