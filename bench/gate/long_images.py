"""Checks of long images with row ends by teacher forcing: the law that is verified at every node,
the bound that is recorded there, drafts of every depth, and the numbers that draw the codes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bench.errors import Failure, attempt
from bench.gate.result import Check, finite_or_inf, timed
from bench.gate.sampled import ALARM, drafts_at, sample_and_test
from bench.gate.small import GateCase, Trial
from decoders.api import Generation
from metrics.output_law import draw_pvalues, judge_at, spot_of

ROWS = 9  # long images, whose padding differs
MOST_BOUNDS = 96  # visited nodes whose bounds are compared
VERIFIED_TV, TIED_NODES = 1e-3, 2  # that is no rounding in float32; nodes that may have more
CLOSE_BOUND = 1e-6  # rounding of a bound
SAMPLED_ROWS = 64  # of a decoder that cannot be enumerated
LAGS = 64  # positions between numbers that are compared


@dataclass(frozen=True)
class LongImages:
    """Long images of a composition, with row ends unless its loop refuses them, and all nodes that
    were visited."""

    case: GateCase
    run: Trial
    done: Generation

    @staticmethod
    def of(case: GateCase, rows: int = ROWS) -> LongImages:
        sizes = case.sizes.visited
        ended = attempt(lambda: case.trial(sizes, rows, row_end=True))
        run = case.trial(sizes, rows) if isinstance(ended, Failure) else ended
        return LongImages(case, run, run.generate(pairs=2 * run.model.target.length))

    @cached_property
    def ar_probs(self) -> Tensor:
        """AR's law of every code given the codes before it, [B, L, V] float64."""
        return self.run.ar_probs(self.done.codes)


