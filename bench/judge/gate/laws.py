"""Checks of an acceptance rule at single nodes: the law of the committed code, enumerated; p_A by
its definition; whether the loop asks the rule what it should (docs/decoders.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.reference import ReferenceRule
from bench.judge.gate.report import CheckResult, finite_or_inf, joined
from bench.judge.gate.small import GateCase
from decoders.api import AcceptRule, VerifiedPairs
from metrics.node_law import MAX_DRAWS, NodeLaw, Spot, draw_count, judge_at, node_law, spot_of

TREE = (12, 3, 14)  # (V, grid, seed) of images whose nodes are recorded
IMAGES, PAIRS, VISITED = 64, 96, 40  # images; nodes recorded of them, about; nodes enumerated
SLACK, OUTSIDE = 1e-5, 1e-6  # float32 rounding of a TV; of mass on codes with p(x) = 0
LARGEST, SMALLEST = 64, 7  # vocabularies of random nodes
REAL = 2048  # codes of nodes as large as the real model's, at most
EACH, COUNTS = 3, 6  # random nodes of each kind; numbers of children that are enumerated, at most
DECLARES, CLOSE = 1e-6, 1e-6  # a smaller bound declares nothing; rounding of a bound


@dataclass(frozen=True)
class Node:
    """p, q [V] float32 (q None: deterministic children). children: codes [K], or how many are drawn
    from q. origin: where it comes from; spot: where a recorded one stood. accept [K]: what the
    loop's verifier computed there."""

    p: Tensor
    q: Tensor | None
    children: Any
    origin: str = "recorded"
    spot: Spot | None = None

    @property
    def count(self) -> int:
        return self.children if isinstance(self.children, int) else len(self.children)


@dataclass(frozen=True)
class NodeResult:
    """A node and its enumerated law."""

    node: Node
    law: NodeLaw

    @property
    def finite(self) -> bool:
        return math.isfinite(self.law.tv) and math.isfinite(self.law.declared)

    @property
    def excess(self) -> float:
        """TV beyond the declared bound; infinite for NaN."""
        return finite_or_inf(self.law.tv - self.law.declared)

    def __str__(self) -> str:
        node, kind = self.node, "deterministic" if self.node.q is None else "drawn"
        depth = "" if node.spot is None else f" at depth {node.spot.depth}"
        return (
            f"output TV {self.law.tv:.4f} where {self.law.declared:.4f} is declared ({node.count} "
            f"{kind} children, V={len(node.p)}, {node.origin} node{depth})"
        )


@dataclass(frozen=True)
class Recorded:
    """Nodes that the decoder visits on longer images. levels: of its drafts; bound [M]: what the
    loop recorded as the rule's bound at each."""

    pairs: VerifiedPairs | None
    levels: int
    bound: Tensor


def record_nodes(case: GateCase) -> Recorded:
    run = case.trial(TREE, IMAGES)
    trace = run.decoder.generate(run.text, run.noise, pairs=PAIRS / IMAGES).trace
    pairs, levels = trace.pairs, 0 if run.decoder.proposer is None else run.decoder.proposer.depth
    if pairs is None or pairs.place is None or pairs.depth is None:
        return Recorded(pairs, levels, trace.bound[:0, 0])
    return Recorded(pairs, levels, trace.bound[pairs.image, pairs.place + pairs.depth])


