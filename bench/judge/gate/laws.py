"""Node-level checks of an acceptance rule: the enumerated output law, p_A by its definition, and
what the rule said while its decoder ran, against lemma R (docs/decoders.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.reference import ReferenceRule
from bench.judge.gate.report import Finding, known
from bench.judge.gate.small import Asked, Trial
from decoders.api import AcceptRule, VerifiedPairs
from metrics.node_law import MAX_DRAWS, Spot, draw_count, judge_at, node_law, spot_of

TREE = (12, 3, 14)  # (V, grid, seed) of images on which nodes of the tree are recorded
IMAGES, PAIRS = 64, 96  # images; nodes that are recorded of them, about
SLACK = 1e-5  # float32 rounding of a TV
LARGEST, SMALLEST = 64, 7  # vocabularies of random nodes
REAL = 2048  # codes of the real model's nodes at most, with one child that is drawn
EACH = 3  # random nodes of each kind and number of children
VISITED = 40  # recorded nodes that are enumerated
OUTSIDE = 1e-6  # mass on codes with p(x) = 0 that rounding may leave
COUNTS = 6  # numbers of children that are enumerated at most
ROUNDING = 1e-6  # a bound below this declares nothing
CLOSE = 1e-6  # rounding of what the loop's verifier says, against the rule
JUDGED = 40  # nodes of the verifier that are looked at, spread over the run
ROWS = 8  # images of the run whose nodes are kept


@dataclass(frozen=True)
class Node:
    """p, q [V] float32 and where they come from. q None: deterministic children. children: codes
    [K], or how many are drawn from q. spot: where a recorded one stood; None: any. accept, bound
    [K]: what the loop's verifier got there."""

    p: Tensor
    q: Tensor | None
    children: Any
    origin: str = "recorded"
    spot: Spot | None = None
    accept: Any = None
    bound: Any = None

    @property
    def count(self) -> int:
        return self.children if isinstance(self.children, int) else len(self.children)


@dataclass
class Recorded:
    """Nodes that the decoder, with its own rule, visits on a longer image. levels: of its drafts;
    judged: what its rule said there."""

    pairs: VerifiedPairs | None
    levels: int
    judged: list[Node] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """Are children drawn from q (or a function of the prefix)?"""
        return self.pairs is not None and self.pairs.q is not None

    def counts(self) -> list[int]:
        """How many children a node may have."""
        sizes = [] if self.pairs is None else self.pairs.valid.sum(-1).tolist()
        return sorted({n for n in sizes if n > 0})


def record_nodes(asked: Asked) -> Recorded:
    """Records, and decodes once more to see what the rule is asked."""
    run = asked.trial(TREE, IMAGES)
    pairs = run.decoder.generate(run.text, run.noise, pairs=PAIRS / IMAGES).trace.pairs
    levels = 0 if run.decoder.proposer is None else run.decoder.proposer.depth
    watched = hasattr(run.decoder.verifier, "verdicts")
    return Recorded(pairs, levels, _judged(run, levels) if watched else [])


