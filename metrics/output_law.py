"""The output law of a node: the law of the code that is committed there, by enumerating every draw
of its children. The exactness gate and the metrics compute it here and nowhere else.

The rule judges the children of every possible draw; nothing is sampled. Drawn children: all ordered
tuples without replacement, with their probabilities. Deterministic ones: a single tuple. After the
last rejection the loop samples in proportion to the residual, normalised or not.
    out      = sum over draws w [sum_j prod_{i<j} (1 - a_i) a_j delta(x_j) + prod_j (1 - a_j) res]
    declared = sum over draws w [1 - prod_j (1 - bound_j)], of a rule that bounds the output's TV
               itself sum over draws w [sum_j prod_{i<j} (1 - a_i) bound_j]
    limit    = sum_j sum over (x_1..x_{j-1}) w prod_{i<j} (1 - a_i) sum_x (q_j(x) a_j(x) - p_j(x))+
`limit` is the output bound of decoders.md, lemma R: p_j is what the rule goes on with after j - 1
rejections, q_j the drafter's law without them (q_j = 1 at x_j for deterministic children). For one
draft with the correction norm((p - q a)+) it is the output's TV itself, and no correction does
better; over siblings it bounds the TV of every rule that corrects so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations

import torch
from scipy.optimize import brentq
from scipy.special import chdtrc, chdtri, chndtr, ndtr
from torch import Tensor

from decoders.api import Acceptance, AcceptRule, Draft, VerifiedPairs
from decoders.distribution import drop_sibling
from decoders.verify.token_verifier import Judge, test_children
from metrics import MetricError

SUM_TOLERANCE = 1e-3  # of a distribution's sum; float32 softmax over 16384 codes stays far below
MAX_DRAWS = 6000  # ordered draws of several siblings that are enumerated at most
LEAST_EXPECTED = 5.0  # rarer cells are pooled
CHUNK_ENTRIES = 1 << 23  # entries of one chunk of V-wide tests: 32 MiB float32
LEAST_REACHED = 1e-6  # a sibling that is reached less often than this adds nothing to a figure


@dataclass(frozen=True)
class OutputLaw:
    """out [V] float64: the law of the committed code; tv: its distance to p; declared: what the
    rule declares for it; limit: the output bound of lemma R. NaN where the rule or the drafter
    answered NaN: a comparison must refuse it."""

    out: Tensor
    tv: float
    declared: float
    limit: float


@dataclass(frozen=True)
class _Level:
    """The rule's answers to all draws of j children, [T_j, ...] float64."""

    weight: Tensor  # [T] probability of the draw
    accept: Tensor  # [T, j]; 0 past a child that is accepted for certain
    bound: Tensor  # [T, j]
    residual: Tensor  # [T, V], the target's law for the next child

    @property
    def alive(self) -> Tensor:
        """[T]: probability that all j are rejected, given the draw."""
        return (1 - self.accept).prod(-1)


@dataclass(frozen=True)
class Spot:
    """Where a node stands: its depth in a draft of `levels` levels, and the position in the image
    of the root's children."""

    depth: int
    position: int
    levels: int


def spot_of(pairs: VerifiedPairs, row: int) -> Spot:
    return Spot(int(pairs.depth[row]), int(pairs.position[row]), pairs.levels)


def judge_at(rule: AcceptRule, spot: Spot | None) -> Judge:
    """A judge of nodes that all stand at one spot, which matters where a rule has `at`. ValueError
    where such a rule is without a spot."""

    def judge(p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor) -> Acceptance:
        return test_children(rule_at(rule, spot, p), p, q, codes, valid)

    return judge


def rule_at(rule: AcceptRule, spot: Spot | None, p: Tensor) -> AcceptRule:
    """The rule for nodes that all stand at one spot, of which p [1, n, V] is."""
    if rule.at is None:
        return rule
    if spot is None:
        raise ValueError(f"{rule} depends on depth and position, which are not known of this node")
    blank = torch.zeros_like(p[..., 0], dtype=torch.long)  # [1, n]
    depth = torch.full_like(blank, spot.depth)
    draft = Draft(blank, blank, depth, blank[..., None], None, levels=spot.levels)
    return rule.at(draft, torch.full_like(blank[:, 0], spot.position))