def law_check(case: GateCase, recorded: Recorded) -> CheckResult:
    """The law of the committed code at every node. Fault: TV where no bound is declared, or beyond
    lemma R's output bound, or beyond a declared bound on the output; anything that is not finite. A
    paper's bound on TV(p, p_A) claims nothing about the output: evidence "beyond" holds the node
    at which the output is further away."""
    outside, beyond_support, bounds_output = 0.0, False, False
    results: list[NodeResult] = []
    for rule, node in _placed(case, recorded):
        law = node_law(rule, node.p, node.q, node.children, node.spot)
        results.append(NodeResult(node, law))
        bounds_output |= rule.bounds_output
        beyond_support |= getattr(rule, "beyond_support", False)
        outside = max(outside, float(law.out[node.p == 0].sum()))
    if not results:
        return CheckResult("node law", evidence={"nodes": 0, "max_bound": 0.0})
    worst = max(results, key=lambda r: finite_or_inf(r.law.tv))
    most = max(results, key=lambda r: r.excess)
    past = max(results, key=lambda r: finite_or_inf(r.law.tv - r.law.limit))
    single = [r.law for r in results if r.node.count == 1] if bounds_output else []
    evidence: dict[str, Any] = {"nodes": len(results), "worst": worst, "outside": outside}
    evidence["max_bound"] = max(finite_or_inf(r.law.declared) for r in results)
    evidence |= {"bounds output": bounds_output, "beyond": most if most.excess > SLACK else None}
    relaxed, faults = relaxes(evidence), []
    if most.excess > SLACK and (not relaxed or bounds_output or not most.finite):
        faults.append(str(most))
        if not most.finite:
            faults = [
                f"no finite law or bound: {most}; accept, residual, bound and q must be finite"
            ]
        elif worst.law.tv > most.law.tv:
            faults.append(f"at another node: {worst}")
    if any(abs(law.declared - law.limit) > SLACK for law in single):
        faults.append("the rule declares another output bound than sum (q a - p)+")
    if past.law.tv - past.law.limit > SLACK and relaxed:
        faults.append(
            f"the output bound, sum (q a - p)+, is exceeded ({past.law.tv:.4f} where it is "
            f"{past.law.limit:.4f}): after a rejection the rule does not go on with "
            "norm((p - q a)+)"
        )
    if outside > OUTSIDE and not beyond_support:
        faults.append(
            f"codes with p(x) = 0 are committed (up to {outside:.4f} of a node's law), and the "
            "rule does not declare it (`beyond_support`)"
        )
    return CheckResult("node law", joined(*faults), evidence, finite_or_inf(worst.law.tv))


def relaxes(evidence: dict[str, Any]) -> bool:
    """Whether the rule declares a bound beyond rounding; if not, it claims to be exact."""
    return bool(evidence["max_bound"] > DECLARES)


def _placed(case: GateCase, recorded: Recorded) -> Iterator[tuple[AcceptRule, Node]]:
    """Every node with the rule for its vocabulary. If the rule depends on the spot, a recorded node
    keeps its own, and a random one stands at every depth, at places in turn."""
    rules: dict[int, AcceptRule] = {}
    for turn, node in enumerate(_nodes(recorded, case.real.codebook)):
        vocab = len(node.p)
        if vocab not in rules:
            rules[vocab] = case.rule(case.model((vocab, 2, 0)))
            if rules[vocab].at is not None:  # it may read the size of the recorded images
                rules[vocab] = case.rule(case.model((vocab, TREE[1], 0)))
        rule = rules[vocab]
        if rule.at is None or node.spot is not None:
            yield rule, node if rule.at is not None else replace(node, spot=None)
            continue
        for depth in range(recorded.levels):
            place = 1 + (turn + depth) % (TREE[1] ** 2 - 1)
            yield rule, replace(node, spot=Spot(depth, place, recorded.levels))