def _judged(run: Trial, levels: int) -> list[Node]:
    """What the verifier's rule says of the nodes of some images; the decoder is used up."""
    kept: list[Node] = []
    verifier: Any = run.decoder.verifier
    verdicts = verifier.verdicts

    def noting(law: Any, draft: Any, codes: Tensor, valid: Tensor, place: Tensor) -> Any:
        found = verdicts(law, draft, codes, valid, place)
        for b, n in valid[:ROWS].any(-1).nonzero().tolist():
            q = None if draft.q is None else draft.q[b, n].clone()
            child, accept, bound = (
                t[b, n][valid[b, n]].clone() for t in (codes, found.accept, found.bound)
            )
            spot = Spot(int(draft.depth[b, n]), int(place[b]), levels)
            kept.append(Node(law.p[b, n].clone(), q, child, "judged", spot, accept, bound))
        return found

    verifier.verdicts = noting
    run.decoder.generate(run.text, run.noise)
    return kept[:: max(1, len(kept) // JUDGED)][:JUDGED]


def law_check(asked: Asked, recorded: Recorded) -> Finding:
    """The law of the committed code at every node -> finding with the worst TV. Fault: TV where no
    bound is declared; beyond the output bound of lemma R, or a bound on the output that is
    declared; anything that is not finite. What a paper declares on TV(p, p_A) is no claim on the
    output: evidence "beyond" says where the output is further away."""
    outside, beyond_support, own = 0.0, False, False
    seen: list[dict[str, Any]] = []
    for rule, node in _placed(asked, recorded):
        spot = node.spot
        own |= rule.bounds_output
        law = node_law(rule, node.p, node.q, node.children, spot)
        beyond_support |= getattr(rule, "beyond_support", False)
        outside = max(outside, float(law.out[node.p == 0].sum()))
        here = {
            "tv": law.tv,
            "bound": law.declared,
            "output_bound": law.limit,
            "vocab": len(node.p),
            "children": node.count,
            "node": node.origin,
        }
        seen.append(here | ({} if spot is None else {"depth": spot.depth, "place": spot.place}))
    declared = max((known(here["bound"]) for here in seen), default=0.0)
    single = max((known(here["tv"]) for here in seen if here["children"] == 1), default=0.0)
    (_, most), (over, at), (past, output) = (
        _worst(seen, bound) for bound in ("", "bound", "output_bound")
    )
    evidence: dict[str, Any] = {"nodes": len(seen), "max_tv_of_one_child": single, "worst": most}
    evidence |= {"max_bound": declared, "max_tv": min(known(most["tv"]), 1.0) if seen else 0.0}
    evidence |= {"outside the support": outside, "own bound": own}
    evidence["beyond"] = at if over > SLACK else {}
    faults = []
    if over > SLACK and (not relaxes(evidence) or own or not _finite(at)):
        faults.append(_fault(most, at, recorded.drawn))
    if past > SLACK and relaxes(evidence):
        faults.append(
            f"the output bound, sum (q a - p)+, is exceeded ({output['tv']:.4f} where it is "
            f"{output['output_bound']:.4f}): after a rejection the rule does not go on with "
            "norm((p - q a)+)"
        )
    if outside > OUTSIDE and not beyond_support:
        faults.append(
            f"codes with p(x) = 0 are committed (up to {outside:.4f} of a node's law), and the "
            "rule does not say so (`beyond_support`)"
        )
    return Finding("node law", "; ".join(faults), evidence, evidence["max_tv"])


def relaxes(law: dict[str, Any]) -> bool:
    """Whether the rule declares a bound beyond rounding, by the law check's evidence; if not, it
    claims to be exact."""
    return bool(law["max_bound"] > ROUNDING)


def _worst(seen: list[dict[str, Any]], bound: str) -> tuple[float, dict[str, Any]]:
    """How far, and the node at which, the TV is furthest beyond a bound ("": zero); NaN is beyond
    every bound."""
    over = [known(here["tv"] - here.get(bound, 0.0)) for here in seen]
    return max(zip(over, seen, strict=True), key=lambda one: one[0], default=(-math.inf, {}))


def _finite(here: dict[str, Any]) -> bool:
    return all(math.isfinite(here[name]) for name in ("tv", "bound"))


def _fault(most: dict[str, Any], at: dict[str, Any], drawn: bool) -> str:
    """That a node's law is beyond what is declared there."""
    depth = f" at depth {at['depth']}" if "depth" in at else ""
    where = (
        f"({at['children']} {'drawn' if drawn else 'deterministic'} children, V={at['vocab']}, "
        f"{at['node']} node{depth})"
    )
    fault = f"output TV {at['tv']:.4f} where {at['bound']:.4f} is declared {where}"
    if not _finite(at):
        return f"no finite law or bound: {fault}; accept, residual, bound and q must be finite"
    if most["tv"] > at["tv"]:
        fault += f", at another {most['tv']:.4f} where {most['bound']:.4f} is declared"
    return fault


def _placed(asked: Asked, recorded: Recorded) -> Iterator[tuple[AcceptRule, Node]]:
    """Every node with the rule of its vocabulary. It has a spot if the rule asks: a recorded one
    where it stood, a random one at every depth, at places in turn."""
    rules: dict[int, AcceptRule] = {}
    for turn, node in enumerate(_nodes(recorded, asked.real.codebook)):
        vocab = len(node.p)
        if vocab not in rules:
            rules[vocab] = _rule_of(asked, vocab)
        rule = rules[vocab]
        if rule.at is None:
            yield rule, replace(node, spot=None)
        elif node.spot is not None:
            yield rule, node
        else:
            for depth in range(recorded.levels):
                place = 1 + (turn + depth) % (TREE[1] ** 2 - 1)
                yield rule, replace(node, spot=Spot(depth, place, recorded.levels))


def _rule_of(asked: Asked, vocab: int) -> AcceptRule:
    """The composition's rule for so many codes; one that depends on the place knows the images on
    which nodes are recorded."""
    rule: AcceptRule = asked.rule(asked.plain.model((vocab, 2, 0)))
    if rule.at is not None:
        rule = asked.rule(asked.plain.model((vocab, TREE[1], 0)))
    return rule


def _nodes(recorded: Recorded, codebook: int) -> Iterator[Node]:
    """Nodes the decoder visited, then random ones with as many children as its tree gives, and of
    as many codes as the real model has."""
    made = recorded.pairs
    if made is None:
        return
    for i in range(min(VISITED, len(made.p))):
        tested, spot = made.children[i][made.valid[i]], spot_of(made, i)
        if made.q is None:
            yield Node(made.p[i], None, tested, spot=spot)
        elif len(tested) and draw_count(TREE[0], len(tested)) <= MAX_DRAWS:
            yield Node(made.p[i], made.q[i], len(tested), spot=spot)
    counts = recorded.counts()
    if len(counts) > COUNTS:  # the smallest, the largest and some between
        last = len(counts) - 1
        counts = sorted({counts[round(i * last / (COUNTS - 1))] for i in range(COUNTS)})
    for count in counts:
        vocab = _vocabulary(count) if recorded.drawn else LARGEST
        for kind, p, q in random_pairs(vocab, EACH, seed=count):
            if recorded.drawn:
                yield Node(p, q, min(count, SMALLEST), kind)
            else:
                yield Node(p, None, q.topk(min(count, vocab)).indices, kind)

    for kind, p, q in random_pairs(min(codebook, REAL), 1, seed=0) if counts else ():
        if kind in ("independent", "flat"):
            top = q.topk(max(counts)).indices
            yield Node(p, q, 1, kind) if recorded.drawn else Node(p, None, top, kind)


def _vocabulary(count: int) -> int:
    """The largest vocabulary on which `count` drawn children are enumerable in time."""
    sizes = (v for v in (LARGEST, 24, 12, 8) if v > count)
    return next((v for v in sizes if draw_count(v, count) <= MAX_DRAWS // 3), SMALLEST)


def random_pairs(vocab: int, each: int, seed: int) -> list[tuple[str, Tensor, Tensor]]:
    """(kind, p, q) of many kinds, so that an error that shows only at some is met; `each` of every
    kind: ordinary, near to each other, equal, flat, sparse as after top-k, disjoint supports, one
    sharp."""
    g = torch.Generator().manual_seed(seed)

    def logits(scale: float) -> Tensor:
        return scale * torch.randn(vocab, generator=g)

    def sparse(z: Tensor, keep: int) -> Tensor:
        return z.masked_fill(z < z.topk(max(1, keep)).values[-1], -torch.inf)

    out = []
    half = torch.arange(vocab) < vocab // 2
    for _ in range(each):
        base = logits(1.5)
        fitting = base + logits(0.7)
        split = half[torch.randperm(vocab, generator=g)]
        kinds = {
            "independent": (base, logits(1.5)),
            "near": (base, fitting),
            "equal": (base, base),
            "flat": (logits(0.2), logits(0.2)),
            "sparse": (sparse(base, vocab // 2), sparse(fitting, vocab // 2)),
            "disjoint": (
                base.masked_fill(split, -torch.inf),
                fitting.masked_fill(~split, -torch.inf),
            ),
            "sharp": (4 * base, fitting),
        }
        out += [(kind, p.softmax(-1), q.softmax(-1)) for kind, (p, q) in kinds.items()]
    return out


def definition_check(asked: Asked) -> Finding:
    """p_A by the rule against p_A by its definition: every draft, random p. For rules that relax to
    neighbours; others have no definition here, and only their laws are measured."""
    model = asked.plain.model((24, 2, 1))
    rule = asked.rule(model)
    reference = None if rule is None else ReferenceRule.of(rule, model)
    if reference is None:
        return Finding("definition")
    worst, over = 0.0, 0.0
    for _, p, _ in random_pairs(24, EACH, seed=5):
        test = rule.test(p.expand(24, -1), None, torch.arange(24))
        plain = p.double().numpy()
        for x in range(24):
            wanted = reference.at(plain, x)
            if wanted.near_edge:
                continue
            moved, accept = float(test.moved[x]), float(test.accept[x])
            over = max(over, known(moved - wanted.bound))
            gaps = moved - wanted.moved, accept - min(1.0, wanted.raised)
            worst = max(worst, *(known(abs(gap)) for gap in gaps))
    faults = [f"p_A differs by {worst:.4f} from its definition"] * (not worst <= SLACK)
    faults += [f"the mass moved exceeds the bound by {over:.4f}"] * (over > SLACK)
    return Finding("definition", "; ".join(faults), {"largest_difference": worst})


def lemma_check(asked: Asked, recorded: Recorded) -> Finding:
    """Lemma R from recorded (p, q, a). The law check enumerates the rule; this one looks at the
    loop's own calls of it. The acceptance that the loop used must be the rule's for that node, at
    that depth and place. From (p, q, a) follows the output bound sum_x (q(x) a(x) - p(x))+, by hand
    and in float64. It must be that of the enumerated law, and of a rule that says so
    (`bounds_output`) the bound that it declares."""
    rule = asked.rule(asked.model(TREE))  # apart from the decoder's
    used = lemma = declared = 0.0
    for node in recorded.judged:
        judge = judge_at(rule, node.spot)
        q = None if node.q is None else node.q[None, None]
        every = torch.ones_like(node.children, dtype=torch.bool)[None, None]
        said = judge(node.p[None, None], q, node.children[None, None], every)
        used = max(used, known(float((said.accept[0, 0] - node.accept).abs().max())))
        first = node.children[0]
        bound = _by_hand(judge, node.p, node.q, first)
        one = 1 if node.q is not None else first[None]
        law = node_law(rule, node.p, node.q, one, spot=node.spot)
        lemma = max(lemma, known(abs(law.limit - bound)))
        if getattr(rule, "bounds_output", False):
            declared = max(declared, known(abs(float(node.bound[0]) - bound)))
    faults = [
        (used, "the loop accepts with another probability than the rule says of that node"),
        (lemma, "the enumerated law's output bound is not sum (q a - p)+"),
        (declared, "the rule declares another output bound than sum (q a - p)+"),
    ]
    fault = "; ".join(f"{words} (off by {gap:.2g})" for gap, words in faults if not gap <= CLOSE)
    evidence = {"nodes": len(recorded.judged), "acceptance": used, "output bound": lemma}
    return Finding("lemma R", fault, evidence | {"declared": declared})


def _by_hand(judge: Any, p: Tensor, q: Tensor | None, x: Tensor) -> float:
    """sum_x (q(x) a(x) - p(x))+ of one test in float64: all codes x where q [V] is given, else the
    single code x."""
    every = torch.arange(len(p)) if q is not None else x[None]  # [T]
    wide = [None if t is None else t.expand(1, len(every), -1) for t in (p, q)]
    codes = every[None, :, None]  # [1, T, 1]
    accept = judge(*wide, codes, torch.ones_like(codes, dtype=torch.bool)).accept[0, :, 0].double()
    drafted = torch.ones_like(accept) if q is None else q.double()
    mass = torch.where(drafted > 0, drafted * accept, 0.0)
    return float((mass - p.double()[every]).clamp_min(0).sum())