def ordered_draws(q: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """All ordered draws without replacement of `count` codes from q [V] (fewer if its support is
    smaller) -> codes [T, count], probabilities [T] float64. Draws that begin alike lie together."""
    support = q.nonzero().flatten().tolist()
    size = min(count, len(support))
    codes = torch.tensor(list(permutations(support, size)), device=q.device).view(-1, size)
    mass = q.double()[codes]  # [T, size]
    taken = mass.cumsum(-1) - mass  # mass of the earlier siblings
    return codes, (mass / (q.double().sum() - taken).clamp_min(1e-300)).prod(-1)


def output_law(
    rule: AcceptRule, p: Tensor, q: Tensor | None, children: Tensor | int, spot: Spot | None = None
) -> OutputLaw:
    """p [V], q [V] float32; children: how many are drawn from q, or the deterministic ones [K];
    spot: where the node stands, for a rule that depends on it."""
    judge = judge_at(rule, spot)
    if q is None:
        if isinstance(children, int):
            raise ValueError("deterministic children must be given as codes")
        size = len(children)
    else:
        count = children if isinstance(children, int) else len(children)
        size = min(count, int((q != 0).sum()))  # NaN counts as possible
    one = torch.ones(1, dtype=torch.float64, device=p.device)
    before = _Level(one, one[:, None][:, :0], one[:, None][:, :0], p.double()[None])  # no child yet
    limit = torch.zeros((), dtype=torch.float64, device=p.device)
    codes = torch.zeros(1, 0, dtype=torch.long, device=p.device)
    for j in range(1, size + 1):
        if q is None:
            codes, weight = torch.as_tensor(children)[None, :j], before.weight[:1]
        else:
            codes, weight = ordered_draws(q, j)
        level = _test_draws(judge, p, q, codes, weight)
        limit = limit + _gained(before, level, codes)
        before = level
    out = torch.zeros_like(p, dtype=torch.float64)
    first = torch.cat([torch.ones_like(before.weight)[:, None], (1 - before.accept).cumprod(-1)], 1)
    hit = before.weight[:, None] * first[:, :-1] * before.accept  # [T, K]
    out.index_add_(0, codes.flatten(), hit.flatten())
    # The mass that comes from the residuals [T, V], each reached with probability left [T].
    left, total = before.weight * before.alive, before.residual.sum(-1, keepdim=True)
    nothing = torch.zeros_like(before.residual)
    nothing[:, -1] = 1.0  # what `decoders.noise.sample` returns where nothing is left
    law = torch.where(total == 0, nothing, before.residual / total)
    out += torch.where(left[:, None] == 0, 0.0, left[:, None] * law).sum(0)
    declared = before.weight @ _composed(rule, before.bound, first[:, :-1])
    tv = 0.5 * (out - p.double()).abs().sum()
    return OutputLaw(out, float(tv), float(declared), float(limit))


def _composed(rule: AcceptRule, bound: Tensor, reached: Tensor) -> Tensor:
    """The bound of a node, [...], from those of its children [..., K]; reached [..., K]: the
    probability that a child is tested at all. Bounds on the output add up as they are met: triangle
    inequality."""
    if rule.bounds_output:
        return (reached * bound).sum(-1)
    return 1 - (1 - bound).prod(-1)


def _test_draws(judge: Judge, p: Tensor, q: Tensor | None, codes: Tensor, weight: Tensor) -> _Level:
    """Tests every draw of a node's children: codes [T, j] in the order of the tests, weight [T]
    the draws' probabilities. In chunks, which bound the memory."""
    parts = []
    for some in codes.split(max(1, CHUNK_ENTRIES // len(p))):
        rows = None if q is None else q.float().expand(1, len(some), -1)
        valid = torch.ones_like(some, dtype=torch.bool)[None]
        parts.append(judge(p.float().expand(1, len(some), -1), rows, some[None], valid))
    accept, bound, residual = (
        torch.cat([getattr(part, name)[0] for part in parts]).double()
        for name in ("accept", "bound", "residual")
    )
    alive = torch.ones_like(weight)
    for j in range(codes.shape[1]):  # past a certain acceptance a residual means nothing
        accept[:, j] = torch.where(alive == 0, 0.0, accept[:, j])
        nothing = (alive == 0) & ~torch.isfinite(bound[:, j])
        bound[:, j] = torch.where(nothing, 0.0, bound[:, j])
        alive = alive * (1 - accept[:, j])
    return _Level(weight, accept, bound, residual)


def _gained(before: _Level, level: _Level, codes: Tensor) -> Tensor:
    """sum over the draws of j - 1 of w prod (1 - a) sum_x (q_j(x) a_j(x) - p_j(x))+."""
    reached = before.weight * before.alive  # [T_{j-1}]
    possible = (reached > 0).nonzero().flatten()
    each = len(codes) // len(reached)  # draws of j that begin like one of j - 1
    q = level.weight.view(-1, each) / before.weight[:, None]  # [T_{j-1}, each], q_j(x)
    hit = q * level.accept[:, -1].view(-1, each)
    x = codes[:, -1].view(-1, each)
    total = before.residual.sum(-1, keepdim=True)
    p = torch.where(total == 0, 0.0, before.residual / total).gather(-1, x)  # [T_{j-1}, each]
    gained = (hit - p).clamp_min(0.0).sum(-1)
    if not bool(torch.isfinite(reached).all()):
        return reached.sum()  # NaN stays NaN
    return (reached[possible] * gained[possible]).sum()


def along(
    rule: AcceptRule, p: Tensor, q: Tensor, children: Tensor, spot: Spot | None = None
) -> tuple[float, float, float]:
    """(tv, declared, limit) of a node with drawn siblings, of which `children` [K] were drawn. All
    draws of several siblings out of a large codebook are too many. So every sibling's own law is
    enumerated, exactly, after the recorded ones before it, and what it adds is weighted with the
    probability that those were rejected: tv = sum_j prod_{i<j} (1 - a_i) TV_j, `limit` likewise. On
    average over draws this tv is no less than that of the node's law (the triangle inequality), and
    the same for a single draft; `limit` is on average the node's."""
    tv, limit, reached = 0.0, 0.0, 1.0
    bounds, met = [], []
    judge, one = judge_at(rule, spot), torch.ones(1, 1, 1, dtype=torch.bool)
    for x in children:
        law = output_law(rule, p, q, 1, spot)
        tv, limit = tv + reached * law.tv, limit + reached * law.limit
        bounds.append(law.declared)
        met.append(reached)
        test = judge(p[None, None], q[None, None], x[None, None, None], one)
        reached *= 1 - float(test.accept)
        if reached <= LEAST_REACHED:
            break
        p, q = test.residual[0, 0], drop_sibling(q[None], x[None])[0]
        if not bool(q.any()):  # its support ends here
            break
    declared = _composed(rule, torch.tensor(bounds).double(), torch.tensor(met).double())
    return tv, float(declared), limit


def output_tv(rule: AcceptRule, pairs: VerifiedPairs) -> tuple[Tensor, Tensor, Tensor]:
    """At M recorded nodes, [M] float32 on the CPU each: the output's distance from p, what the rule
    declares on it, composed over the node's children, and the output bound (lemma R). Deterministic
    children, one drawn child, or few draws in all: of the node's exact law. Several children drawn
    from a large codebook: `along` the recorded ones, which on average is no
    less. M = 0 gives empty tensors. Raises MetricError when p or q is not a distribution, or the
    rule answers NaN."""
    for name, rows in (("p", pairs.p), ("q", pairs.q)):
        if rows is None:
            continue
        total = rows.double().sum(-1)  # [M]
        wrong = ~(((total - 1).abs() < SUM_TOLERANCE) & (rows >= 0).all(-1))  # NaN is wrong too
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise MetricError(
                f"{name}[{row}] is not a distribution (sum {float(total[row]):.6g}, least entry "
                f"{float(rows[row].min()):.3g}); record processed float32 probabilities"
            )
    figures = []
    for row, p in enumerate(pairs.p):
        children = pairs.children[row][pairs.valid[row]]
        if not len(children):
            figures.append((0.0, 0.0, 0.0))
            continue
        q, spot = None if pairs.q is None else pairs.q[row], spot_of(pairs, row)
        support = 0 if q is None else int((q > 0).sum())
        draws = math.perm(support, min(support, len(children)))
        if q is None or len(children) == 1 or draws <= MAX_DRAWS:
            law = output_law(rule, p, q, children, spot=spot)
            figures.append((law.tv, law.declared, law.limit))
        else:
            figures.append(along(rule, p, q, children, spot))
    every = torch.tensor(figures, dtype=torch.float64).view(-1, 3)  # [M, 3]
    if not bool(torch.isfinite(every).all()):
        row = int((~torch.isfinite(every)).any(-1).nonzero()[0])
        raise MetricError(
            f"the rule answers NaN at recorded node {row} (TV, declared bound, output bound: "
            f"{every[row].tolist()}); its accept, residual and bound must be finite"
        )
    tv, declared, limit = every.float().unbind(-1)
    return tv, declared, limit


# ---- draws against their laws -------------------------------------------------------------------


def resolution(images: int, cells: int, tests: int, alarm: float, missed: float) -> float:
    """The least TV that Pearson's test of `cells` cells finds in so many images, as one of `tests`
    below the p-value `alarm`, but for a chance `missed`: a law that is away by t has a chi-square
    of at least 4 t^2 per image."""
    freedom = max(1, cells - 1)
    limit = chdtri(freedom, alarm / tests)
    needed = brentq(lambda x: chndtr(limit, freedom, x) - missed, 1e-6, 10 * limit + 100)
    return float(0.5 * math.sqrt(needed / images))


def pearson(observed: Tensor, expected: Tensor) -> float:
    """p-value of counts [cells] by Pearson's test, with rare cells pooled. If draws have different
    laws, whose sum is `expected`, it is a little too large."""
    expected, order = expected.sort(descending=True)
    observed = observed[order].double()
    alone = max(1, int((expected >= LEAST_EXPECTED).sum()))
    if 0 < float(expected[alone:].sum()) < LEAST_EXPECTED and alone > 1:
        alone -= 1
    pooled = [torch.cat([x[:alone], x[alone:].sum()[None]]) for x in (observed, expected)]
    observed, expected = (x[pooled[1] > 0] for x in pooled)
    if len(expected) < 2:
        return 1.0
    return float(chdtrc(len(expected) - 1, float(((observed - expected) ** 2 / expected).sum())))


def draw_pvalues(parts: Iterable[tuple[Tensor, Tensor]], possible: bool = True) -> list[float]:
    """Parts of laws [m, V] float64 and codes [m], each drawn from its law whatever went before ->
    p-values of how often each code is drawn, and of draws that are too sharp or too flat. possible:
    a code of probability zero is an error, as no rounding explains it."""
    observed = expected = torch.zeros(1, dtype=torch.float64)
    gap, variance = 0.0, 0.0
    for laws, codes in parts:
        p = laws.gather(1, codes[:, None])[:, 0]
        if not bool(torch.isfinite(laws).all()) or (possible and not bool((p > 0).all())):
            return [0.0]
        expected = expected + laws.sum(0)
        observed = observed + torch.bincount(codes, minlength=laws.shape[1])
        score = laws.sqrt()  # large for likely codes
        mean = (laws * score).sum(1)
        gap += float((p.sqrt() - mean).sum())
        variance += float(((laws * score**2).sum(1) - mean**2).sum())
    sharp = 2 * float(ndtr(-abs(gap) / variance**0.5)) if variance > 1e-12 else 1.0
    return [pearson(observed, expected), sharp]
