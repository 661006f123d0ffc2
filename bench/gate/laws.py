"""Checks of an acceptance rule at single nodes: the law of the committed code, enumerated; p_A by
its definition (docs/decoders.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bench.gate.reference import reference_rule
from bench.gate.result import Check, Node, finite_or_inf, timed
from bench.gate.small import GateCase
from decoders.api import Trace, VerifiedPairs
from metrics.output_law import Spot, output_law, rule_at

ROUNDED_TV, ROUNDED_OUTSIDE = 1e-5, 1e-6  # in float32, of a TV; of mass on codes with p(x) = 0
LARGEST_VOCAB, SMALLEST_VOCAB = 64, 7  # of random nodes
# By drawn children, whose draws are enumerated in time.
VOCAB_OF_DRAWN = {1: LARGEST_VOCAB, 2: 24, 3: 12, 4: 8}
NODES_PER_KIND, CHILDREN = 3, (1, 2, 3, 4)  # of random nodes; and the most children there are
STRIDE = 97  # between the positions of random nodes, which so get all over the image
LEAST_BOUND = 1e-6  # a smaller one declares nothing


@timed
def node_law_check(case: GateCase, trace: Trace) -> Check:
    """The law of the committed code at every node. Fault: TV where no bound is declared, or beyond
    lemma R's output bound, or beyond a declared bound on the output; anything that is not finite;
    an accepted mass above q. A paper's bound on TV(p, p_A) claims nothing about the output."""
    if trace.pairs is None:
        return Check("node law")
    results, outside, over, grid = list[Node](), 0.0, 0.0, case.sizes.visited[1]
    moved = 0.0
    rule_for = cache(lambda vocab: case.rule(case.model((vocab, grid, 0))))
    drawn, levels = trace.pairs.q is not None, trace.pairs.levels
    codes = min(case.real.codebook, case.sizes.node_codes)
    for turn, (kind, p, drafts, count) in enumerate(_nodes(trace.pairs, codes)):
        q, children = (drafts, count) if drawn else (None, drafts.topk(count).indices)
        words = f"{count} {'drawn' if drawn else 'deterministic'} children, V={len(p)}, {kind} p, q"
        rule, spots = rule_for(len(p)), list[Spot | None]([None])
        if rule.at is not None:  # every depth, at positions all over an image, others in each turn
            starts = [STRIDE * (turn * levels + i) % (grid**2 - 1) for i in range(levels)]
            spots = [Spot(depth, 1 + start, levels) for depth, start in enumerate(starts)]
        for spot in spots:
            law = output_law(rule, p, q, children, spot)
            results.append(Node(words, count, spot, law))
            outside = max(outside, float(law.out[p == 0].sum()))
            placed: Any = rule_at(rule, spot, p[None, None])
            if len(p) <= LARGEST_VOCAB and not rule.bounds_output:
                moved = max(moved, finite_or_inf(beyond_bound(placed, p, q)))
            if hasattr(placed, "mass"):
                mass = placed.mass(p[None, None], None if q is None else q[None, None])[0, 0]
                above = float((mass - (1.0 if q is None else q)).amax())
                over = max(over, finite_or_inf(above))
    worst = max(results, key=lambda r: finite_or_inf(r.law.tv))
    furthest = max(results, key=lambda r: r.excess)
    beyond = furthest if furthest.excess > ROUNDED_TV else None
    limit = max((r.law for r in results), key=lambda law: finite_or_inf(law.tv - law.limit))
    max_bound = max(finite_or_inf(r.law.declared) for r in results)
    relaxed, faults, tv = max_bound > LEAST_BOUND, list[str](), worst.law.tv
    if over > ROUNDED_TV:
        faults.append(
            f"the mass that the rule accepts is more than q, by {over:.4f} at a code: return q a "
            "with a <= 1, as in torch.minimum(q, mass)"
        )
    if furthest.excess == math.inf:
        faults.append(
            f"no finite law or bound: {furthest}; accept, residual, bound and q must be finite"
        )
    elif beyond is not None and (not relaxed or rule.bounds_output):
        faults.append(str(beyond))
    if moved > ROUNDED_TV:
        faults.append(
            f"a draft's TV(p, p_A) is above its declared bound, by {moved:.4f}: by the rule's "
            "`tv_shift`, or by what it accepts of q beyond p"
        )
    single = [r.law for r in results if r.siblings == 1 and rule.bounds_output]
    if any(abs(law.declared - law.limit) > ROUNDED_TV for law in single):
        faults.append("the rule declares another output bound than sum (q a - p)+")
    if limit.tv - limit.limit > ROUNDED_TV and relaxed:
        faults.append(
            f"the output bound, sum (q a - p)+, is exceeded ({limit.tv:.4f} where it is "
            f"{limit.limit:.4f}): after a rejection the rule does not go on with norm((p - q a)+)"
        )
    if outside > ROUNDED_OUTSIDE and not rule.beyond_support:
        faults.append(
            f"codes with p(x) = 0 are committed (up to {outside:.4f} of a node's law), and the "
            "rule does not declare it (`beyond_support`)"
        )
    relaxation = f"output TV up to {tv:.4f}, within lemma R's bound"
    if rule.bounds_output:
        relaxation += ", which the rule declares"
    else:
        declared = (beyond or worst).law.declared
        relaxation += f". TV(p, p_A) is declared to be at most {declared:.4f}"
        relaxation += f", where the output is {furthest.law.tv:.4f} away" * (beyond is not None)
    return Check(
        "node law",
        "; ".join(faults),
        finite_or_inf(tv),
        f"{len(results)} nodes of the rule",
        len(results),
        relaxation=relaxation * relaxed,
        bound=max_bound,
        worst=worst,
        beyond=beyond,
        outside=outside,
    )