@timed
def recorded_bound_check(images: LongImages) -> Check:
    """Checks that the bound a loop recorded at a node is the rule's, at that depth and position,
    for one of the node's children: which of them decided is not recorded. No TV shift that the rule
    gives is above its bound."""
    trace, rule, gap, above = images.done.trace, images.run.decoder.rule, 0.0, 0.0
    pairs = trace.pairs
    if pairs is None or rule is None:
        return Check("loop")
    compared = range(0, len(pairs.p), max(1, -(-len(pairs.p) // MOST_BOUNDS)))
    for i in compared:
        bound = trace.bound[pairs.image[i], pairs.position[i] + pairs.depth[i]]
        p, q = (None if t is None else t[i, None, None] for t in (pairs.p, pairs.q))
        codes, valid = pairs.children[i, None, None], pairs.valid[i, None, None]
        judged = judge_at(rule, spot_of(pairs, i))(p, q, codes, valid)  # type: ignore[arg-type]
        gap = max(gap, finite_or_inf(float((judged.bound[valid] - bound).abs().min())))
        above = max(above, finite_or_inf(float((judged.tv_shift - judged.bound)[valid].max())))
    above = max(above, finite_or_inf(float((trace.tv_shift - trace.bound).max())))
    fault = f"the loop has another bound than the rule gives for the node (off by {gap:.2g})"
    fault *= gap > CLOSE_BOUND
    if above > CLOSE_BOUND and not rule.bounds_output:
        fault = f"an accepted draft's TV shift is above its declared bound, by {above:.2g}"
    return Check("loop", fault, count=len(compared), gap=gap)


@timed
def verified_law_check(images: LongImages) -> Check:
    """The target's law that was verified at the nodes of long images, against teacher forcing over
    the finished images: guidance, filters and barred codes at any position, padding, and the cache
    behind drafts of any depth, in each row. A few may differ by a tie at the edge of top-k."""
    pairs = images.done.trace.pairs
    if pairs is None:
        return Check("verified law")
    position = pairs.position + pairs.depth
    expected = images.ar_probs[pairs.image, position]
    tv = 0.5 * (pairs.p.double() - expected).abs().sum(-1).nan_to_num(math.inf)  # [m]
    wrong, fault = (tv > VERIFIED_TV).nonzero()[:, 0], ""
    if len(wrong) > TIED_NODES:
        at = wrong[tv[wrong].argmax()]
        fault = (
            f"the law that is verified is not the target's at {len(wrong)} of {len(tv)} nodes, TV "
            f"{float(tv[at]):.2g} at position {int(position[at])} of row {int(pairs.image[at])}: "
            "look at guidance, filters, barred codes, the mask, and what is kept in the cache of "
            "an accepted path"
        )
    return Check("verified law", fault, float(tv.max()), f"{len(tv)} nodes", len(tv))


@timed
def numbers_check(images: LongImages) -> Check:
    """The numbers that draw long images: the code at each position is drawn from AR's law, by a
    number of its own. So the probability integral transforms of the codes, F(x - 1) + w p(x) with a
    uniform w, are uniform and independent (Rosenblatt, 1952). Where a rule judges drafts one by
    one, those of every depth are drawn from q. images: the first ones to look at."""
    case, run, looks = images.case, images.run, iter([images])
    generator = torch.Generator().manual_seed(case.sizes.visited[-1])

    def sample() -> LongImages:
        return next(looks, None) or replace(images, done=run.sample(generator))

    def pvalues(sample: LongImages) -> list[float]:
        p, codes = sample.ar_probs, sample.done.codes
        values = draw_pvalues([(p.flatten(0, 1), codes.flatten())])
        if 0.0 in values:
            return values
        px = p.gather(-1, codes[..., None])[..., 0]
        end = p.cumsum(-1).gather(-1, codes[..., None])[..., 0]
        uniform = torch.rand(px.shape, generator=generator, dtype=torch.float64)
        values += list(number_pvalues(end - uniform * px))
        pairs = sample.done.trace.pairs
        for depth in range(pairs.levels if case.has_rule and pairs else 0):
            values += draw_pvalues(drafts_at([sample.done], depth))
        return values

    _, adjusted = sample_and_test(sample, pvalues)
    fault = (
        "the codes of long images do not follow the AR law, are drawn by numbers that depend on "
        f"each other, or their drafts do not follow q (p {adjusted:.1g})"
    )
    count, length = images.done.codes.shape
    summary = f"{count} long images of {length} codes with row ends"
    return Check("numbers", fault * (adjusted < ALARM), 0.0, summary, count)


def number_pvalues(uniform: Tensor) -> Iterator[float]:
    """p-values of numbers [B, L] float64, uniform and independent if all is right: of their mean
    direction as angles; of numbers up to LAGS positions apart, in one image and in two. The angle
    between two numbers is uniform as well. Compared are its mean over the positions of two images,
    over all positions and images, and over images at each position: rotations that differ from
    position to position show there."""
    turn = torch.polar(torch.ones_like(uniform), 2 * math.pi * uniform)
    batch, length = uniform.shape
    yield math.exp(-float(turn.sum().abs() ** 2) / turn.numel())
    of_two, of_all, by_position = list[Tensor](), list[Tensor](), list[Tensor]()
    for other in (turn.conj(), turn):  # differences of two, and sums
        for lag in range(min(LAGS, length - 2) + 1):
            n = length - lag
            angle = turn[:, None, lag:] * other[None, :, :n]  # [B, B, n]
            if lag == 0:
                angle = angle[(~torch.eye(batch, dtype=torch.bool)).triu()][:, None]
                of_two.append(angle.sum(-1).abs().flatten() ** 2 / n)
                continue
            of_two.append(angle.sum(-1).abs().flatten() ** 2 / n)
            same = angle.diagonal()  # [n, B]
            of_all.append(same.sum().abs() ** 2 / same.numel())
            steady = (same.sum(-1).abs() ** 2 / batch).sum()
            by_position.append(torch.special.gammaincc(torch.tensor(float(n)).double(), steady))
    for squares in (torch.cat(of_two), torch.stack(of_all)):  # exponential, of mean 1
        yield min(1.0, len(squares) * math.exp(-float(squares.max())))
    yield min(1.0, len(by_position) * float(torch.stack(by_position).min()))