def _nodes(recorded: Recorded, codebook: int) -> Iterator[Node]:
    """Nodes that the decoder visited, then random ones with as many children as its tree gives, and
    some with as many codes as the real model has."""
    pairs = recorded.pairs
    if pairs is None:
        return
    drawn = pairs.q is not None
    for i in range(min(VISITED, len(pairs.p))):
        tested, spot = pairs.children[i][pairs.valid[i]], spot_of(pairs, i)
        if pairs.q is None:
            yield Node(pairs.p[i], None, tested, spot=spot)
        elif len(tested) and draw_count(TREE[0], len(tested)) <= MAX_DRAWS:
            yield Node(pairs.p[i], pairs.q[i], len(tested), spot=spot)
    counts = sorted({n for n in pairs.valid.sum(-1).tolist() if n > 0})
    if len(counts) > COUNTS:  # the smallest, the largest and some between
        counts = sorted(
            {counts[round(i * (len(counts) - 1) / (COUNTS - 1))] for i in range(COUNTS)}
        )
    for count in counts:
        vocab = _vocabulary(count) if drawn else LARGEST
        for kind, p, q in random_pairs(vocab, EACH, seed=count):
            top = q.topk(min(count, vocab)).indices
            yield Node(p, q, min(count, SMALLEST), kind) if drawn else Node(p, None, top, kind)
    for kind, p, q in random_pairs(min(codebook, REAL), 1, seed=0) if counts else ():
        if kind in ("independent", "flat"):
            top = q.topk(max(counts)).indices
            yield Node(p, q, 1, kind) if drawn else Node(p, None, top, kind)


def _vocabulary(count: int) -> int:
    """The largest vocabulary on which `count` drawn children are enumerable in time."""
    sizes = (v for v in (LARGEST, 24, 12, 8) if v > count)
    return next((v for v in sizes if draw_count(v, count) <= MAX_DRAWS // 3), SMALLEST)


def random_pairs(vocab: int, each: int, seed: int) -> list[tuple[str, Tensor, Tensor]]:
    """`each` times (kind, p, q) of every kind, as an error may show at some kinds only."""
    g = torch.Generator().manual_seed(seed)

    def logits(scale: float) -> Tensor:
        return scale * torch.randn(vocab, generator=g)

    def sparse(z: Tensor) -> Tensor:
        """As after top-k."""
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


def definition_check(case: GateCase) -> CheckResult:
    """p_A by the rule against p_A by its definition: every draft, random p. Only rules that relax
    to neighbours have a definition here."""
    model = case.model((24, 2, 1))
    rule = case.rule(model)
    reference = None if rule is None else ReferenceRule.of(rule, model)
    if reference is None:
        return CheckResult("definition")
    worst, over = 0.0, 0.0
    for _, p, _ in random_pairs(24, EACH, seed=5):
        test = rule.test(p.expand(24, -1), None, torch.arange(24))
        for x in range(24):
            expected = reference.at(p.double().numpy(), x)
            if expected.near_edge:
                continue
            moved, accept = float(test.moved[x]), float(test.accept[x])
            over = max(over, finite_or_inf(moved - expected.bound))
            gaps = moved - expected.moved, accept - min(1.0, expected.raised)
            worst = max(worst, *(finite_or_inf(abs(gap)) for gap in gaps))
    faults = [f"p_A differs by {worst:.4f} from its definition"] * (worst > SLACK)
    faults += [f"the mass moved exceeds the bound by {over:.4f}"] * (over > SLACK)
    return CheckResult("definition", joined(*faults), {"largest_difference": worst})


def loop_check(case: GateCase, recorded: Recorded) -> CheckResult:
    """The bound that the loop recorded at a node is the rule's for one of its drafts, at that depth
    and place."""
    rule, gap, pairs = case.rule(case.model(TREE)), 0.0, recorded.pairs
    for i, bound in enumerate(recorded.bound):
        assert pairs is not None
        p, q = (None if t is None else t[i, None, None] for t in (pairs.p, pairs.q))
        codes, valid = pairs.children[i, None, None], pairs.valid[i, None, None]
        judged = judge_at(rule, spot_of(pairs, i))(p, q, codes, valid)  # type: ignore[arg-type]
        gap = max(gap, finite_or_inf(float((judged.bound[valid] - bound).abs().min())))
    fault = f"the loop has another bound than the rule gives for the node (off by {gap:.2g})"
    return CheckResult("loop", fault * (gap > CLOSE), {"nodes": len(recorded.bound), "gap": gap})