def beyond_bound(rule: Any, p: Tensor, q: Tensor | None) -> float:
    """How far TV(p, p_A) of a draft is above the declared bound, at most over all drafts of a node:
    as the rule says, and at least q a - p, as p_A(x) >= q(x) a(x)."""
    every, q = torch.arange(len(p)), None if q is None else q.expand(1, len(p), -1)
    test = rule.test(p.expand(1, len(p), -1), q, every[None])
    accepted = test.accept if q is None else test.accept * q[0, 0]
    return float((torch.maximum(test.tv_shift, accepted - p) - test.bound).amax())


def _nodes(pairs: VerifiedPairs, codes: int) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """Random nodes with as many children as those that were visited, and some with as many codes as
    the real model has: kind, p and q [V] float32, and how many children there are."""
    most, drawn = int(pairs.valid.sum(-1).max()), pairs.q is not None
    for count in sorted({min(count, most) for count in (*CHILDREN, most)}):
        vocab = VOCAB_OF_DRAWN.get(count, SMALLEST_VOCAB) if drawn else LARGEST_VOCAB
        for pair in random_pairs(vocab, NODES_PER_KIND, seed=count):
            yield *pair, min(count, vocab)
    for kind, p, q in random_pairs(codes, 1, seed=0):
        yield kind, p, q, 1 if drawn else most
        if kind == "independent":  # as it is for the second child
            left, others = (p - q).clamp_min(0.0), q.clone().index_fill_(0, q.argmax(), 0.0)
            yield "second", left / left.sum(), others / others.sum(), 1 if drawn else most


def random_pairs(vocab: int, each: int, seed: int) -> list[tuple[str, Tensor, Tensor]]:
    """`each` times (kind, p, q) of every kind, as an error may show at some kinds only."""
    g = torch.Generator().manual_seed(seed)

    def logits(scale: float) -> Tensor:
        return scale * torch.randn(vocab, generator=g)

    def sparse(z: Tensor) -> Tensor:
        """The distribution as after top-k."""
        return z.masked_fill(z < z.topk(max(1, vocab // 2)).values[-1], -torch.inf)

    pairs = []
    for _ in range(each):
        base = logits(1.5)
        near = base + logits(0.7)
        split = (torch.arange(vocab) < vocab // 2)[torch.randperm(vocab, generator=g)]
        kinds = {
            "independent": (base, logits(1.5)),
            "near": (base, near),
            "equal": (base, base),
            "flat": (logits(0.2), logits(0.2)),
            "sparse": (sparse(base), sparse(near)),
            "disjoint": (base.masked_fill(split, -torch.inf), near.masked_fill(~split, -torch.inf)),
            "sharp": (4 * base, near),
        }
        pairs += [(kind, p.softmax(-1), q.softmax(-1)) for kind, (p, q) in kinds.items()]
    return pairs


@timed
def definition_check(case: GateCase) -> Check:
    """p_A by the rule against p_A by its definition: every draft, random p. Only rules that relax
    to neighbours have a definition here."""
    model = case.model((24, 2, 1))
    rule = case.rule(model)
    reference = reference_rule(rule, model)
    if reference is None:
        return Check("definition")
    worst, x = 0.0, torch.arange(24)
    for _, p, _ in random_pairs(24, NODES_PER_KIND, seed=5):
        test = rule.test(p.expand(24, -1), None, x)
        tv_shift, _, near_edge = reference(p.double().expand(24, -1), x)
        gaps = torch.stack([test.tv_shift - tv_shift, test.accept - (p + tv_shift).clamp_max(1.0)])
        worst = max(worst, finite_or_inf(float(gaps.abs().masked_fill(near_edge, 0.0).amax())))
    fault = f"p_A differs by {worst:.4f} from its definition" * (worst > ROUNDED_TV)
    return Check("definition", fault)
